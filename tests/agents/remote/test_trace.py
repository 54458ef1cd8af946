"""Traces in the answers of remote agents: our JSON and OpenTelemetry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents.remote.messages import RemoteRun, RunAnswer, read_message
from promptiter.agents.remote.trace import read_trace
from promptiter.errors import ServiceError
from traces import Edge, ExecutionTrace, Failure, Snapshot, Step, ToolCall, Usage, digest, write_otel
from traces.documents import to_json

VALUES = {"note#instruction": "Take notes.", "answer#instruction": "Answer."}
TRACE = ExecutionTrace(
    id="tea~0",
    steps=(
        Step(
            id="note",
            node_id="note",
            kind="llm",
            surface_reads={"note#instruction": digest("Take notes.")},
            input=Snapshot("tea?"),
            output=Snapshot("a note", {"a": 1}),
            usage=Usage(input_tokens=3, output_tokens=2),
            start_ns=5,
            end_ns=9,
        ),
        Step(
            id="answer",
            node_id="answer",
            kind="llm",
            predecessors=("note",),
            edges=(Edge(source="note", kind="data"),),
            tool_calls=(ToolCall(name="menu", arguments={"day": 1}, result="none"),),
            error=Failure("KeyError", "tea"),
            attributes={"mode": "fast"},
        ),
    ),
    status="failed",
)


def read(**fields: Any) -> ExecutionTrace | None:
    run = read_message(RunAnswer, orjson.dumps({"run": {"output": "x", **fields}}), sender="the agent").run
    return read_trace(run, VALUES, nodes=["note", "answer"], sender="the agent")


def test_a_trace_as_promptiter_writes_it_is_read_unchanged() -> None:
    assert read(trace=orjson.loads(to_json(TRACE))) == TRACE


@pytest.mark.parametrize("usage", [Usage(input_tokens=-1), Usage(cost_usd=-0.5), Usage(cost_usd=1e300)])
def test_the_usage_of_a_step_is_possible(usage: Usage, tmp_path: Path) -> None:
    wrong = replace(TRACE, steps=(replace(TRACE.steps[0], usage=usage), *TRACE.steps[1:]))
    with pytest.raises(ServiceError, match=r"run.trace.steps\[0\].usage"):
        read(trace=orjson.loads(to_json(wrong)))
    write_otel(tmp_path / "spans.json", [wrong])
    with pytest.raises(ServiceError, match="the usage of step 'note' is wrong"):
        read(otlp=orjson.loads((tmp_path / "spans.json").read_bytes()))


def test_surfaces_that_a_step_names_were_read_with_the_values_that_were_sent() -> None:
    found = read(trace={"steps": [{"step_id": "a", "node_id": "note", "surface_reads": ["note#instruction"]}]})
    assert found is not None
    assert found.steps[0].surface_reads == {"note#instruction": digest("Take notes.")}


def test_reads_are_unknown_unless_they_are_stated() -> None:
    steps = [{"step_id": "a", "node_id": "note"}, {"step_id": "b", "node_id": "x", "surface_reads": []}]
    found = read(trace={"steps": steps})
    assert found is not None
    assert [step.surface_reads for step in found.steps] == [None, {}]


def test_spans_are_read_as_a_trace(tmp_path: Any) -> None:
    path = tmp_path / "spans.json"
    write_otel(path, [TRACE])
    found = read(otlp=orjson.loads(path.read_bytes()))
    assert found is not None
    assert [(step.id, step.surface_reads) for step in found.steps] == [
        ("note", {"note#instruction": digest("Take notes.")}),
        ("answer", None),
    ]


def spans(*each: dict[str, Any]) -> dict[str, Any]:
    common = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "kind": 1,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "9",
    }
    listed = [
        {
            **common,
            "spanId": f"b7ad6b716920333{number}",
            "name": attributes["name"],
            "attributes": [
                {"key": key, "value": {"stringValue": value}} for key, value in attributes.items() if key != "name"
            ],
        }
        for number, attributes in enumerate(each)
    ]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "desk"}, "spans": listed}]}]}


def test_spans_need_only_the_name_of_their_node_and_read_what_is_unknown() -> None:
    found = read(otlp=spans({"name": "a", "promptiter.node.id": "note"}, {"name": "b", "promptiter.node.id": "answer"}))
    assert found is not None
    assert [(step.node_id, step.surface_reads) for step in found.steps] == [("note", None), ("answer", None)]


def test_reads_that_were_recovered_from_spans_of_a_framework_are_not_all_reads() -> None:
    span = {"name": "invoke_agent note", "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "note"}
    found = read(otlp=spans({**span, "gen_ai.request.model": "clerk"}))
    assert found is not None
    assert [(step.node_id, step.surface_reads) for step in found.steps] == [("note", None)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"trace": {"steps": [{"step_id": "a", "node_id": "note"}]}, "otlp": {}}, "`trace` and with `otlp`; send one"),
        (
            {"trace": {"steps": [{"step_id": "a", "node_id": "a", "predecessor_step_ids": ["b"]}]}},
            "a trace that cannot be used: .*'b'",
        ),
        (
            {"trace": {"steps": [{"step_id": "a", "node_id": "a", "surface_reads": ["notes#instruction"]}]}},
            "unknown .did you mean 'note#instruction'",
        ),
        (
            {"trace": {"steps": [{"step_id": "a", "node_id": "a", "surface_reads": {"note#instruction": "0"}}]}},
            "step 'a' read another value of 'note#instruction' than it was sent",
        ),
        (
            {"trace": {"steps": [{"step_id": "a", "node_id": "x"}]}},
            "its steps are of x; the nodes are answer, note",
        ),
        ({"otlp": {"spans": 3}}, "a trace that cannot be used"),
        ({"otlp": {"resourceSpans": []}}, "has 0 traces; send the spans of one run"),
    ],
)
def test_a_trace_that_cannot_be_used_is_an_error_in_words(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServiceError, match=f"the agent answered with .*{problem}"):
        read(**fields)


def test_an_agent_may_send_no_trace() -> None:
    assert read_trace(RemoteRun(output="x"), VALUES, nodes=["note"], sender="the agent") is None
