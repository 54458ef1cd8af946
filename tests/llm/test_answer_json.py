from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.llm.answer_json import drop_reasoning, find_json
from traces.model import Json

REAL = '{"a": {"b": [1, 2]}}'


def read(text: str) -> list[Json]:
    """The values that were found, without those that cannot be read."""
    return [each.value for each in find_json(text) if not each.problem]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ("7", [7]),
        ("```json\n7\n```", [7]),
        ('```json\n{"a": 1}\n```', [{"a": 1}]),
        ("Sure:\n```\n[1, 2]\n```\nbye", [[1, 2]]),
        (f"The answer is {REAL} as asked.", [{"a": {"b": [1, 2]}}]),
        ('A draft {"a": 1}, then {"a": 2}.', [{"a": 1}, {"a": 2}]),
        ('```json\n{"a": 1}\n```\nBetter:\n```json\n{"a": 2}\n```', [{"a": 1}, {"a": 2}]),
        ('Use {name} and [Step 2], {{x}} and {"b": ...}: {"a": 1}', [{"a": 1}]),
        ('Confidence is in [0, 1), see [[docs]]: {"a": 1}', [{"a": 1}]),
        ('He said {"oops. Finally: {"a": 1}', [{"a": 1}]),
        ('{"a": 1} is what [1] asks for', [{"a": 1}, [1]]),
        ("no json", []),
        ("", []),
    ],
)
def test_all_json_of_an_answer_is_found(text: str, expected: list[Json]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f'<think>maybe {{"a": 0}}</think>{REAL}',
        f'<think>\nIt says "5\' tall {{ and\n{{"a": 0}}\n</think>\n\n```json\n{REAL}\n```',
        f'Well. <thinking>{{"a": 0}}</thinking> So: {REAL}',
        f'<reasoning>{{"a": 0}}</reasoning>{REAL}',
        f'<Think>{{"a": 0}}</Think>{REAL}',
        f'[THINK]{{"a": 0}}[/THINK]{REAL}',
        f'{{"a": 0}} was the first idea.\n</think>\n{REAL}',
        f'<think>I close with </think>, {{"a": 0}}, not yet</think>{REAL}',
    ],
)
def test_json_in_reasoning_is_left_out(text: str) -> None:
    assert read(text) == [json.loads(REAL)]


@pytest.mark.parametrize(
    "text", ['<think>maybe {"a": 0}', 'So:\n<reasoning>\n{"a": 0}', '<think>{"a": 0}</think>', '{"a": 0}</think>']
)
def test_reasoning_that_does_not_end_or_ends_the_answer_holds_no_answer(text: str) -> None:
    assert find_json(text) == []


def test_tags_inside_a_value_are_part_of_the_value() -> None:
    value = {"value": "Write <think> first, then </think>, then {x} and [THINK]."}
    assert read(f"Here: {json.dumps(value)} Done.") == [value]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": [1, 2,],\n}', {"a": [1, 2]}),
        ('{"a": "x, }", "b": 1, }', {"a": "x, }", "b": 1}),
        (r'{"a": "match \d+ and \(x\), don\'t"}', {"a": r"match \d+ and \(x\), don't"}),
        (r'{"a": "kept \\d \n \u00e4 \/ \"q\"", }', {"a": 'kept \\d \n ä / "q"'}),
        ('{"a": True, "b": [None, False], "c": "True"}', {"a": True, "b": [None, False], "c": "True"}),
        ('{"a": "```json\n{}\n```"}', {"a": "```json\n{}\n```"}),
    ],
)
def test_slips_are_read_as_they_were_meant(text: str, expected: Json) -> None:
    assert read(text) == read(f"Sure: {text} Bye.") == [expected]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1}, "c": ',
        'Draft: {"a": 1}. Final: {"a": [{"b": 1}, {"b"',
        '{"a": "one {\\"b\\": 1} tw',
        '{"a": "she said "no" to {"b": 1}',
        '[{"a": 1}, {"a"',
    ],
)
def test_nothing_of_json_that_does_not_end_is_used(text: str) -> None:
    last = find_json(text)[-1]
    assert last.is_unfinished
    assert "JSON is broken" in last.problem
    assert {"b": 1} not in read(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"a": 1}\n', True), ('x {"a": 1}\n```\n', True), ('{"a": 1} or', False), ('x {"a": 1} y', False)],
)
def test_it_is_known_whether_json_ends_the_answer(text: str, expected: bool) -> None:
    assert find_json(text)[-1].ends_answer is expected


@pytest.mark.parametrize(
    "part", ["[", "{", '{"', '{"a": ', '["a", ', "[[{", "[0, 1) ", "<think>", "x <think>", '\\"', '{"a": "\\']
)
def test_brackets_and_quotes_without_end_are_no_json(part: str) -> None:
    assert read(part * 1_000) == []


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), _VALUES, min_size=1, max_size=3))
def test_any_object_between_prose_is_found_as_it_is(value: dict[str, Json]) -> None:
    assert read(f"Here {{it}} is:\n```json\n{json.dumps(value)}\n```\nHope [it] helps.") == [value]


@pytest.mark.slow
@given(st.dictionaries(st.text(), _VALUES, min_size=1, max_size=3), st.integers(min_value=1))
def test_no_beginning_of_an_object_is_taken_for_an_answer(value: dict[str, Json], length: int) -> None:
    text = json.dumps(value)
    assert read(f"So: {text[: length % len(text)]}") == []


def test_reasoning_at_the_beginning_is_dropped() -> None:
    assert drop_reasoning("<think>hm</think>\n no") == "no"
    assert drop_reasoning("no <think>hm</think>") == "no <think>hm</think>"
