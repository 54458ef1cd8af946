"""Write traces as OTLP spans, batch by batch: JSON lines or protobuf.

A trace becomes a root span, a span per step below it (or below the step it is nested in), and a span per tool call.
Predecessors are written twice, as span links and as an attribute, because some back ends drop links. Content is written
to the GenAI attributes if they can represent it exactly, so that other tools show it, and to our own otherwise.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson

from traces.errors import UnwritableTraceError
from traces.files import check_traces, write_atomically
from traces.model import ExecutionTrace, Failure, Json, Snapshot, Step, ToolCall, holds_non_finite
from traces.otel import encode_json, names
from traces.otel.spans import Link, Span

BATCH = 512
RESOURCE = {"service.name": "promptiter"}

_OPERATIONS = {"llm": "chat", "agent": "invoke_agent", "tool": "execute_tool"}
_INTERNAL, _CLIENT = 1, 3  # SpanKind


def write_otel(
    path: str | os.PathLike[str],
    traces: Iterable[ExecutionTrace],
    *,
    encoding: Literal["json", "protobuf"] | None = None,
) -> int:
    """Write traces as OTLP and return the number of spans.

    A name that ends in `.pb` means protobuf, any other JSON lines; `.gz` after that compresses. The file is written
    atomically. Any OpenTelemetry back end can import it, and `read_otel` returns the same traces.
    """
    encode = encode_json.encode
    if (encoding or guess_encoding(path)) == "protobuf":
        from traces.otel import encode_protobuf

        encode = encode_protobuf.encode
    written = 0
    with write_atomically(path) as file:
        spans = _build_all_spans(traces)
        while batch := list(islice(spans, BATCH)):
            file.write(encode(batch, resource=RESOURCE))
            written += len(batch)
    return written


def guess_encoding(path: str | os.PathLike[str]) -> Literal["json", "protobuf"]:
    """Guess the encoding of a file from its name."""
    return (
        "protobuf"
        if Path(os.fspath(path).removesuffix(".gz")).suffix in (".pb", ".binpb", ".proto", ".protobuf")
        else "json"
    )


def build_spans(trace: ExecutionTrace) -> Iterator[Span]:
    """Yield the spans that represent a trace, the root first."""
    trace_id = _make_trace_id(trace)
    root_id = _make_span_id(trace_id, "trace")
    attributes = _escape(trace.attributes)
    attributes[names.TRACE_ID] = trace.id
    attributes[names.TRACE_STATUS] = trace.status
    attributes[names.OPERATION] = "invoke_workflow"
    if trace.conversation_id is not None:
        attributes[names.CONVERSATION_ID] = trace.conversation_id
    failure = Failure("", "") if trace.status == "failed" else None
    yield _build_span(trace, trace_id, root_id, None, f"trace {trace.id}", attributes, failure)

    span_ids = {step.id: _make_span_id(trace_id, f"step {step.id}") for step in trace.steps}
    for step in trace.steps:
        span_id = span_ids[step.id]
        parent_id = span_ids.get(step.id.rpartition("/")[0], root_id)
        model = step.attributes.get(names.REQUEST_MODEL)
        yield _build_span(
            step,
            trace_id,
            span_id,
            parent_id,
            f"chat {model}" if step.kind == "llm" and model else step.node_id,
            _build_step_attributes(step),
            step.error,
            kind=_CLIENT if step.kind == "llm" else _INTERNAL,
            links=_build_links(step, trace_id, span_ids),
        )
        for index, call in enumerate(step.tool_calls):
            call_id = _make_span_id(trace_id, f"call {index} of {step.id}")
            attributes = _build_tool_attributes(call, index)
            yield _build_span(call, trace_id, call_id, span_id, f"execute_tool {call.name}", attributes, call.error)


def _build_all_spans(traces: Iterable[ExecutionTrace]) -> Iterator[Span]:
    seen: set[str] = set()
    for trace in check_traces(traces):
        trace_id = _make_trace_id(trace)
        if trace_id in seen:
            raise UnwritableTraceError(f"two traces have the id {trace.id!r} and the same start time; rename one")
        seen.add(trace_id)
        yield from build_spans(trace)


def _build_span(
    timed: ExecutionTrace | Step | ToolCall,
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    name: str,
    attributes: dict[str, Json],
    error: Failure | None,
    *,
    kind: int = _INTERNAL,
    links: tuple[Link, ...] = (),
) -> Span:
    if error is not None and error.type:
        attributes[names.ERROR_TYPE] = error.type
    return Span(
        trace_id,
        span_id,
        parent_id,
        name,
        kind,
        timed.start_ns,
        timed.end_ns,
        attributes,
        links,
        error is not None,
        error.message if error else "",
        names.SCOPE,
    )


def _build_step_attributes(step: Step) -> dict[str, Json]:
    attributes = _escape(step.attributes)
    attributes[names.NODE_ID] = step.node_id
    attributes[names.STEP_ID] = step.id
    attributes[names.STEP_KIND] = step.kind
    attributes[names.PREDECESSORS] = list(step.predecessors)
    if step.edges:
        attributes[names.EDGES] = _dump_json([asdict(edge) for edge in step.edges])
    if step.surface_reads is not None:
        attributes[names.SURFACE_READS] = _dump_json(step.surface_reads)
    if step.kind in _OPERATIONS:
        attributes[names.OPERATION] = _OPERATIONS[step.kind]
    if step.kind == "agent":
        attributes[names.AGENT_NAME] = step.node_id
    if step.kind == "tool":
        attributes[names.TOOL_NAME] = step.node_id
    _add_snapshot(attributes, step.input, names.INPUT, is_model_call=step.kind == "llm")
    _add_snapshot(attributes, step.output, names.OUTPUT, is_model_call=step.kind == "llm")
    if usage := step.usage:
        figures = {
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
            names.CACHED_INPUT_TOKENS: usage.cached_input_tokens,
            names.COST_USD: None if usage.cost_usd is None else float(usage.cost_usd),
        }
        attributes |= {key: value for key, value in figures.items() if value is not None}
    return attributes


def _add_snapshot(
    attributes: dict[str, Json], snapshot: Snapshot, keys: names.SnapshotNames, *, is_model_call: bool
) -> None:
    if snapshot.text is not None:
        attributes[keys.text] = snapshot.text
    if snapshot.data is not None:
        as_messages = is_model_call and _are_messages(snapshot.data)
        attributes[keys.messages if as_messages else keys.data] = _dump_json(snapshot.data)
    if snapshot.blobs:
        attributes[keys.blobs] = _dump_json([asdict(blob) for blob in snapshot.blobs])


def _are_messages(data: Json) -> bool:
    return isinstance(data, list) and all(
        isinstance(item, dict) and "role" in item and "parts" in item for item in data
    )


def _build_links(step: Step, trace_id: str, span_ids: Mapping[str, str]) -> tuple[Link, ...]:
    kinds: dict[str, str] = {}
    for edge in step.edges:
        kinds[edge.source] = f"{kinds[edge.source]}+{edge.kind}" if edge.source in kinds else edge.kind
    return tuple(
        Link(trace_id, span_ids[source], {names.EDGE_KIND: kinds[source]} if source in kinds else {})
        for source in step.predecessors
    )


def _build_tool_attributes(call: ToolCall, index: int) -> dict[str, Json]:
    attributes: dict[str, Json] = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: call.name,
        names.TOOL_CALL_INDEX: index,
    }
    if call.id is not None:
        attributes[names.TOOL_CALL_ID] = call.id
    if call.arguments is not None:
        attributes[names.TOOL_ARGUMENTS] = _dump_json(call.arguments)
    if call.result is not None:
        attributes[names.TOOL_RESULT] = _dump_json(call.result)
    return attributes


def _escape(attributes: Mapping[str, Json]) -> dict[str, Json]:
    return {
        f"{names.ESCAPED}{key}" if key in names.OWNED or key.startswith("promptiter.") else key: value
        for key, value in attributes.items()
    }


def _dump_json(value: Any) -> str:
    try:
        raw = orjson.dumps(value)
    except TypeError as error:  # orjson.JSONEncodeError
        raise UnwritableTraceError(f"{value!r:.60} cannot be written: {error}") from error
    if b"null" in raw and holds_non_finite(value):
        raise UnwritableTraceError(
            f"{value!r:.60} contains a NaN or infinite number, which JSON cannot represent; record it as text"
        )
    return raw.decode()


def _make_trace_id(trace: ExecutionTrace) -> str:
    """Use the trace's own id if it is a valid OTLP id, else derive one that repeated runs of a case do not share."""
    is_one = len(trace.id) == 32 and not trace.id.strip("0123456789abcdef") and trace.id.strip("0")
    return trace.id if is_one else _hash(f"{trace.id}\0{trace.start_ns}\0{len(trace.steps)}", 16)


def _make_span_id(trace_id: str, what: str) -> str:
    return _hash(f"{trace_id} {what}", 8)


def _hash(text: str, size: int) -> str:
    try:
        return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
    except UnicodeEncodeError as error:
        raise UnwritableTraceError(f"the id {text!r:.60} cannot be written: {error.reason}") from error
