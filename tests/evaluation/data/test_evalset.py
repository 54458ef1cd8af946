from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.data.evalset import build_eval_set, dump_eval_set, load_eval_set
from promptiter.llm.messages import Message, ToolRequest
from tests.traces.strategies import json_values, texts

SHARED = Path(__file__).parents[4] / "shared" / "data"

INVOCATION: dict[str, Any] = {
    "invocation_id": "i-1",
    "user_content": {"parts": [{"text": "weather in Oslo?"}], "role": "user"},
    "final_response": {"parts": [{"text": "4 °C"}], "role": "model"},
    "intermediate_data": {
        "tool_uses": [{"id": "t1", "name": "get_weather", "args": {"city": "Oslo"}}],
        "tool_responses": [{"id": "t1", "name": "get_weather", "response": {"celsius": 4}}],
        "intermediate_responses": [["agent", [{"text": "let me look"}]]],
    },
}
CASE: dict[str, Any] = {
    "eval_id": "oslo",
    "conversation": [INVOCATION],
    "session_input": {"app_name": "weather", "user_id": "u", "state": {"user_name": "Ada"}},
    "context_messages": [{"role": "system", "content": "Be short."}, {"parts": [{"text": "Hi"}], "role": "model"}],
    "creation_timestamp": 1.5,
}
DOCUMENT: dict[str, Any] = {
    "eval_set_id": "weather",
    "app_name": "weather",
    "name": "Weather",
    "description": "One case",
    "eval_cases": [CASE],
    "creation_timestamp": 0,
}
ANSWERED = ExpectedToolCall(name="get_weather", arguments={"city": "Oslo"}, result={"celsius": 4}, id="t1")
LOADED = EvalSet(
    id="weather",
    name="Weather",
    description="One case",
    cases=(
        EvalCase(
            id="oslo",
            turns=(Turn(user="weather in Oslo?", expected="4 °C", expected_tool_calls=(ANSWERED,), id="i-1"),),
            context=(Message("system", "Be short."), Message("assistant", "Hi")),
            state={"user_name": "Ada"},
        ),
    ),
)


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else orjson.dumps(content))
    return path


def change_document(path: str, value: object) -> dict[str, Any]:
    """The document with one value changed, or removed when it is `...`."""
    document = copy.deepcopy(DOCUMENT)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    owner: Any = document
    for part in parents:
        owner = owner[part]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return document


def camel_case(value: Any, *, opaque: tuple[str, ...] = ("args", "response", "state")) -> Any:
    if isinstance(value, list):
        return [camel_case(element) for element in value]
    if not isinstance(value, dict):
        return value
    renamed = {}
    for key, inner in value.items():
        first, *others = key.split("_")
        name = first + "".join(word.capitalize() for word in others)
        renamed[name] = inner if key in opaque else camel_case(inner)
    return renamed


def test_the_evalset_format_is_read(tmp_path: Path) -> None:
    assert load_eval_set(write(tmp_path, "w.evalset.json", DOCUMENT)) == LOADED


def test_camel_case_keys_are_read_at_every_level(tmp_path: Path) -> None:
    renamed = camel_case(DOCUMENT)
    assert "toolUses" in renamed["evalCases"][0]["conversation"][0]["intermediateData"]
    assert renamed["evalCases"][0]["sessionInput"]["state"] == {"user_name": "Ada"}
    assert load_eval_set(write(tmp_path, "w.json", renamed)) == LOADED


def test_the_format_may_also_be_written_as_yaml(tmp_path: Path) -> None:
    assert load_eval_set(write(tmp_path, "w.yaml", orjson.dumps(DOCUMENT))) == LOADED


def turn_of(tmp_path: Path, **invocation: object) -> Turn:
    fields = {"user_content": {"parts": [{"text": "hi"}]}} | invocation
    path = write(tmp_path, "one.json", change_document("eval_cases.0.conversation", [fields]))
    return load_eval_set(path).cases[0].turns[0]


def test_a_turn_without_intermediate_data_may_call_any_tool_and_one_with_no_tool_uses_none(tmp_path: Path) -> None:
    assert turn_of(tmp_path).expected_tool_calls is None
    assert turn_of(tmp_path, intermediate_data=None).expected_tool_calls is None
    assert turn_of(tmp_path, intermediate_data={"tool_uses": []}).expected_tool_calls == ()
    assert turn_of(tmp_path, intermediate_data={"invocation_events": []}).expected_tool_calls == ()


def test_an_empty_reference_is_not_a_missing_one(tmp_path: Path) -> None:
    assert turn_of(tmp_path, final_response={"parts": [{"text": ""}]}).expected == ""
    assert turn_of(tmp_path, final_response={"role": "assistant", "content": ""}).expected == ""
    assert turn_of(tmp_path, final_response={"parts": []}).expected is None
    assert turn_of(tmp_path, final_response=None).expected is None
    assert turn_of(tmp_path).expected is None


def test_several_text_parts_are_lines(tmp_path: Path) -> None:
    parts = [{"text": "a"}, {"text": "b"}]
    assert turn_of(tmp_path, user_content={"parts": parts}).user == "a\nb"
    assert turn_of(tmp_path, final_response={"parts": parts}).expected == "a\nb"


def test_function_calls_in_events_are_expected_tool_calls(tmp_path: Path) -> None:
    events = [
        {"author": "agent", "content": {"parts": [{"text": "hm"}, {"function_call": {"name": "a", "args": {"x": 1}}}]}},
        {"author": "tool", "content": {"parts": [{"functionResponse": {"name": "a", "response": {"y": 2}}}]}},
        {"author": "agent", "content": None},
        {"author": "agent", "content": {"parts": [{"function_call": {"id": "2", "name": "b", "args": {}}}]}},
    ]
    assert turn_of(tmp_path, intermediate_data={"invocation_events": events}).expected_tool_calls == (
        ExpectedToolCall(name="a", arguments={"x": 1}, result={"y": 2}),
        ExpectedToolCall(name="b", arguments={}, id="2"),
    )


def test_function_calls_in_the_final_response_are_expected_once(tmp_path: Path) -> None:
    call = {"id": "1", "name": "a", "args": {"x": 1}}
    answer = {"parts": [{"function_call": call}]}
    once = (ExpectedToolCall(name="a", arguments={"x": 1}, id="1"),)
    turn = turn_of(tmp_path, final_response=answer)
    assert (turn.expected, turn.expected_tool_calls) == (None, once)
    assert turn_of(tmp_path, final_response=answer, intermediate_data={"tool_uses": [call]}).expected_tool_calls == once
    response = {"id": "1", "name": "a", "response": "y"}
    both = {"parts": [{"function_call": call}, {"function_response": response}]}
    data = {"tool_uses": [call], "tool_responses": [response]}
    (answered,) = turn_of(tmp_path, final_response=both, intermediate_data=data).expected_tool_calls or ()
    assert answered == replace(once[0], result="y")


def test_tool_responses_go_to_the_calls_they_answer(tmp_path: Path) -> None:
    data = {
        "tool_uses": [{"id": "1", "name": "a"}, {"id": "2", "name": "a"}, {"name": "b"}, {"name": "b"}],
        "tool_responses": [
            {"id": "2", "name": "a", "response": "second"},
            {"name": "b", "response": "first b"},
            {"id": "9", "name": "c", "response": "of a call that is not listed"},
        ],
    }
    calls = turn_of(tmp_path, intermediate_data=data).expected_tool_calls or ()
    assert [(call.name, call.result) for call in calls] == [
        ("a", None),
        ("a", "second"),
        ("b", "first b"),
        ("b", None),
        ("c", "of a call that is not listed"),
    ]


def test_context_messages_keep_tool_requests_and_their_answers(tmp_path: Path) -> None:
    contents = [
        {"role": "model", "parts": [{"text": "wait"}, {"function_call": {"id": "1", "name": "f", "args": {"x": 1}}}]},
        {"role": "user", "parts": [{"function_response": {"id": "1", "name": "f", "response": {"y": 2}}}]},
    ]
    path = write(tmp_path, "c.json", change_document("eval_cases.0.context_messages", contents))
    assert load_eval_set(path).cases[0].context == (
        Message("assistant", "wait", tool_requests=(ToolRequest("1", "f", {"x": 1}),)),
        Message("tool", '{"y":2}', tool_request_id="1"),
    )


def test_trace_mode_keeps_the_recording_and_the_reference(tmp_path: Path) -> None:
    said = {"user_content": {"content": "hi"}, "final_response": {"content": "hello"}}
    case = {"eval_id": "a", "eval_mode": "trace", "actual_conversation": [said]}
    with_reference = case | {"eval_id": "b", "conversation": [{"user_content": {"content": "hi"}}]}
    first, second = load_eval_set(
        write(tmp_path, "t.json", change_document("eval_cases", [case, with_reference]))
    ).cases
    assert (first.mode, first.actual, first.turns) == ("trace", (Turn(user="hi", expected="hello"),), ())
    assert (second.actual, second.turns) == (first.actual, (Turn(user="hi"),))


def test_a_scenario_is_read(tmp_path: Path) -> None:
    scenario = {"starting_prompt": "hi", "conversation_plan": "ask for a refund"}
    case = {"eval_id": "a", "conversation_scenario": scenario, "eval_mode": None}
    (loaded,) = load_eval_set(write(tmp_path, "s.json", change_document("eval_cases", [case]))).cases
    assert loaded == EvalCase(id="a", scenario=Scenario(starting_prompt="hi", plan="ask for a refund"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", 1, r"bad.json: unknown key 'colour'; known are app_name, .*, eval_set_id, name"),
        ("eval_cases.0.evalid", "x", r"eval_cases\[0\]: unknown key 'evalid' \(did you mean 'eval_id'\?\)"),
        (
            "eval_cases.0.evalId",
            "x",
            r"eval_cases\[0\]: 'evalId' is another spelling of 'eval_id', which is given too; keep one",
        ),
        (
            "eval_cases.0.conversation.0.finalRespons",
            {},
            r"eval_cases\[0\].conversation\[0\]: unknown key 'finalRespons' \(did you mean 'finalResponse'\?\)",
        ),
        (
            "eval_cases.0.conversation.0.user_content.parts.0.txt",
            "x",
            r"eval_cases\[0\].conversation\[0\].user_content.parts\[0\]: unknown key 'txt' \(did you mean 'text'\?\)",
        ),
        (
            "eval_cases.0.conversation.0.intermediate_data.tool_uses.0.arguments",
            {},
            r"intermediate_data.tool_uses\[0\]: unknown key 'arguments' \(did you mean 'args'\?\)",
        ),
        (
            "eval_cases.0.session_input.stat",
            {},
            r"eval_cases\[0\].session_input: unknown key 'stat' \(did you mean 'state'\?\)",
        ),
        ("eval_cases.0.session_input.user_id", ..., r"eval_cases\[0\].session_input.user_id: is missing"),
        ("eval_cases.0.eval_id", ..., r"eval_cases\[0\].eval_id: is missing"),
        ("eval_cases.0.eval_id", 7, r"eval_cases\[0\].eval_id: must be a string, not 7"),
        ("eval_cases.0.eval_id", "", r"eval_cases\[0\]: the id of the case is empty"),
        (
            "eval_cases.0.eval_mode",
            "replay",
            r"eval_cases\[0\]: 'eval_mode' is 'replay'; write 'trace', or leave it out",
        ),
        ("eval_cases.0.eval_mode", "trace", r"eval_cases\[0\]: a case in trace mode needs 'actual_conversation'"),
        ("eval_cases.0.actual_conversation", [INVOCATION], r"'actual_conversation' is only read in trace mode"),
        ("eval_cases.0.conversation", ..., r"eval_cases\[0\]: needs one of .*, and has neither"),
        (
            "eval_cases.0.conversation_scenario",
            {"starting_prompt": "a", "conversation_plan": "b"},
            r"eval_cases\[0\]: needs one of .*, and has both",
        ),
        ("eval_cases.0.conversation", [], r"eval_cases\[0\]: 'conversation' is empty"),
        ("eval_cases.0.conversation", "hi", r"eval_cases\[0\].conversation: must be a list, not 'hi'"),
        ("eval_cases.0.conversation.0", None, r"eval_cases\[0\].conversation\[0\]: must be an object, not null"),
        ("eval_cases.0.conversation.0.user_content", ..., r"conversation\[0\].user_content: is missing"),
        ("eval_cases.0.conversation.0.user_content", {"parts": []}, r"user_content: must hold text and nothing else"),
        (
            "eval_cases.0.conversation.0.user_content",
            {"parts": [], "content": "x"},
            r"user_content: has both 'parts' and 'content'",
        ),
        (
            "eval_cases.0.conversation.0.user_content.role",
            "robot",
            r"user_content.role: must be 'system', .* or 'tool', not 'robot'",
        ),
        (
            "eval_cases.0.conversation.0.intermediate_data.intermediate_responses.0",
            ["agent"],
            r"intermediate_responses\[0\]\[1\]: is missing",
        ),
        ("eval_cases.0.creation_timestamp", "today", r"eval_cases\[0\].creation_timestamp: must be a number"),
        ("eval_cases", [], "bad.json: has no cases"),
        ("eval_cases", {}, "eval_cases: must be a list"),
        ("eval_set_id", ..., "eval_set_id: is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, path: str, value: object, message: str) -> None:
    file = write(tmp_path, "bad.json", change_document(path, value))
    with pytest.raises(EvalSetError, match=message) as caught:
        load_eval_set(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_a_case_in_trace_mode_cannot_have_a_scenario(tmp_path: Path) -> None:
    scenario = {"starting_prompt": "a", "conversation_plan": "b"}
    case = {
        "eval_id": "a",
        "eval_mode": "trace",
        "actual_conversation": [INVOCATION],
        "conversation_scenario": scenario,
    }
    with pytest.raises(EvalSetError, match=r"eval_cases\[0\]: 'conversation_scenario' has no meaning in trace mode"):
        load_eval_set(write(tmp_path, "t.json", change_document("eval_cases", [case])))


def test_a_duplicate_id_names_both_places(tmp_path: Path) -> None:
    twice = [CASE, CASE | {"eval_id": "b"}, CASE]
    with pytest.raises(EvalSetError, match=r"eval_cases\[2\]: the id 'oslo' is already that of eval_cases\[0\]; give"):
        load_eval_set(write(tmp_path, "d.json", change_document("eval_cases", twice)))
    lines = '{"id": "a", "input": "x"}\n\n{"id": "a", "input": "y"}\n'
    with pytest.raises(EvalSetError, match=r"d.jsonl, line 3: the id 'a' is already that of line 1; give"):
        load_eval_set(write(tmp_path, "d.jsonl", lines))


def test_a_case_id_after_the_path_selects_that_case(tmp_path: Path) -> None:
    path = write(tmp_path, "d.json", change_document("eval_cases", [CASE, CASE | {"eval_id": "b:2"}]))
    selected = load_eval_set(f"{path}:b:2")
    assert ([case.id for case in selected.cases], selected.id) == (["b:2"], "weather")
    assert len(load_eval_set(str(path)).cases) == 2
    with pytest.raises(
        EvalSetError, match=r"d.json: has no case 'olso' \(did you mean 'oslo'\?\); its cases are 'oslo'"
    ):
        load_eval_set(f"{path}:olso")
    rows = write(tmp_path, "d.csv", "id,input\na,x\nb,y\n")
    assert [case.id for case in load_eval_set(f"{rows}:b").cases] == ["b"]


def test_a_file_name_may_hold_colons(tmp_path: Path) -> None:
    write(tmp_path, "C:", DOCUMENT)
    path = write(tmp_path, "C:\\evals:v2.json", DOCUMENT)
    assert load_eval_set(path) == load_eval_set(str(path)) == LOADED
    assert [case.id for case in load_eval_set(f"{path}:oslo").cases] == ["oslo"]


ROWS = [
    {"input": "2+2?", "expected": "4"},
    {"id": "json", "input": "as JSON", "expected": {"sum": [4, 1.5]}, "metadata": {"level": 2}},
    {"input": "empty", "expected": ""},
    {"input": "none", "tool_calls": []},
    {
        "id": 7,
        "turns": [
            {"input": "hi", "expected": "hello"},
            {"input": "sum", "expected": 4, "tool_calls": [{"name": "add", "arguments": {"a": 2, "b": 2}}]},
        ],
        "state": {"user": "Ada"},
        "context": [{"role": "user", "content": "earlier"}, {"role": "model", "parts": [{"text": "yes"}]}],
    },
]
ROW_CASES = (
    EvalCase(id="rows-1", turns=(Turn(user="2+2?", expected="4"),)),
    EvalCase(id="json", turns=(Turn(user="as JSON", expected='{"sum":[4,1.5]}'),), metadata={"level": 2}),
    EvalCase(id="rows-3", turns=(Turn(user="empty", expected=""),)),
    EvalCase(id="rows-4", turns=(Turn(user="none", expected_tool_calls=()),)),
    EvalCase(
        id="7",
        turns=(
            Turn(user="hi", expected="hello"),
            Turn(
                user="sum",
                expected="4",
                expected_tool_calls=(ExpectedToolCall(name="add", arguments={"a": 2, "b": 2}),),
            ),
        ),
        state={"user": "Ada"},
        context=(Message("user", "earlier"), Message("assistant", "yes")),
    ),
)


@pytest.mark.parametrize("name", ["rows.json", "rows.yaml", "rows.jsonl", "rows.ndjson"])
@pytest.mark.parametrize("with_bom", [False, True])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_plain_rows_are_read_from_every_format(tmp_path: Path, name: str, with_bom: bool, ending: bytes) -> None:
    indented = orjson.dumps(ROWS, option=orjson.OPT_INDENT_2).replace(b"\n", ending)
    raw = indented if name in ("rows.json", "rows.yaml") else ending.join(orjson.dumps(row) for row in ROWS)
    path = write(tmp_path, name, b"\xef\xbb\xbf" * with_bom + raw + ending)
    assert load_eval_set(path) == EvalSet(id="rows", cases=ROW_CASES)


def test_rows_may_be_under_cases_with_an_id(tmp_path: Path) -> None:
    text = "id: sums\nname: Sums\ncases:\n- input: 2+2?\n  expected: '4'\n"
    expected = EvalSet(id="sums", name="Sums", cases=(EvalCase(id="sums-1", turns=(Turn(user="2+2?", expected="4"),)),))
    assert load_eval_set(write(tmp_path, "rows.yml", text)) == expected
    rows = {"id": "sums", "name": "Sums", "cases": [{"input": "2+2?", "expected": "4"}]}
    assert load_eval_set(write(tmp_path, "rows.json", rows)) == expected


def test_line_separators_inside_a_json_line_do_not_split_it(tmp_path: Path) -> None:
    path = write(tmp_path, "u.jsonl", '{"input": "a\u2028b\x85c"}\n')
    assert load_eval_set(path).cases[0].turns[0].user == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("yes", "yes"),
        ("NO", "NO"),
        ("true", "true"),
        ("2024-05-01", "2024-05-01"),
        ("12:30", "12:30"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("12345678901234567890123", "12345678901234567890123"),
        (".inf", ".inf"),
        ("-3", "-3"),
        ("1.25", "1.25"),
        ("[1, {a: yes}]", '[1,{"a":"yes"}]'),
        ("''", ""),
        ("", None),
        ("null", None),
        ("|\n    two\n    lines\n", "two\nlines\n"),
    ],
)
def test_yaml_values_stay_what_was_written(tmp_path: Path, written: str, expected: str | None) -> None:
    path = write(tmp_path, "y.yaml", f"- input: x\n  expected: {written}")
    assert load_eval_set(path).cases[0].turns[0].expected == expected


def test_yaml_anchors_and_merges_are_followed(tmp_path: Path) -> None:
    text = "- &first {input: a, metadata: &m {level: 1}}\n- {<<: *first, input: b}\n- {input: c, metadata: *m}\n"
    cases = load_eval_set(write(tmp_path, "y.yaml", text)).cases
    assert [(case.turns[0].user, case.metadata) for case in cases] == [(user, {"level": 1}) for user in "abc"]


BOMB = "- &a0 [x, x]\n" + "".join(f"- &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


MERGES = "".join(["- &m0 {a: 1}\n", *(f"- &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 20)}]}}\n" for n in range(1, 13))])
"""283 bytes of such levels took seconds, and each further one ten times longer."""
WIDE_MERGES = f"- &m {{{', '.join(f'k{n}: 1' for n in range(500))}}}\n" + "- {<<: *m}\n" * 300
LONG_TEXTS = f"- &t {'x' * 100_000}\n" + "- *t\n" * 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- input: [a\n- b: }", r"y.yaml, line 2: is not valid YAML: "),
        ("- input: a\n\tb: c", r"y.yaml, line 2: is not valid YAML: "),
        ("- input: \x01", r"y.yaml: is not valid YAML: .*control characters|y.yaml: is not valid YAML: .*special char"),
        ("a: 1\n---\nb: 2", r"y.yaml, line 2: is not valid YAML: but found another document"),
        ("- input: !!python/name:os.system", r"y.yaml, line 1: is not valid YAML: could not determine a constructor"),
        ("- input: !!timestamp 2024-05-01", r"could not determine a constructor"),
        ("- input: !!int five", r"y.yaml: holds a tagged value that cannot be read"),
        ("- input: !!bool maybe", r"y.yaml: holds a tagged value that cannot be read"),
        ("- {input: a, metadata: {1: b}}", r"y.yaml: the key 1 is not text; put it in quotes"),
        ("- {input: a, metadata: {b: 1e999}}", r"y.yaml: holds the number inf"),
        ("- {input: a, metadata: {b: !!int 99999999999999999999}}", r"y.yaml: \[0\]: case 'y-1' holds a value that"),
        ("[" * 3_000, r"y.yaml: is nested more than 100 levels deep"),
        ("- " * 3_000, r"y.yaml: is nested more than 100 levels deep"),
        ("- &a [*a]", r"y.yaml: holds more than 1000000 values, or an alias that holds itself"),
        (MERGES, r"y.yaml, line 4: is not valid YAML: `<<` merges more than 100000 keys in total"),
        (WIDE_MERGES, r"y.yaml, line 1: is not valid YAML: `<<` merges more than 100000 keys in total"),
        (LONG_TEXTS, r"y.yaml: holds more than 50000000 characters with its aliases"),
        (BOMB, r"y.yaml: holds more than 1000000 values"),
        ("# nothing", r"y.yaml: is not an eval set"),
        ("- input: a\n  input: b", r"y.yaml, line 2: the key 'input' is given twice; keep one of them"),
        ("- {input: a, metadata: {b: [{c: 1}], 'b': 2}}", r"y.yaml, line 1: the key 'b' is given twice"),
        ("- {input: a, expect: b}", r"y.yaml: \[0\]: unknown key 'expect' \(did you mean 'expected'\?\)"),
        (
            "- {input: a, evaluations: [{metric: numeric}]}",
            r"y.yaml: \[0\]: 'evaluations': metrics of a single case are not supported; every metric scores every case",
        ),
        ("- turns: [{input: a, evaluations: []}]", r"turns\[0\]: 'evaluations': metrics of a single case are not"),
        ("cases: [{inptu: a}]", r"y.yaml: cases\[0\]: unknown key 'inptu' \(did you mean 'input'\?\)"),
    ],
)
def test_bad_yaml_is_a_typed_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        load_eval_set(write(tmp_path, "y.yaml", text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"is not valid JSON: .* at column 2; write one object a line"),
        ('{"input": NaN}', "is not valid JSON"),
        ("17", "must be an object, not 17"),
        ('{"expected": "x"}', "'input' is missing"),
        ('{"input": 5}', "input: must be a string, not 5"),
        ('{"input": "a", "inputs": 5}', r"unknown key 'inputs' \(did you mean 'input'\?\)"),
        ('{"input": "a", "id": true}', "id: must be a string, not true"),
        ('{"input": "a", "metadata": "x"}', "metadata: must be an object, not 'x'"),
        ('{"input": "a", "state": []}', "state: must be an object, not a list of 0"),
        ('{"input": "a", "context": ["x"]}', r"context\[0\]: must be an object"),
        ('{"input": "a", "tool_calls": [{"args": {}}]}', r"tool_calls\[0\]: unknown key 'args'"),
        ('{"input": %s}' % ("[" * 1000 + "]" * 1000), "input: must be a string, not a list of 1"),
        ('{"turns": []}', "'turns' is empty"),
        ('{"turns": [{"expected": "x"}]}', r"turns\[0\].input: is missing"),
        ('{"turns": [{"input": "x"}], "expected": "y"}', "'expected' is given next to 'turns'; move it into"),
        ('{"input": "a", "expected": %s}' % ("[" * 400 + "]" * 400), "expected: cannot be written as JSON: "),
        ('{"input": "a", "state": {"a": %s}}' % ("[" * 400 + "]" * 400), "case 'bad-2' holds a value that cannot"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, "bad.jsonl", f'{{"input": "good"}}\n\n{line}\n')
    with pytest.raises(EvalSetError, match=message) as caught:
        load_eval_set(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_csv_is_read_with_quotes_and_metadata(tmp_path: Path) -> None:
    text = (
        'id,input,expected,metadata,metadata.source\r\na,"two\r\nlines, ""quoted""",4,"{""level"": 2}",web\r\n'
        ',5" disk,,,\r\n,,,,\r\n\r\nc,x,"",,"a b"'
    )
    assert load_eval_set(write(tmp_path, "t.csv", text)).cases == (
        EvalCase(
            id="a",
            turns=(Turn(user='two\r\nlines, "quoted"', expected="4"),),
            metadata={"level": 2, "source": "web"},
        ),
        EvalCase(id="t-2", turns=(Turn(user='5" disk'),)),
        EvalCase(id="c", turns=(Turn(user="x", expected=""),), metadata={"source": "a b"}),
    )


cells = st.text(st.sampled_from('ab",\n\r é;'), max_size=8)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_csv_written_by_the_csv_module_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    import csv

    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("input", "expected"), *rows])
    kept = [row for row in rows if any(not cell.isspace() for cell in row)]  # a row of blanks is a blank row
    if not kept:
        with pytest.raises(EvalSetError, match="has no cases"):
            load_eval_set(path)
        return
    turns = [case.turns[0] for case in load_eval_set(path).cases]
    assert [(turn.user, turn.expected) for turn in turns] == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na,b\n", r"t.csv, line 1: 'question' is not a known column; known are id, input, .*metadata"),
        ("inputs,expected\na,b\n", r"t.csv, line 1: 'inputs' .* \(did you mean 'input'\?\)"),
        ("id,expected\na,b\n", r"t.csv, line 1: there is no column 'input', only 'id', 'expected'"),
        ("input,input\na,b\n", r"t.csv, line 1: the column 'input' occurs twice"),
        (",\n", r"t.csv: there is no column 'input', only empty cells"),
        ("input,expected\n", r"t.csv: has no cases"),
        ('input,expected\n"a\n\nb",c\nd,e,f\n', r"t.csv, line 5: has 3 cells, and the header has 2"),
        ('input,expected\na,b\n"c,d\n', r"t.csv, line 3: has a quote that is not closed"),
        ('input,expected\n"a"b,c\n', r"t.csv, line 2: has a quote that is not closed, or text after"),
        ("input,expected\n,b\n", r"t.csv, line 2: 'input' is missing"),
        ("input,metadata\na,{x\n", r"t.csv, line 2: metadata: is not valid JSON: .*; got '{x'"),
        ("input,metadata\na,[]\n", r"t.csv, line 2: metadata: must be an object, not a list of 0"),
        ('input,metadata,metadata.x\na,"{""x"": 1}",2\n', r"line 2: metadata 'x' is given by .* and by 'metadata.x'"),
        ("id,input\na,b\na,c\n", r"t.csv, line 3: the id 'a' is already that of line 2"),
    ],
)
def test_bad_csv_is_a_typed_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        load_eval_set(write(tmp_path, "t.csv", text))


@pytest.mark.parametrize("name", ["f.json", "f.jsonl", "f.csv", "f.yaml"])
def test_files_without_text_are_typed_errors(tmp_path: Path, name: str) -> None:
    for raw in (b"", b"\xef\xbb\xbf", b" \r\n\n"):
        with pytest.raises(EvalSetError, match=f"{name}: is empty; write at least one case"):
            load_eval_set(write(tmp_path, name, raw))
    with pytest.raises(EvalSetError, match=f"{name}, line 2: invalid UTF-8 at byte 6 of the file; save it as UTF-8"):
        load_eval_set(write(tmp_path, name, b"input\n\xff\n"))
    with pytest.raises(EvalSetError, match=f"{name}: is UTF-16 text; save it as UTF-8"):
        load_eval_set(write(tmp_path, name, "input".encode("utf-16")))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"eval_set_id": "a",\n "eval_cases": oops}', r"f.json, line 2: is not valid JSON: .* at column"),
        (
            b'{"input": "a"}\n{"input": "b"}',
            r"f.json, line 2: is not valid JSON: .*\(files of JSON lines end in .jsonl\)",
        ),
        (b"[" * 100_000, r"f.json, line 1: is not valid JSON"),
        (b'{"hello": 1}', r"f.json: is not an eval set: expected "),
        (b"17", r"f.json: is not an eval set"),
        (b"[]", r"f.json: has no cases"),
        (b"[17]", r"f.json: \[0\]: must be an object, not 17"),
    ],
)
def test_json_that_is_not_an_eval_set_is_an_error(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        load_eval_set(write(tmp_path, "f.json", raw))


def test_files_that_cannot_be_opened_say_so(tmp_path: Path) -> None:
    with pytest.raises(
        EvalSetError, match=r"missing.json:a: cannot be read: No such file or directory; check the path"
    ):
        load_eval_set(tmp_path / "missing.json:a")
    with pytest.raises(EvalSetError, match="cannot be read: Is a directory"):
        load_eval_set(tmp_path)
    with pytest.raises(EvalSetError, match=r"cannot be read: .*null byte"):
        load_eval_set("a\0.json")
    with pytest.raises(EvalSetError, match=r"the suffix '.txt' is not a known format; known are .json, .jsonl"):
        load_eval_set(write(tmp_path, "f.txt", "hello"))


ids = st.none() | texts
calls = st.builds(ExpectedToolCall, name=texts, arguments=json_values, result=json_values, id=ids)
turns = st.builds(
    Turn,
    user=texts,
    expected=st.none() | texts,
    expected_tool_calls=st.none() | st.lists(calls, max_size=4).map(tuple),
    id=texts,
)
requests = st.lists(st.builds(ToolRequest, id=texts, name=texts, arguments=json_values), max_size=2).map(tuple)
messages = st.builds(
    Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts, tool_requests=requests
) | st.builds(Message, role=st.just("tool"), content=texts, tool_request_id=ids)
objects = st.dictionaries(texts, json_values, max_size=2)
common: dict[str, st.SearchStrategy[Any]] = {
    "id": texts.filter(bool),
    "context": st.lists(messages, max_size=3).map(tuple),
    "state": objects,
    "metadata": objects,
}
some_turns = st.lists(turns, min_size=1, max_size=3).map(tuple)
cases = (
    st.builds(EvalCase, turns=some_turns, **common)
    | st.builds(EvalCase, scenario=st.builds(Scenario, starting_prompt=texts, plan=texts), **common)
    | st.builds(
        EvalCase, mode=st.just("trace"), actual=some_turns, turns=st.lists(turns, max_size=2).map(tuple), **common
    )
)
eval_sets = st.builds(
    EvalSet,
    id=texts,
    name=texts,
    description=texts,
    cases=st.lists(cases, min_size=1, max_size=3, unique_by=lambda case: case.id).map(tuple),
)


@pytest.mark.slow
@given(eval_sets)
def test_a_dumped_eval_set_loads_as_an_equal_one(tmp_path_factory: pytest.TempPathFactory, eval_set: EvalSet) -> None:
    path = tmp_path_factory.mktemp("dump") / "set.json"
    path.write_bytes(dump_eval_set(eval_set))
    assert load_eval_set(path) == eval_set


def test_a_dump_has_the_evalset_format() -> None:
    assert orjson.loads(dump_eval_set(LOADED)) == {
        "eval_set_id": "weather",
        "name": "Weather",
        "description": "One case",
        "eval_cases": [
            {
                "eval_id": "oslo",
                "conversation": [
                    {
                        "invocation_id": "i-1",
                        "user_content": {"parts": [{"text": "weather in Oslo?"}], "role": "user"},
                        "final_response": {"parts": [{"text": "4 °C"}], "role": "model"},
                        "intermediate_data": {
                            "tool_uses": [{"id": "t1", "name": "get_weather", "args": {"city": "Oslo"}}],
                            "tool_responses": [{"id": "t1", "name": "get_weather", "response": {"celsius": 4}}],
                        },
                    }
                ],
                "session_input": {"app_name": "promptiter", "user_id": "user", "state": {"user_name": "Ada"}},
                "context_messages": [
                    {"parts": [{"text": "Be short."}], "role": "system"},
                    {"parts": [{"text": "Hi"}], "role": "model"},
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (EvalCase(id="a"), r"eval set 's': eval_cases\[0\]: needs one of"),
        (EvalCase(id="", turns=(Turn(user="x"),)), "the id of the case is empty"),
        (EvalCase(id="a", turns=(Turn(user="x"),), metadata={"n": math.nan}), "'s' holds a NaN or infinite number"),
        (EvalCase(id="a", turns=(Turn(user="x"),), state={"n": 2**70}), "'s' holds a value that JSON cannot"),
        (EvalCase(id="a", turns=(Turn(user="\ud800"),)), "'s' holds a value that JSON cannot"),
        (
            EvalCase(id="a", turns=(Turn(user="x"),), context=(Message("user", "y", tool_request_id="1"),)),
            "case 'a' of eval set 's' cannot be written in this format",
        ),
    ],
)
def test_a_case_that_the_format_cannot_represent_is_an_error(case: EvalCase, message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        dump_eval_set(EvalSet(id="s", cases=(case,)))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the neighbours' example files are not at {SHARED}")
def test_trpc_eval_sets_are_read() -> None:
    paths = sorted(SHARED.glob("trpc_*/*.evalset.json"))
    assert len(paths) >= 6
    for path in paths:
        eval_set = load_eval_set(path)
        assert len(eval_set.cases) == len(orjson.loads(path.read_bytes())["eval_cases"])
        assert all(turn.user and turn.expected for case in eval_set.cases for turn in case.turns)


def test_rows_in_python_give_the_cases_of_a_file(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"input": "2 + 2?", "expected": 4},
        {"id": "sum", "input": "3 + 3?", "expected": "6", "metadata": {"x": 1}},
    ]
    (tmp_path / "train.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert build_eval_set("train", rows) == load_eval_set(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "eval set 'train': has no cases"),
        ([{"inptu": "2 + 2?"}], "eval set 'train': [0]: unknown key 'inptu' (did you mean 'input'?)"),
        ([{"id": "a", "input": "1"}, {"id": "a", "input": "2"}], "the id 'a' is already that of [0]"),
    ],
)
def test_wrong_rows_in_python_are_named(rows: list[dict[str, str]], message: str) -> None:
    with pytest.raises(EvalSetError) as caught:
        build_eval_set("train", rows)
    assert message in str(caught.value)
