from __future__ import annotations

import base64
import gzip
import math
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.traces.strategies import traces
from traces import (
    CycleError,
    DuplicateStepError,
    ExecutionTrace,
    Failure,
    Snapshot,
    Step,
    ToolCall,
    TraceError,
    UnknownConventionError,
    UnknownPredecessorError,
    UnreadableTraceError,
    UnwritableTraceError,
    Usage,
    read_otel,
    write_otel,
)

TWO_STEPS = ExecutionTrace(
    id="t",
    conversation_id="thread-1",
    steps=(
        Step(
            id="plan",
            node_id="plan",
            kind="llm",
            input=Snapshot(data=[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]),
            usage=Usage(input_tokens=5, output_tokens=2, cost_usd=0.1),
            surface_reads={"plan#instruction": "abc"},
            start_ns=10,
            end_ns=20,
            attributes={"gen_ai.request.model": "some-model"},
        ),
        Step(
            id="answer",
            node_id="answer",
            predecessors=("plan",),
            tool_calls=(ToolCall(name="search", arguments={"q": "x"}, result=[1]),),
            error=Failure("ValueError", "no"),
            start_ns=20,
            end_ns=30,
        ),
    ),
)


def spans_of(path: Path) -> list[dict[str, Any]]:
    return [
        span
        for line in path.read_bytes().splitlines()
        for resource in orjson.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def one_line(spans: list[dict[str, Any]]) -> bytes:
    return (
        orjson.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "promptiter"}, "spans": spans}]}]}) + b"\n"
    )


def attribute(span: dict[str, Any], key: str) -> dict[str, Any] | None:
    return next((item["value"] for item in span["attributes"] if item["key"] == key), None)


def set_attribute(span: dict[str, Any], key: str, value: dict[str, Any] | None) -> None:
    span["attributes"] = [item for item in span["attributes"] if item["key"] != key]
    if value is not None:
        span["attributes"].append({"key": key, "value": value})


@pytest.fixture
def spans(tmp_path: Path) -> list[dict[str, Any]]:
    """The root, plan, answer and tool call spans of TWO_STEPS, to be damaged."""
    write_otel(tmp_path / "good.jsonl", [TWO_STEPS])
    return spans_of(tmp_path / "good.jsonl")


@pytest.mark.slow
@given(st.lists(traces(max_steps=6), max_size=3, unique_by=lambda trace: trace.id))
def test_traces_survive_an_otlp_round_trip(
    tmp_path_factory: pytest.TempPathFactory, many: list[ExecutionTrace]
) -> None:
    folder = tmp_path_factory.mktemp("otlp")
    for name in ("spans.jsonl", "spans.pb", "spans.pb.gz"):
        count = write_otel(folder / name, many)
        assert count == sum(1 + len(trace.steps) + sum(len(step.tool_calls) for step in trace.steps) for trace in many)
        assert read_otel(folder / name) == many
        assert read_otel((folder / name).read_bytes()) == many


@pytest.mark.slow
@given(traces(max_steps=8), st.integers())
def test_spans_may_come_in_any_order_and_twice(
    tmp_path_factory: pytest.TempPathFactory, trace: ExecutionTrace, seed: int
) -> None:
    path = tmp_path_factory.mktemp("otlp") / "spans.jsonl"
    write_otel(path, [trace])
    rng = random.Random(seed)
    found = spans_of(path)
    found += rng.sample(found, len(found) // 2)
    rng.shuffle(found)
    lines = [one_line(found[start : start + 3]) for start in range(0, len(found), 3)]
    assert read_otel(b"".join(lines)) == [trace]


@pytest.mark.slow
@given(traces(max_steps=8))
def test_links_alone_are_enough(tmp_path_factory: pytest.TempPathFactory, trace: ExecutionTrace) -> None:
    path = tmp_path_factory.mktemp("otlp") / "spans.jsonl"
    write_otel(path, [trace])
    found = spans_of(path)
    for span in found:
        set_attribute(span, "promptiter.step.predecessors", None)
    assert read_otel(one_line(found)) == [trace]


@pytest.mark.slow
@given(traces(max_steps=8))
def test_the_attribute_alone_is_enough(tmp_path_factory: pytest.TempPathFactory, trace: ExecutionTrace) -> None:
    path = tmp_path_factory.mktemp("otlp") / "spans.jsonl"
    write_otel(path, [trace])
    found = spans_of(path)
    for span in found:
        span.pop("links", None)
    assert read_otel(one_line(found)) == [trace]


def test_protobuf_is_one_export_request_also_when_written_in_batches(tmp_path: Path) -> None:
    many = [ExecutionTrace(id=f"t{n}", steps=(Step(id="a", node_id="a"),)) for n in range(600)]
    write_otel(tmp_path / "spans.pb", many)
    request = ExportTraceServiceRequest.FromString((tmp_path / "spans.pb").read_bytes())
    assert sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans) == 1200
    assert len(request.resource_spans) == 3
    assert read_otel(request.SerializeToString()) == many


def test_length_prefixed_batches_of_a_collector_are_read(tmp_path: Path) -> None:
    write_otel(tmp_path / "spans.pb", [TWO_STEPS])
    raw = (tmp_path / "spans.pb").read_bytes()
    assert read_otel(len(raw).to_bytes(4, "big") + raw) == [TWO_STEPS]


def test_one_pretty_request_and_a_list_of_requests_are_read(spans: list[dict[str, Any]]) -> None:
    request = orjson.loads(one_line(spans))
    assert read_otel(orjson.dumps(request, option=orjson.OPT_INDENT_2)) == [TWO_STEPS]
    assert read_otel(orjson.dumps([request], option=orjson.OPT_INDENT_2)) == [TWO_STEPS]
    assert read_otel(gzip.compress(one_line(spans))) == [TWO_STEPS]


def test_model_calls_carry_genai_attributes(spans: list[dict[str, Any]]) -> None:
    plan, answer, tool = spans[1:]
    assert plan["name"] == "chat some-model"
    assert attribute(plan, "gen_ai.operation.name") == {"stringValue": "chat"}
    assert attribute(plan, "gen_ai.usage.input_tokens") == {"intValue": "5"}
    assert attribute(plan, "gen_ai.input.messages") is not None
    assert attribute(plan, "promptiter.step.input.data") is None
    assert answer["status"] == {"code": 2, "message": "no"}
    assert answer["links"] == [{"traceId": plan["traceId"], "spanId": plan["spanId"]}]
    assert attribute(answer, "promptiter.step.predecessors") == {"arrayValue": {"values": [{"stringValue": "plan"}]}}
    assert tool["parentSpanId"] == answer["spanId"]
    assert attribute(tool, "gen_ai.tool.name") == {"stringValue": "search"}


def test_spans_made_by_hand_need_only_a_node_id() -> None:
    def by_hand(number: int, node: str, *links: int) -> dict[str, Any]:
        return {
            "traceId": "AB" * 16,
            "spanId": f"{number:016X}",
            "name": node,
            "startTimeUnixNano": number,
            "endTimeUnixNano": str(number + 1),
            "attributes": [{"key": "promptiter.node.id", "value": {"stringValue": node}}],
            "links": [{"traceId": "ab" * 16, "spanId": f"{link:016x}"} for link in links],
        }

    [trace] = read_otel(one_line([by_hand(2, "plan", 1), by_hand(1, "plan"), by_hand(3, "end", 1, 2)]))
    assert [(step.id, step.predecessors) for step in trace.steps] == [
        ("plan", ()),
        ("plan~2", ("plan",)),
        ("end", ("plan", "plan~2")),
    ]
    assert trace.status == "incomplete"  # its root span is missing


def test_spans_that_are_not_steps_are_counted(spans: list[dict[str, Any]]) -> None:
    foreign = {"traceId": spans[0]["traceId"], "spanId": "f" * 16, "parentSpanId": spans[1]["spanId"], "name": "GET /"}
    [trace] = read_otel(one_line([*spans, foreign]))
    assert trace.attributes == {"promptiter.skipped_spans": 1}
    assert trace.steps == TWO_STEPS.steps


def test_several_of_our_traces_inside_one_otlp_trace(spans: list[dict[str, Any]], tmp_path: Path) -> None:
    other = ExecutionTrace(id="other", steps=(Step(id="plan", node_id="plan", start_ns=5, end_ns=6),))
    write_otel(tmp_path / "other.jsonl", [other])
    request = {"traceId": "c" * 32, "spanId": "d" * 16, "name": "POST /chat"}
    moved = [request, *spans, *spans_of(tmp_path / "other.jsonl")]
    for span in moved:
        span["traceId"] = "c" * 32
        for link in span.get("links", ()):
            link["traceId"] = "c" * 32
        if "parentSpanId" not in span and span is not request:
            span["parentSpanId"] = "d" * 16
    assert read_otel(one_line(moved)) == [other, TWO_STEPS]


def test_unknown_spans_are_rejected_and_their_scope_named() -> None:
    raw = one_line([{"traceId": "a" * 32, "spanId": "b" * 16, "name": "x"}]).replace(b"promptiter", b"some.library")
    with pytest.raises(UnknownConventionError, match=r"some\.library"):
        read_otel(raw)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("promptiter.node.id", {"intValue": "7"}, "node.id must be text, got 7"),
        ("promptiter.step.id", {"boolValue": True}, "step.id must be text, got True"),
        ("promptiter.step.kind", {"stringValue": "odd"}, r"must be one of agent, function, llm, tool, got 'odd'"),
        ("promptiter.step.predecessors", {"stringValue": "plan"}, "a list of step ids, got 'plan'"),
        (
            "promptiter.step.predecessors",
            {"arrayValue": {"values": [{"intValue": 1}]}},
            r"a list of step ids, got \[1\]",
        ),
        ("promptiter.step.surface_reads", {"stringValue": "{oops"}, "JSON is malformed"),
        ("promptiter.step.surface_reads", {"stringValue": "[]"}, "Expected `object`, got `array`"),
        ("promptiter.step.input.text", {"doubleValue": 1.5}, "must be text, got 1.5"),
        ("promptiter.step.input.data", {"stringValue": "nope"}, "must be JSON"),
        ("promptiter.step.input.blobs", {"stringValue": '[{"size": 1}]'}, "digest"),
        ("promptiter.step.surface_reads", {"stringValue": '{"a": 5}'}, "Expected `str`, got `int`"),
        ("promptiter.step.edges", {"stringValue": '[{"colour": 1}]'}, "missing required field `source`"),
        ("promptiter.step.edges", {"stringValue": '[{"source": "plan", "kind": "odd"}]'}, "Invalid enum value 'odd'"),
        ("gen_ai.usage.input_tokens", {"stringValue": "many"}, "a whole number, got 'many'"),
        ("promptiter.usage.cost_usd", {"stringValue": "much"}, "a number, got 'much'"),
    ],
)
def test_invalid_attributes_are_named_with_their_span(
    tmp_path: Path, spans: list[dict[str, Any]], key: str, value: dict[str, Any], message: str
) -> None:
    set_attribute(spans[2], key, value)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(one_line(spans[:2]) + one_line(spans[2:]))
    with pytest.raises(UnreadableTraceError, match=message) as caught:
        read_otel(path)
    assert str(caught.value).startswith(f"{path}, line 2: span 'answer'")


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (1, {"traceId": None}, "traceId"),
        (1, {"traceId": "abcd" * 9}, "is not an id of 32 hex digits"),
        (1, {"traceId": "x" * 32}, "is not an id of 32 hex digits"),
        (1, {"startTimeUnixNano": -5}, "-5 is not a time"),
        (1, {"startTimeUnixNano": "1_0"}, "'1_0' is not a time"),
        (1, {"endTimeUnixNano": str(10**40)}, "is not a time"),
        (1, {"attributes": [{"key": "a", "value": {"bytesValue": "!!!"}}]}, "base64"),
        (1, {"spanId": ""}, "is not an id of 16 hex digits"),
        (1, {"attributes": "none"}, "attributes"),
        (1, {"startTimeUnixNano": "noon"}, "noon"),
        (1, {"links": [{"spanId": "a"}]}, "traceId"),
    ],
)
def test_invalid_spans_are_rejected(
    spans: list[dict[str, Any]], index: int, change: dict[str, Any], message: str
) -> None:
    spans[index].update(change)
    with pytest.raises(UnreadableTraceError, match=message) as caught:
        read_otel(one_line(spans))
    assert "<bytes>, line 1" in str(caught.value)


def test_a_missing_id_is_rejected(spans: list[dict[str, Any]]) -> None:
    del spans[2]["spanId"]
    with pytest.raises(UnreadableTraceError, match=r"missing required field `spanId` - at .*spans\[2\]"):
        read_otel(one_line(spans))


def test_broken_graphs_name_the_step_and_its_line(tmp_path: Path, spans: list[dict[str, Any]]) -> None:
    path = tmp_path / "bad.jsonl"

    def read_with(step_id: str, *predecessors: str) -> None:
        values = [{"stringValue": source} for source in predecessors]
        set_attribute(spans[2], "promptiter.step.id", {"stringValue": step_id})
        set_attribute(spans[2], "promptiter.step.predecessors", {"arrayValue": {"values": values}})
        path.write_bytes(one_line(spans[:2]) + one_line(spans[2:]))
        read_otel(path)

    expected: list[tuple[type[TraceError], tuple[str, ...]]] = [
        (DuplicateStepError, ("plan",)),
        (UnknownPredecessorError, ("answer", "missing")),
        (CycleError, ("answer", "answer")),
    ]
    for kind, arguments in expected:
        with pytest.raises(kind) as caught:
            read_with(*arguments)
        assert str(caught.value).startswith(f"{path}, line ")


def test_different_spans_with_one_id_are_rejected(spans: list[dict[str, Any]]) -> None:
    other = spans[1] | {"name": "other"}
    with pytest.raises(UnreadableTraceError, match="occurs twice with different content"):
        read_otel(one_line([*spans, other]))


@pytest.mark.parametrize("cut", [1, 40, 300, -1, -30])
def test_errors_in_truncated_files_name_the_place(tmp_path: Path, cut: int) -> None:
    for name, place in (("spans.jsonl", "line 1"), ("spans.pb", "byte 0")):
        write_otel(tmp_path / name, [TWO_STEPS])
        raw = (tmp_path / name).read_bytes().rstrip(b"\n")[:cut]
        with pytest.raises(UnreadableTraceError, match=place):
            read_otel(raw)


def test_bytes_that_are_not_an_export_are_rejected() -> None:
    framed_zeros, huge = b"\0" * 100, b"\x0a" + b"\xff" * 9 + b"\x7f"
    for raw in (
        framed_zeros,
        b"\0",
        huge,
        b"\x0a" + b"\xff" * 5 + b"\x7f",
        "{}".encode("utf-16"),
        b"hello world, this is not a trace",
        b"\x0a\x05\xff\xff\xff\xff\xff",
        b'{"data": []}',
        b"[1]",
        b"\xff\xfe{",
    ):
        with pytest.raises(UnreadableTraceError):
            read_otel(raw)
    assert read_otel(b"") == []


def test_invalid_utf8_errors_name_the_byte(spans: list[dict[str, Any]]) -> None:
    raw = one_line(spans).replace(b"thread-1", b"thread-\xff")
    with pytest.raises(UnreadableTraceError, match="line 1: is not valid JSON: invalid UTF-8 at byte"):
        read_otel(raw)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.jsonl", "large.pb"])
def test_an_attribute_of_30_mb_is_read_whole(tmp_path: Path, name: str) -> None:
    large = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot("x" * 30_000_000)),))
    write_otel(tmp_path / name, [large])
    assert read_otel(tmp_path / name) == [large]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.jsonl", "large.pb"])
def test_an_attribute_of_50_mb_is_refused_unless_the_limit_is_raised(tmp_path: Path, name: str) -> None:
    large = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot("x" * 50_000_000)),))
    write_otel(tmp_path / name, [large])
    with pytest.raises(UnreadableTraceError, match=r"span 'a' .*: attribute '.*' has 48 MB, and the limit is 32 MB"):
        read_otel(tmp_path / name)
    assert read_otel(tmp_path / name, max_attribute_mb=60) == [large]


@pytest.mark.parametrize("opening", [b'{"arrayValue":{"values":[', b'{"kvlistValue":{"values":[{"key":"k","value":'])
@pytest.mark.parametrize("depth", [101, 2_000, 100_000])
def test_attributes_that_are_nested_too_deeply_are_refused(
    spans: list[dict[str, Any]], opening: bytes, depth: int
) -> None:
    deep = nest(opening, depth)
    with pytest.raises(UnreadableTraceError, match="nested"):
        read_otel(one_line(spans).replace(b'{"stringValue":"some-model"}', deep))


@pytest.mark.parametrize("opening", [b'{"arrayValue":{"values":[', b'{"kvlistValue":{"values":[{"key":"k","value":'])
def test_nested_attributes_are_read_whole(spans: list[dict[str, Any]], opening: bytes) -> None:
    [trace] = read_otel(one_line(spans).replace(b'{"stringValue":"some-model"}', nest(opening, 99)))
    [found] = [value for value in trace.steps[0].attributes.values() if isinstance(value, list | dict)]
    inner: Any = found
    for _ in range(99):
        [inner] = inner if isinstance(inner, list) else inner.values()
    assert inner == "deep"


def nest(opening: bytes, depth: int) -> bytes:
    closing = opening[::-1].translate(bytes.maketrans(b"{[", b"}]"))
    return opening * depth + b'{"stringValue":"deep"}' + bytes(each for each in closing if each in b"}]") * depth


def test_bytes_and_non_finite_numbers_from_other_tools_are_kept(spans: list[dict[str, Any]]) -> None:
    set_attribute(spans[1], "raw", {"bytesValue": base64.b64encode(b"\x01\xff").decode()})
    set_attribute(spans[1], "odd", {"doubleValue": "-Infinity"})
    [trace] = read_otel(one_line(spans))
    assert trace.steps[0].attributes["raw"] == "01ff"
    assert trace.steps[0].attributes["odd"] == -math.inf


@pytest.mark.parametrize("name", ["odd.jsonl", "odd.pb"])
@pytest.mark.parametrize("value", [2**70, object(), "\ud800", [math.nan]])
def test_values_that_otlp_cannot_represent_are_rejected(tmp_path: Path, name: str, value: object) -> None:
    as_attribute = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", attributes={"x": value}),))
    as_data = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot(data=value)),))
    for trace in (as_data,) if value == [math.nan] or isinstance(value, list) else (as_attribute, as_data):
        with pytest.raises(UnwritableTraceError):
            write_otel(tmp_path / name, [trace])
    assert list(tmp_path.iterdir()) == []


def test_repeated_runs_of_a_case_get_distinct_otlp_ids(tmp_path: Path) -> None:
    again = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", start_ns=99, end_ns=100),))
    write_otel(tmp_path / "two.jsonl", [TWO_STEPS, again])
    assert read_otel(tmp_path / "two.jsonl") == [TWO_STEPS, again]
    with pytest.raises(UnwritableTraceError, match="two traces have the id 't'"):
        write_otel(tmp_path / "same.jsonl", [TWO_STEPS, TWO_STEPS])


def test_unknown_traces_in_an_export_are_skipped_with_a_warning(
    spans: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    foreign = {"traceId": "e" * 32, "spanId": "f" * 16, "name": "GET /"}
    assert read_otel(one_line([foreign, *spans])) == [TWO_STEPS]
    assert "skipped 1 traces of <bytes>" in caplog.text


def test_protobuf_that_looks_like_json_is_read_as_protobuf(tmp_path: Path) -> None:
    """Its first byte is a line feed, and its second, a length, can have any value, including that of a brace."""
    for size in range(1, 120):
        trace = ExecutionTrace(id="t" * size, steps=(Step(id="a", node_id="a"),))
        write_otel(tmp_path / "spans.pb", [trace])
        assert read_otel(tmp_path / "spans.pb") == [trace]


def test_blank_lines_and_a_byte_order_mark_before_json_are_fine(spans: list[dict[str, Any]]) -> None:
    for start in (b"\n\n", b" " * 200, b"\xef\xbb\xbf", b"\r\n\r\n"):
        assert read_otel(start + one_line(spans)) == [TWO_STEPS]


def test_a_failure_without_our_attributes_takes_its_type_from_the_exception_event() -> None:
    span = {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "name": "plan",
        "attributes": [
            {"key": "promptiter.node.id", "value": {"stringValue": "plan"}},
            {"key": "promptiter.trace.id", "value": {"stringValue": "run"}},
            {"key": "mine", "value": {"intValue": 1}},
        ],
        "status": {"code": 2, "message": "boom"},
        "events": [
            {"name": "exception", "attributes": [{"key": "exception.type", "value": {"stringValue": "ValueError"}}]}
        ],
    }
    [trace] = read_otel(one_line([span]))
    assert (trace.id, trace.status) == ("run", "failed")
    assert trace.steps[0].error == Failure("ValueError", "boom")
    assert (trace.attributes, trace.steps[0].attributes) == ({}, {"mine": 1})


def test_a_link_to_a_span_inside_a_step_means_that_step() -> None:
    def span(number: int, parent: int | None, node: str | None, link: int | None = None) -> dict[str, Any]:
        return {
            "traceId": "a" * 32,
            "spanId": f"{number:016x}",
            "parentSpanId": "" if parent is None else f"{parent:016x}",
            "name": str(number),
            "attributes": [{"key": "promptiter.node.id", "value": {"stringValue": node}}] if node else [],
            "links": [] if link is None else [{"traceId": "a" * 32, "spanId": f"{link:016x}"}],
        }

    [trace] = read_otel(one_line([span(1, None, "plan"), span(2, 1, None), span(3, None, "answer", link=2)]))
    assert trace.steps[1].predecessors == ("plan",)


@pytest.mark.parametrize("name", ["odd.jsonl", "odd.pb"])
def test_invalid_ids_and_deep_attributes_are_rejected_when_written(tmp_path: Path, name: str) -> None:
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]
    for trace in (
        ExecutionTrace(id="\ud800", steps=(Step(id="a", node_id="a"),)),
        ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", attributes={"x": deep}),)),
        ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", attributes={"x": {1: 2}}),)),
    ):
        with pytest.raises(UnwritableTraceError):
            write_otel(tmp_path / name, [trace])
