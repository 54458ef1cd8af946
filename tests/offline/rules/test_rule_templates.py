from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import promptiter
from promptiter.offline.model.instruction_rules import find_rules
from promptiter.offline.rules import prompt_editing
from promptiter.offline.rules.rule_templates import PHRASINGS, join_list, phrase_rule

ROOT = Path(promptiter.__file__).parent

SAMPLES: Mapping[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "field_carried": (("order id", "city"), frozenset({"include"})),
    "all_fields_carried": ((), frozenset({"carry_all"})),
    "verbatim": ((), frozenset({"verbatim"})),
    "enumeration": (("billing", "shipping", "other"), frozenset({"choose"})),
    "label_cue": (("billing", "invoice"), frozenset({"label_when"})),
    "cite": ((), frozenset({"cite"})),
    "value_only": ((), frozenset({"value_only"})),
    "field_only": (("order id",), frozenset({"value_only"})),
    "keyword": (("warranty",), frozenset({"keyword"})),
    "call_tool": (("search",), frozenset({"call_tool"})),
    "call_tool_when": (("search", "the input gives the order id"), frozenset({"call_tool"})),
    "no_tool": (("search",), frozenset({"no_tool"})),
    "tool_order": (("search", "refund"), frozenset({"call_tool"})),
    "argument_source": (("search", "query", "order id"), frozenset({"tool_argument"})),
    "json_object": ((), frozenset({"json"})),
    "json_keys": (("order_id", "city"), frozenset({"json"})),
    "json_only": ((), frozenset({"json_only"})),
    "prefix": (("Result:",), frozenset({"prefix"})),
    "suffix": (("Best regards",), frozenset({"suffix"})),
    "max_length": (("20", "words"), frozenset({"max_words"})),
    "min_length": (("20", "words"), frozenset({"min_words"})),
    "date_format": (("YYYY-MM-DD",), frozenset({"date_format"})),
    "decimals": (("2",), frozenset({"decimals"})),
    "whole_numbers": ((), frozenset({"decimals"})),
    "upper_case": ((), frozenset({"upper_case"})),
    "language": (("German",), frozenset({"language"})),
}
"""Parameters for each family, and the rules of the simulated model that mean the same."""

UNKNOWN_TO_THE_SIMULATED: Mapping[str, tuple[str, ...]] = {
    "use_tool": (),
    "use_tool_when": ("the input gives the order id",),
    "rubric": ("The answer names the policy.",),
}
"""Families that it has no rule for: real models understand them."""


def parameters_of(family: str) -> tuple[str, ...]:
    return SAMPLES[family][0] if family in SAMPLES else UNKNOWN_TO_THE_SIMULATED[family]


def sentences(family: str) -> tuple[str, ...]:
    return phrase_rule(family, parameters_of(family))


def is_understood(family: str, sentence: str) -> bool:
    return any(rule.family in SAMPLES[family][1] for rule in find_rules(sentence))


def test_every_family_is_measured_or_known_to_have_no_counterpart() -> None:
    assert set(PHRASINGS) == set(SAMPLES) | set(UNKNOWN_TO_THE_SIMULATED)
    assert not set(SAMPLES) & set(UNKNOWN_TO_THE_SIMULATED)


@pytest.mark.parametrize("family", sorted(PHRASINGS))
def test_a_family_has_three_different_sentences(family: str) -> None:
    sentences = phrase_rule(family, parameters_of(family))
    assert len(set(sentences)) == len(sentences) == 3
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "{" not in sentence
        assert "  " not in sentence


@pytest.mark.parametrize(
    ("family", "parameters", "expected"),
    [
        ("field_carried", ("order id",), "Always include the order id from the input in your output."),
        ("field_carried", ("a", "b", "c"), "Always include the a, the b and the c from the input in your output."),
        ("json_keys", ("id",), 'Return a JSON object with exactly the key "id", in this order.'),
        ("max_length", ("1", "sentences"), "Answer in at most one sentence."),
        ("max_length", ("30", "words"), "Answer in at most 30 words."),
        ("decimals", ("1",), "Write amounts with exactly one decimal place."),
        ("tool_order", ("look", "ask", "pay"), "First call look, then ask, then pay."),
        ("enumeration", ("a", "b"), "Answer with exactly one of these labels: a, b."),
    ],
)
def test_parameters_are_put_into_words(family: str, parameters: tuple[str, ...], expected: str) -> None:
    assert phrase_rule(family, parameters)[0] == expected


def test_parameters_with_braces_are_left_as_they_are() -> None:
    assert phrase_rule("prefix", ("{x}",))[0] == 'Begin your answer with "{x}".'


def test_lists_are_joined_as_people_write_them() -> None:
    assert [join_list(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_most_sentences_are_understood_by_the_simulated_model() -> None:
    understood = {family: [is_understood(family, each) for each in sentences(family)] for family in SAMPLES}
    assert sum(map(sum, understood.values())) >= 0.75 * sum(map(len, understood.values()))
    assert all(map(any, understood.values()))


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_what_writes_rules_and_what_reads_them_do_not_import_each_other() -> None:
    writers = list((ROOT / "offline" / "rules").glob("*.py"))
    readers = list((ROOT / "offline" / "model").glob("*.py"))
    assert len(writers) > 10
    assert len(readers) > 5
    for path in writers:
        assert not [name for name in imports_of(path) if "offline.model" in name], path
    for path in readers:
        assert not [name for name in imports_of(path) if "backprop" in name or "offline.rules" in name], path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("promptiter.offline.rules.optimizer", "promptiter.offline.model.simulated"),
        ("promptiter.offline.model.simulated", "promptiter.backprop"),
    ],
)
def test_importing_one_side_does_not_load_the_other(imported: str, absent: str) -> None:
    code = f"import sys, {imported}; print([name for name in sys.modules if name.startswith({absent!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_subjects_are_known_for_families_of_the_table_only() -> None:
    assert set(prompt_editing._SUBJECT_OF) <= set(PHRASINGS)
    assert set(prompt_editing._SUBJECT_OF.values()) <= set(prompt_editing._SUBJECTS)
