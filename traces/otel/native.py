"""promptiter's own spans, read back to the same trace: a root span, a span per step, a span per tool call.

Spans instrumented by hand need only the attribute `promptiter.node.id`. Predecessors come from our attribute if it is
there, otherwise from span links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

import msgspec
import orjson

from traces.errors import TraceError, UnreadableTraceError
from traces.model import (
    EMPTY,
    Blob,
    Edge,
    ExecutionTrace,
    Failure,
    Json,
    Snapshot,
    Step,
    StepKind,
    ToolCall,
    TraceStatus,
    Usage,
)
from traces.otel import names
from traces.otel.spans import Span

T = TypeVar("T")

_KINDS = frozenset(get_args(StepKind))
_STATUSES = frozenset(get_args(TraceStatus))
_READS = msgspec.json.Decoder(dict[str, str])
_EDGES = msgspec.json.Decoder(tuple[Edge, ...])
_BLOBS = msgspec.json.Decoder(tuple[Blob, ...])


def recognises(span: Span) -> bool:
    """Whether promptiter wrote this span, or it has our attributes."""
    return names.NODE_ID in span.attributes or names.TRACE_ID in span.attributes


def build_traces(spans: Sequence[Span]) -> list[ExecutionTrace]:
    """Build the traces of one OTLP trace: one, or one per root span if there are several."""
    roots = [span for span in spans if names.TRACE_ID in span.attributes]
    if len(roots) <= 1:
        return [_build_trace(roots[0] if roots else None, spans)]
    return [_build_trace(root, below) for root, below in _group_by_root(roots, spans)]


def _build_trace(root: Span | None, spans: Sequence[Span]) -> ExecutionTrace:
    trace_id, conversation_id = spans[0].trace_id, None
    status: TraceStatus = "incomplete"
    attributes: dict[str, Json] = {}
    if root is not None:
        with _name_span_in_errors(root):
            of_trace = {key: root.attributes.pop(key, None) for key in names.OF_TRACE}
            trace_id = _check_type(of_trace[names.TRACE_ID], str, names.TRACE_ID)
            default = "failed" if root.is_error else "completed"
            status = _check_choice(_STATUSES, of_trace[names.TRACE_STATUS] or default, names.TRACE_STATUS)
            conversation_id = _check_type(of_trace[names.CONVERSATION_ID], str | None, names.CONVERSATION_ID)
            if names.NODE_ID not in root.attributes:  # otherwise the other attributes belong to its step
                attributes = _unescape(root.attributes)
    step_spans: list[Span] = []
    calls: dict[str, list[tuple[int, ToolCall]]] = {}
    skipped = 0
    for span in spans:
        if names.NODE_ID in span.attributes:
            step_spans.append(span)
        elif names.TOOL_CALL_INDEX in span.attributes and span.parent_id:
            calls.setdefault(span.parent_id, []).append(_read_tool_call(span))
        elif span is not root:
            skipped += 1
    is_complete = all(names.STEP_ID in span.attributes and names.PREDECESSORS in span.attributes for span in step_spans)
    step_ids = {} if is_complete else _assign_step_ids(step_spans, spans)
    known_reads: dict[str, dict[str, str]] = {}
    steps = []
    for span in step_spans:
        tool_calls: tuple[ToolCall, ...] = ()
        if span.span_id in calls:
            tool_calls = tuple(call for _, call in sorted(calls.pop(span.span_id), key=lambda numbered: numbered[0]))
        try:
            steps.append(_build_step(span, step_ids, tool_calls, known_reads))
        except (TraceError, TypeError) as error:
            raise _explain(error, span) from error
    skipped += sum(map(len, calls.values()))  # calls of steps that are missing
    if skipped:
        attributes[names.SKIPPED_SPANS] = skipped
    try:
        return ExecutionTrace(
            id=trace_id, steps=tuple(steps), status=status, conversation_id=conversation_id, attributes=attributes
        )
    except TraceError as error:
        broken = getattr(error, "step_id", None)
        places = (span.place for step, span in zip(steps, step_spans, strict=True) if step.id == broken)
        error.place = next(places, spans[0].place)
        raise


def _build_step(
    span: Span,
    step_ids: dict[str, str],
    tool_calls: tuple[ToolCall, ...],
    known_reads: dict[str, dict[str, str]],
) -> Step:
    rest = span.attributes
    take = rest.pop
    node_id = take(names.NODE_ID)
    step_id = take(names.STEP_ID, None)
    if step_id is None:
        step_id = step_ids.get(span.span_id)
    if type(node_id) is not str or type(step_id) is not str:
        _check_type(node_id, str, names.NODE_ID)
        _check_type(step_id, str, names.STEP_ID)
    predecessors = take(names.PREDECESSORS, None)
    if predecessors is None:
        linked = (step_ids.get(link.span_id, step_id) for link in span.links)
        predecessors = [source for source in linked if source != step_id]
    else:
        for source in predecessors if type(predecessors) is list else [None]:
            if type(source) is not str:
                raise _explain_wrong_value(names.PREDECESSORS, "a list of step ids", predecessors)
    surface_reads = None
    if (text := take(names.SURFACE_READS, None)) is not None:
        # Steps of one node usually read the same values, so they share one mapping.
        surface_reads = known_reads.get(text)
        if surface_reads is None:
            surface_reads = known_reads[text] = _decode(_READS, text, names.SURFACE_READS)
    edges: tuple[Edge, ...] = ()
    if (text := take(names.EDGES, None)) is not None:
        edges = _decode(_EDGES, text, names.EDGES)
    error = _read_failure(span, take(names.ERROR_TYPE, None)) if span.is_error else None
    return Step(
        id=step_id,
        node_id=node_id,
        kind=_check_choice(_KINDS, take(names.STEP_KIND, "function"), names.STEP_KIND),
        predecessors=tuple(predecessors),
        edges=edges,
        surface_reads=surface_reads,
        input=_read_snapshot(rest, names.INPUT),
        output=_read_snapshot(rest, names.OUTPUT),
        tool_calls=tool_calls,
        error=error,
        usage=_read_usage(rest),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        attributes=_unescape(rest),
    )


def _assign_step_ids(step_spans: Sequence[Span], spans: Sequence[Span]) -> dict[str, str]:
    """Find the step id of each span, also of spans inside a step. Spans without one are numbered per node, by time."""
    step_ids: dict[str, str] = {}
    visits: Counter[str] = Counter()
    for span in sorted(step_spans, key=lambda span: (span.start_ns or 0, span.span_id)):
        node_id, step_id = str(span.attributes[names.NODE_ID]), span.attributes.get(names.STEP_ID)
        if step_id is None:
            visits[node_id] += 1
            step_id = node_id if visits[node_id] == 1 else f"{node_id}~{visits[node_id]}"
        step_ids[span.span_id] = step_id
    parents = {span.span_id: span.parent_id for span in spans}
    inside: dict[str, str | None] = dict(step_ids)
    for span in spans:  # a link may point to a span inside a step
        _resolve_upwards(span.span_id, parents, inside)
    return {span_id: step_id for span_id, step_id in inside.items() if step_id is not None}


def _resolve_upwards(span_id: str, parents: Mapping[str, str | None], known: dict[str, str | None]) -> str | None:
    """Look up the nearest ancestor that is known, and remember the answer for all spans on the way."""
    walked: list[str] = []
    at: str | None = span_id
    while at is not None and at in parents and at not in known and len(walked) <= len(parents):
        walked.append(at)
        at = parents[at]
    found = known.get(at) if at is not None else None
    known.update(dict.fromkeys(walked, found))
    return found


def _read_tool_call(span: Span) -> tuple[int, ToolCall]:
    """Read a tool call, with its index among the calls of its step."""
    with _name_span_in_errors(span):
        get = span.attributes.get
        index = _check_type(get(names.TOOL_CALL_INDEX), int, names.TOOL_CALL_INDEX, wanted="a whole number")
        return index, ToolCall(
            name=_check_type(get(names.TOOL_NAME, span.name), str, names.TOOL_NAME),
            id=_check_type(get(names.TOOL_CALL_ID), str | None, names.TOOL_CALL_ID),
            arguments=_parse_json(get(names.TOOL_ARGUMENTS, "null"), names.TOOL_ARGUMENTS),
            result=_parse_json(get(names.TOOL_RESULT, "null"), names.TOOL_RESULT),
            error=_read_failure(span, get(names.ERROR_TYPE)) if span.is_error else None,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
        )


def _read_snapshot(rest: dict[str, Json], keys: names.SnapshotNames) -> Snapshot:
    text_key, data_key, blobs_key, messages_key = keys
    text: Json = rest.pop(text_key, None)
    data: Json = None
    blobs: tuple[Blob, ...] = ()
    if data_key in rest:
        data = _parse_json(rest.pop(data_key), data_key)
    elif messages_key in rest:
        data = _parse_json(rest.pop(messages_key), messages_key)
    elif text is None and blobs_key not in rest:
        return EMPTY
    if blobs_key in rest:
        blobs = _decode(_BLOBS, rest.pop(blobs_key), blobs_key)
    return Snapshot(text if text is None else _check_type(text, str, text_key), data, blobs)


def _read_usage(rest: dict[str, Json]) -> Usage | None:
    take = rest.pop
    input_tokens, output_tokens = take(names.INPUT_TOKENS, None), take(names.OUTPUT_TOKENS, None)
    cached_input_tokens, cost_usd = take(names.CACHED_INPUT_TOKENS, None), take(names.COST_USD, None)
    if input_tokens is output_tokens is cached_input_tokens is cost_usd is None:
        return None
    for key, figure in (
        (names.INPUT_TOKENS, input_tokens),
        (names.OUTPUT_TOKENS, output_tokens),
        (names.CACHED_INPUT_TOKENS, cached_input_tokens),
    ):
        if figure is not None and type(figure) is not int:
            raise _explain_wrong_value(key, "a whole number", figure)
    if cost_usd is not None and type(cost_usd) is not float:
        cost_usd = float(_check_type(cost_usd, int, names.COST_USD, wanted="a number"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_input_tokens,
        cost_usd=cost_usd,
    )


def _read_failure(span: Span, error_type: Json) -> Failure:
    return Failure(_check_type("" if error_type is None else error_type, str, names.ERROR_TYPE), span.status_message)


def _group_by_root(roots: Sequence[Span], spans: Sequence[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Yield each root with the spans below it."""
    parents = {span.span_id: span.parent_id for span in spans}
    root_of: dict[str, str | None] = {root.span_id: root.span_id for root in roots}
    below: dict[str, list[Span]] = {root.span_id: [] for root in roots}
    for span in spans:
        root_id = _resolve_upwards(span.span_id, parents, root_of)
        if root_id is not None:
            below[root_id].append(span)
        elif recognises(span):
            raise UnreadableTraceError(
                f"span {span.name!r} ({span.span_id}) is not below any of the {len(roots)} promptiter root spans "
                "of its trace; also export the spans between them",
                place=span.place,
            )
    for root in sorted(roots, key=lambda root: (root.start_ns or 0, root.span_id)):
        yield root, below[root.span_id]


def _unescape(attributes: dict[str, Json]) -> dict[str, Json]:
    """Restore the names of the user's own attributes, which are left after all fields are taken out."""
    for key in names.DERIVED:
        attributes.pop(key, None)
    for key in attributes:
        if key.startswith(names.ESCAPED):
            return {key.removeprefix(names.ESCAPED): value for key, value in attributes.items()}
    return attributes


def _check_type(value: Any, kind: Any, key: str, *, wanted: str = "text") -> Any:
    if not isinstance(value, kind) or value is True or value is False:
        raise _explain_wrong_value(key, wanted, value)
    return value


def _check_choice(words: frozenset[str], word: Json, key: str) -> Any:
    if not isinstance(word, str) or word not in words:
        raise _explain_wrong_value(key, f"one of {', '.join(sorted(words))}", word)
    return word


def _parse_json(text: Json, key: str) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise _explain_wrong_value(key, "JSON", text) from error


def _decode(decoder: msgspec.json.Decoder[T], text: Json, key: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise UnreadableTraceError(f"attribute {key} is invalid: {error}; got {text!r:.60}") from error


def _explain_wrong_value(key: str, wanted: str, value: Json) -> UnreadableTraceError:
    return UnreadableTraceError(f"attribute {key} must be {wanted}, got {value!r:.60}")


@contextmanager
def _name_span_in_errors(span: Span) -> Iterator[None]:
    """Make errors raised in the body name the span."""
    try:
        yield
    except (TraceError, TypeError) as error:
        raise _explain(error, span) from error


def _explain(error: TraceError | TypeError, span: Span) -> UnreadableTraceError:
    what = error.message if isinstance(error, TraceError) else str(error)
    return UnreadableTraceError(f"span {span.name!r} ({span.span_id}): {what}", place=span.place)
