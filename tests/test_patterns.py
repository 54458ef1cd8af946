from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from promptiter.json_schemas import SchemaCheckError
from promptiter.patterns import PatternError, check_pattern, find_violation, list_violations, search_pattern

ENDLESS = "((.+)+)+((.+)+)+☃"
TEXT = "Repeat: " + "a" * 60


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (r"\d+ EUR", "total: 42 EUR", True),
        (r"^\d+$", "42 EUR", False),
        ("x{e}", "x{e}", True),  # elsewhere, {e} allows errors
        ("x{i}", "x", False),
        ("[[:alpha:]]", "a", False),
        (r"\w", "²", True),
        (r"\s", "\x1c", True),
        (".", "\n", False),
        ("\ud800", "lone \ud800", True),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("max_steps", [0, 1_000_000], ids=["another process", "if possible here"])
def test_a_pattern_means_what_it_means_in_re(
    pattern: str, text: str, is_found: bool, max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptiter.patterns.MAX_STEPS", max_steps)
    assert search_pattern(pattern, text) is is_found


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|a)*b",
        "(?:a|a)(?:a|a)b",
        "(a?){60}a{60}b",
        "a*a*a*a*a*a*a*b",
        r"(a+)\1b",
        "(?ix) (a+) + b",
        "(a+)(?#again)+b",
        "a{1,9}b",
        "(?P<x>a+)(?P=x)b",
    ],
)
def test_patterns_that_may_be_slow_are_matched_in_another_process(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        "promptiter.patterns._processes", SimpleNamespace(ask=lambda question, **_: asked.append(question))
    )
    search_pattern(pattern, "a" * 60)
    assert len(asked) == 1
    search_pattern("^a+b$", "a" * 60)
    assert len(asked) == 1


def test_case_is_ignored_on_request() -> None:
    assert not search_pattern(r"^\S+paris$", "X-PARIS")
    assert search_pattern(r"^\S+paris$", "X-PARIS", ignore_case=True)


@pytest.mark.usefixtures("short_limit")
def test_a_pattern_that_never_ends_is_an_error_and_the_next_one_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PatternError, match=r"the pattern '.*' takes longer than 0.05 s; simplify it"):
        search_pattern(ENDLESS, TEXT)
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 60)
    assert search_pattern("(a+)+", TEXT)


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 20_000])
def test_an_invalid_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        check_pattern(pattern)


def test_a_schema_with_patterns_is_checked_like_any_other() -> None:
    schema = {
        "properties": {"id": {"pattern": "^A"}, "days": {"minItems": 1}},
        "patternProperties": {"^x-": {"minimum": 2}},
    }
    value = {"id": "B1", "days": [], "x-1": 1}
    assert {(each.keyword, str(each.wanted), *each.path) for each in list_violations(schema, value)} == {
        ("pattern", "^A", "id"),
        ("minItems", "1", "days"),
        ("minimum", "2", "x-1"),
    }
    best = find_violation({"properties": {"id": {"pattern": "^A"}}}, value)
    assert best is not None
    assert best.message == "$.id: 'B1' does not match '^A'"
    assert find_violation(schema, {"id": "A1"}) is None


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": ENDLESS},
        {"items": {"anyOf": [{"pattern": ENDLESS}]}},
        {"propertyNames": {"pattern": ENDLESS}},
        {"patternProperties": {ENDLESS: True}, "additionalProperties": False},
        {"patternProperties": {ENDLESS: True}, "unevaluatedProperties": False},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$defs": {"a": {"pattern": ENDLESS}},
            "$ref": "#/$defs/a",
        },
    ],
)
def test_a_schema_whose_patterns_never_end_is_an_error(schema: dict[str, Any]) -> None:
    value: Any = {TEXT: 1} if "atternProp" in str(schema) or "Names" in str(schema) else TEXT
    value = [value] if "items" in schema else value
    with pytest.raises(SchemaCheckError, match="a pattern of the JSON schema takes longer"):
        list_violations(schema, value)


def test_a_value_that_is_too_deep_is_an_error() -> None:
    deep: Any = []
    for _ in range(3_000):
        deep = [deep]
    with pytest.raises(SchemaCheckError, match="too deeply"):
        list_violations(
            {"$defs": {"all": {"items": {"$ref": "#/$defs/all"}, "pattern": "a"}}, "$ref": "#/$defs/all"}, deep
        )


def test_the_process_that_matches_ends_by_itself() -> None:
    """The one that asked may be dead."""
    question = {"pattern": ENDLESS, "text": TEXT, "ignore_case": False, "limit_s": 0.05}
    command = [sys.executable, "-c", "from promptiter.pattern_process import main; main()"]
    ended = subprocess.run(command, input=json.dumps(question).encode() + b"\n", stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"ready\n")
