from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.json_match import (
    JsonCriterion,
    NotJsonError,
    check_against_schema,
    compare_json,
    compare_json_text,
    format_json_path,
    parse_json,
)
from promptiter.evaluation.score import Finding

PLAIN = JsonCriterion()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def wheres(actual: Any, expected: Any, criterion: JsonCriterion = PLAIN) -> list[tuple[str, str]]:
    return [(finding.kind, finding.where) for finding in compare_json(actual, expected, criterion)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '  {"a": 1}\n',
        'Here it is:\n```json\n{"a": 1}\n```\nDone.',
        '```\n{"a": 1}\n```',
        '~~~json\n{"a": 1}\n~~~',
        '```json {"a": 1}```',
        '```python\nprint()\n```\n```json\n{"a": 1}\n```',
        '```json\n{"a": 2}\n```\nBetter:\n```json\n{"a": 1}\n```',
        '\ufeff{"a": 1}',
    ],
)
def test_json_is_parsed_also_inside_a_code_fence(text: str) -> None:
    assert parse_json(text) == {"a": 1}


def test_backticks_inside_a_fenced_text_do_not_end_the_fence() -> None:
    assert parse_json('```json\n{"a": "use ```x``` here"}\n```') == {"a": "use ```x``` here"}


@pytest.mark.parametrize("text", ["", "hello", '{"a": ', "```json\nnope\n```", "NaN", "[" * 100_000])
def test_text_without_json_is_an_error(text: str) -> None:
    with pytest.raises(NotJsonError):
        parse_json(text)


def test_two_unparsable_values_are_not_equal() -> None:
    [finding] = compare_json_text("not json", "not json", PLAIN)
    assert (finding.kind, finding.predicate, finding.actual, finding.where) == (
        "violated",
        "valid_json",
        "not json",
        "$",
    )


def test_an_unparsable_reference_is_an_error_of_the_eval_set() -> None:
    with pytest.raises(MetricError, match="the reference 'not json' is not JSON"):
        compare_json_text("{}", "not json", PLAIN)


def test_structured_output_is_used_when_the_text_is_not_json() -> None:
    assert compare_json_text("Done, see data.", '{"a": 1}', PLAIN, data={"a": 1}) == ()


def test_1_and_1_0_are_equal_but_true_is_not_a_number() -> None:
    assert wheres(1, 1.0) == []
    assert wheres({"a": [1.0]}, {"a": [1]}) == []
    assert wheres(True, 1) == [("wrong", "$")]
    assert wheres(0, False) == [("wrong", "$")]
    assert wheres("1", 1) == [("wrong", "$")]
    assert wheres(None, 0) == [("wrong", "$")]


def test_number_tolerance_is_absolute_and_means_what_is_written() -> None:
    assert wheres(1.1, 1, JsonCriterion(number_tolerance=0.1)) == []
    assert wheres(1.11, 1, JsonCriterion(number_tolerance=0.1)) == [("wrong", "$")]
    assert wheres(3, 1, JsonCriterion(number_tolerance=2)) == []
    assert wheres(0.1 + 0.2, 0.3) == []
    assert wheres(0.1 + 0.2, 0.3, JsonCriterion(number_tolerance=0)) == [("wrong", "$")]
    assert wheres(2**60 + 1, 2**60) == [("wrong", "$")]
    assert wheres(10**400, 1.5) == [("wrong", "$")]
    assert wheres(float("nan"), 1.5) == [("wrong", "$")]


def test_findings_carry_json_paths_in_the_order_of_the_reference() -> None:
    expected = {"b": 1, "a": [0, {"c": 2}, {"d": [True]}], "gone": {"x": 1, "y": 2}, "odd key": "é"}
    actual = {"a": [0, {"c": 3}, {"d": [False, 1]}], "b": 1, "odd key": "e", "new": None}
    assert compare_json(actual, expected, PLAIN) == (
        Finding(kind="wrong", expected=2, actual=3, where="$.a[1].c", predicate="json"),
        Finding(kind="wrong", expected=True, actual=False, where="$.a[2].d[0]", predicate="json"),
        Finding(kind="unexpected", actual=1, where="$.a[2].d[1]", predicate="json"),
        Finding(kind="missing", expected={"x": 1, "y": 2}, where="$.gone", predicate="json"),
        Finding(kind="wrong", expected="é", actual="e", where="$['odd key']", predicate="json"),
        Finding(kind="unexpected", actual=None, where="$.new", predicate="json"),
    )


def test_containers_of_another_kind_are_wrong_as_a_whole() -> None:
    assert wheres({"a": []}, {"a": {}}) == [("wrong", "$.a")]
    assert wheres({"a": [1]}, {"a": 1}) == [("wrong", "$.a")]
    assert wheres([], {}) == [("wrong", "$")]


def test_an_absent_value_is_not_null() -> None:
    assert wheres({}, {"a": None}) == [("missing", "$.a")]


@given(JSON)
def test_a_value_equals_itself_after_a_round_trip(value: Any) -> None:
    assert compare_json_text(orjson.dumps(value).decode(), orjson.dumps(value).decode(), PLAIN) == ()


@given(JSON, JSON)
def test_without_tolerance_there_is_a_finding_exactly_when_values_differ(first: Any, second: Any) -> None:
    def tag_types(value: Any) -> Any:
        """Python's own equality, with booleans distinct from numbers."""
        if isinstance(value, dict):
            return {key: tag_types(item) for key, item in value.items()}
        if isinstance(value, list):
            return [tag_types(item) for item in value]
        return ("bool", value) if isinstance(value, bool) else value

    findings = compare_json(first, second, JsonCriterion(number_tolerance=0))
    assert bool(findings) == (tag_types(first) != tag_types(second))


def test_deep_values_are_compared_without_recursion() -> None:
    deep: list[Any] = []
    deeper: list[Any] = [1]
    for _ in range(5_000):
        deep, deeper = [deep], [deeper]
    assert wheres(deeper, deep) == [("unexpected", "$" + "[0]" * 5_001)]


def test_ignored_subtrees_are_not_compared() -> None:
    criterion = JsonCriterion(ignore_tree={"id": True, "meta": {"ts": True}, "items": {"*": {"id": True}}})
    expected = {"id": 1, "meta": {"ts": 1, "by": "x"}, "items": [{"id": 1, "v": 1}, {"id": 2, "v": 2}]}
    actual = {"meta": {"by": "x"}, "items": [{"id": 7, "v": 1}, {"v": 3}]}
    assert wheres(actual, expected, criterion) == [("wrong", "$.items[1].v")]
    assert wheres({"items": []}, {"meta": {"ts": 1}, "items": []}, criterion) == []
    assert wheres({}, {"meta": {"ts": 1, "by": "x"}}, criterion) == [("missing", "$.meta.by")]


def test_a_position_in_a_list_beats_the_star() -> None:
    criterion = JsonCriterion(ignore_tree={"0": False, "*": True})
    assert wheres([1, 2, 3], [9, 9], criterion) == [("wrong", "$[0]")]


def test_only_the_selected_subtrees_are_compared() -> None:
    criterion = JsonCriterion(only_tree={"answer": True, "rows": {"0": {"v": True}}})
    expected = {"answer": 1, "note": "a", "rows": [{"v": 1, "w": 1}, {"v": 2}]}
    assert wheres({"answer": 1, "note": "b", "rows": [{"v": 1, "w": 9}]}, expected, criterion) == []
    assert wheres({"answer": 2, "rows": []}, expected, criterion) == [("wrong", "$.answer"), ("missing", "$.rows[0].v")]
    assert wheres({"answer": 1, "rows": [{"v": 1}], "more": 1}, expected, criterion) == []


def test_an_only_tree_that_selects_nothing_does_not_pass_silently() -> None:
    with pytest.raises(MetricError, match=r"only_tree \{'anwser': True\} selects nothing"):
        compare_json_text("{}", '{"answer": 1}', JsonCriterion(only_tree={"anwser": True}))


@pytest.mark.parametrize("leaf", ["yes", 1, None, ["id"]])
def test_a_tree_holds_objects_and_booleans(leaf: Any) -> None:
    with pytest.raises(MetricError, match=r"ignore_tree.a.b is .*; a tree consists of objects"):
        JsonCriterion(ignore_tree={"a": {"b": leaf}})


def test_a_schema_violation_names_the_keyword_and_the_path() -> None:
    criterion = JsonCriterion(
        ignore=True,
        schema={
            "type": "object",
            "required": ["city"],
            "properties": {"days": {"type": "array", "items": {"type": "integer", "minimum": 1}}},
        },
    )
    assert compare_json_text('{"city": "x", "days": [1, 2.0]}', None, criterion) == ()
    assert check_against_schema({"days": [1, 0, "2"]}, criterion) == (
        Finding(
            kind="violated",
            expected={"required": ["city"]},
            actual={"days": [1, 0, "2"]},
            where="$",
            predicate="json_schema",
        ),
        Finding(kind="violated", expected={"minimum": 1}, actual=0, where="$.days[1]", predicate="json_schema"),
        Finding(kind="violated", expected={"type": "integer"}, actual="2", where="$.days[2]", predicate="json_schema"),
    )


def test_a_schema_is_checked_beside_the_reference() -> None:
    criterion = JsonCriterion(schema={"required": ["b"]})
    found = compare_json({"a": 2}, {"a": 1}, criterion)
    assert [finding.predicate for finding in found] == ["json", "json_schema"]


def test_an_invalid_schema_is_an_error_when_it_is_read() -> None:
    with pytest.raises(MetricError, match=r"the JSON schema is not valid at \$.type"):
        JsonCriterion(schema={"type": "objekt"})


def test_a_remote_schema_is_not_fetched() -> None:
    criterion = JsonCriterion(schema={"$ref": "https://example.com/schema.json"})
    with pytest.raises(MetricError, match="references are not fetched"):
        check_against_schema({}, criterion)


def test_a_schema_whose_pattern_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)
    with pytest.raises(MetricError, match="a pattern of the JSON schema takes longer"):
        check_against_schema(["a" * 60], JsonCriterion(schema={"items": {"pattern": "(a+)+b"}}))


def test_paths_quote_keys_that_are_not_identifiers() -> None:
    assert format_json_path(["a", 2, "b c", "d'"]) == "$.a[2]['b c'][\"d'\"]"
