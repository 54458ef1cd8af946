"""Our own spans, read back to the same trace: a root span, a span per step, a span per tool call of a step.

Spans instrumented by hand need only `promptiter.node.id`; predecessors come from our attribute, or else from links.
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
    """Whether a span is one of ours."""
    return names.NODE_ID in span.attributes or names.TRACE_ID in span.attributes


def build_traces(spans: Sequence[Span]) -> list[ExecutionTrace]:
    """The traces whose spans have one OTLP trace id: one, or one per root span of ours among them."""
    roots = [span for span in spans if names.TRACE_ID in span.attributes]
    if len(roots) <= 1:
        return [_trace(roots[0] if roots else None, spans)]
    return [_trace(root, below) for root, below in _by_root(roots, spans)]


def _trace(root: Span | None, spans: Sequence[Span]) -> ExecutionTrace:
    trace_id, conversation_id = spans[0].trace_id, None
    status: TraceStatus = "incomplete"
    attributes: dict[str, Json] = {}
    if root is not None:
        with _naming(root):
            of_trace = {key: root.attributes.pop(key, None) for key in names.OF_TRACE}
            trace_id = _checked(of_trace[names.TRACE_ID], str, names.TRACE_ID)
            default = "failed" if root.is_error else "completed"
            status = _one_of(_STATUSES, of_trace[names.TRACE_STATUS] or default, names.TRACE_STATUS)
            conversation_id = _checked(of_trace[names.CONVERSATION_ID], str | None, names.CONVERSATION_ID)
            if names.NODE_ID not in root.attributes:  # else the rest belongs to its step
                attributes = _unescaped(root.attributes)
    step_spans: list[Span] = []
    calls: dict[str, list[tuple[int, ToolCall]]] = {}
    skipped = 0
    for span in spans:
        if names.NODE_ID in span.attributes:
            step_spans.append(span)
        elif names.TOOL_CALL_INDEX in span.attributes and span.parent_id:
            calls.setdefault(span.parent_id, []).append(_tool_call(span))
        elif span is not root:
            skipped += 1
    is_complete = all(names.STEP_ID in span.attributes and names.PREDECESSORS in span.attributes for span in step_spans)
    step_ids = {} if is_complete else _step_ids(step_spans, spans)
    known_reads: dict[str, dict[str, str]] = {}
    steps = []
    for span in step_spans:
        tool_calls: tuple[ToolCall, ...] = ()
        if span.span_id in calls:
            tool_calls = tuple(call for _, call in sorted(calls.pop(span.span_id), key=lambda numbered: numbered[0]))
        try:
            steps.append(_step(span, step_ids, tool_calls, known_reads))
        except (TraceError, TypeError) as error:
            raise _explained(error, span) from error
    skipped += sum(map(len, calls.values()))  # calls of a step that is not there
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


def _step(
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
        _checked(node_id, str, names.NODE_ID)
        _checked(step_id, str, names.STEP_ID)
    predecessors = take(names.PREDECESSORS, None)
    if predecessors is None:
        linked = (step_ids.get(link.span_id, step_id) for link in span.links)
        predecessors = [source for source in linked if source != step_id]
    else:
        for source in predecessors if type(predecessors) is list else [None]:
            if type(source) is not str:
                raise _wrong(names.PREDECESSORS, "a list of step ids", predecessors)
    surface_reads = None
    if (text := take(names.SURFACE_READS, None)) is not None:
        # Steps of one node mostly read the same values: they share one mapping.
        surface_reads = known_reads.get(text)
        if surface_reads is None:
            surface_reads = known_reads[text] = _decoded(_READS, text, names.SURFACE_READS)
    edges: tuple[Edge, ...] = ()
    if (text := take(names.EDGES, None)) is not None:
        edges = _decoded(_EDGES, text, names.EDGES)
    error = _failure(span, take(names.ERROR_TYPE, None)) if span.is_error else None
    return Step(
        id=step_id,
        node_id=node_id,
        kind=_one_of(_KINDS, take(names.STEP_KIND, "function"), names.STEP_KIND),
        predecessors=tuple(predecessors),
        edges=edges,
        surface_reads=surface_reads,
        input=_snapshot(rest, names.INPUT),
        output=_snapshot(rest, names.OUTPUT),
        tool_calls=tool_calls,
        error=error,
        usage=_usage(rest),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        attributes=_unescaped(rest),
    )


def _step_ids(step_spans: Sequence[Span], spans: Sequence[Span]) -> dict[str, str]:
    """The step id of each span, of those inside a step its own. Spans made by hand are counted by node, by time."""
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
    for span in spans:  # a link may lead to a span inside a step
        _resolve(span.span_id, parents, inside)
    return {span_id: step_id for span_id, step_id in inside.items() if step_id is not None}


def _resolve(span_id: str, parents: Mapping[str, str | None], known: dict[str, str | None]) -> str | None:
    """What is known of the nearest span above, remembered for all on the way."""
    walked: list[str] = []
    at: str | None = span_id
    while at is not None and at in parents and at not in known and len(walked) <= len(parents):
        walked.append(at)
        at = parents[at]
    found = known.get(at) if at is not None else None
    known.update(dict.fromkeys(walked, found))
    return found


def _tool_call(span: Span) -> tuple[int, ToolCall]:
    """A tool call of the step above its span, with its place among that step's calls."""
    with _naming(span):
        get = span.attributes.get
        index = _checked(get(names.TOOL_CALL_INDEX), int, names.TOOL_CALL_INDEX, wanted="a whole number")
        return index, ToolCall(
            name=_checked(get(names.TOOL_NAME, span.name), str, names.TOOL_NAME),
            id=_checked(get(names.TOOL_CALL_ID), str | None, names.TOOL_CALL_ID),
            arguments=_loads(get(names.TOOL_ARGUMENTS, "null"), names.TOOL_ARGUMENTS),
            result=_loads(get(names.TOOL_RESULT, "null"), names.TOOL_RESULT),
            error=_failure(span, get(names.ERROR_TYPE)) if span.is_error else None,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
        )


def _snapshot(rest: dict[str, Json], keys: names.SnapshotNames) -> Snapshot:
    text_key, data_key, blobs_key, messages_key = keys
    text: Json = rest.pop(text_key, None)
    data: Json = None
    blobs: tuple[Blob, ...] = ()
    if data_key in rest:
        data = _loads(rest.pop(data_key), data_key)
    elif messages_key in rest:
        data = _loads(rest.pop(messages_key), messages_key)
    elif text is None and blobs_key not in rest:
        return EMPTY
    if blobs_key in rest:
        blobs = _decoded(_BLOBS, rest.pop(blobs_key), blobs_key)
    return Snapshot(text if text is None else _checked(text, str, text_key), data, blobs)


def _usage(rest: dict[str, Json]) -> Usage | None:
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
            raise _wrong(key, "a whole number", figure)
    if cost_usd is not None and type(cost_usd) is not float:
        cost_usd = float(_checked(cost_usd, int, names.COST_USD, wanted="a number"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_input_tokens,
        cost_usd=cost_usd,
    )


def _failure(span: Span, error_type: Json) -> Failure:
    return Failure(_checked("" if error_type is None else error_type, str, names.ERROR_TYPE), span.status_message)


def _by_root(roots: Sequence[Span], spans: Sequence[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Each of several roots, with the spans below it."""
    parents = {span.span_id: span.parent_id for span in spans}
    root_of: dict[str, str | None] = {root.span_id: root.span_id for root in roots}
    below: dict[str, list[Span]] = {root.span_id: [] for root in roots}
    for span in spans:
        root_id = _resolve(span.span_id, parents, root_of)
        if root_id is not None:
            below[root_id].append(span)
        elif recognises(span):
            raise UnreadableTraceError(
                f"span {span.name!r} ({span.span_id}) stands below none of the {len(roots)} promptiter root spans "
                "of its trace; export the spans between them too",
                place=span.place,
            )
    for root in sorted(roots, key=lambda root: (root.start_ns or 0, root.span_id)):
        yield root, below[root.span_id]


def _unescaped(attributes: dict[str, Json]) -> dict[str, Json]:
    """What is left when the fields are taken out: the user's own attributes, under their own names."""
    for key in names.DERIVED:
        attributes.pop(key, None)
    for key in attributes:
        if key.startswith(names.ESCAPED):
            return {key.removeprefix(names.ESCAPED): value for key, value in attributes.items()}
    return attributes


def _checked(value: Any, kind: Any, key: str, *, wanted: str = "text") -> Any:
    if not isinstance(value, kind) or value is True or value is False:
        raise _wrong(key, wanted, value)
    return value


def _one_of(words: frozenset[str], word: Json, key: str) -> Any:
    if not isinstance(word, str) or word not in words:
        raise _wrong(key, f"one of {', '.join(sorted(words))}", word)
    return word


def _loads(text: Json, key: str) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise _wrong(key, "JSON", text) from error


def _decoded(decoder: msgspec.json.Decoder[T], text: Json, key: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise UnreadableTraceError(f"attribute {key} is wrong: {error}; got {text!r:.60}") from error


def _wrong(key: str, wanted: str, value: Json) -> UnreadableTraceError:
    return UnreadableTraceError(f"attribute {key} must be {wanted}, got {value!r:.60}")


@contextmanager
def _naming(span: Span) -> Iterator[None]:
    """Errors below say which span they are about."""
    try:
        yield
    except (TraceError, TypeError) as error:
        raise _explained(error, span) from error


def _explained(error: TraceError | TypeError, span: Span) -> UnreadableTraceError:
    what = error.message if isinstance(error, TraceError) else str(error)
    return UnreadableTraceError(f"span {span.name!r} ({span.span_id}): {what}", place=span.place)
