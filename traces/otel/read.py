"""Read OTLP exports (JSON, JSON lines, protobuf, gzipped or not; a file or bytes), or whatever a file holds."""

from __future__ import annotations

from collections.abc import Iterator

from traces.errors import UnreadableTraceError
from traces.files import Source, documents, gc_paused, opened, read_traces
from traces.model import ExecutionTrace
from traces.otel import conventions, otlp_json
from traces.otel.spans import Span


def read(source: Source) -> Iterator[ExecutionTrace]:
    """The traces of a file of either kind: our own JSON, or an OTLP export."""
    with opened(source) as (_, file):
        start = file.read(4096)
    is_ours = start.lstrip()[:1] == b"{" and b'"schema_version"' in start and b'"resourceSpans"' not in start
    return read_traces(source) if is_ours else iter(read_otel(source))


def read_otel(source: Source) -> list[ExecutionTrace]:
    """The traces of an OTLP export, in the order of their first spans. Spans may come in any order, and twice."""
    with gc_paused():
        by_trace: dict[str, list[Span]] = {}
        for spans in read_spans(source):
            for span in spans:
                by_trace.setdefault(span.trace_id, []).append(span)
        found = []
        for trace_id in list(by_trace):
            found += conventions.traces_of(without_repeats(by_trace.pop(trace_id)))
        return found


def read_spans(source: Source) -> Iterator[list[Span]]:
    """The bare spans of an OTLP export, batch by batch as they come."""
    with opened(source) as (_, file):
        start = file.read(64).lstrip()[:1]
    if start in (b"{", b"["):
        yield from otlp_json.decode(documents(source))
        return
    from traces.otel import otlp_protobuf

    with opened(source) as (name, file):
        yield from otlp_protobuf.decode(name, file)


def without_repeats(spans: list[Span]) -> list[Span]:
    """The spans without those that were exported twice; two that differ under one id are an error."""
    by_id = {span.span_id: span for span in spans}
    if len(by_id) == len(spans):
        return spans
    for span in spans:
        if span[:-1] != by_id[span.span_id][:-1]:  # all but the place
            raise UnreadableTraceError(
                f"span {span.span_id} ({span.name!r}) occurs twice with different content; export the trace again",
                place=span.place,
            )
    return list(by_id.values())
