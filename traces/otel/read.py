"""Read traces from exports of spans, whatever their encoding, or from any trace file."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import inf

from traces.errors import UnknownConventionError, UnreadableTraceError
from traces.files import TraceReader, TraceSource, open_source, parse_traces, pause_gc
from traces.model import ExecutionTrace
from traces.otel.corrections import Corrector, correct_edges
from traces.otel.detect import read_spans
from traces.otel.intake import MAX_ATTRIBUTE_MB, Intake
from traces.otel.recover.coverage import Coverage
from traces.otel.runs import build_traces, join_runs
from traces.otel.span_store import DEFAULT_LIMIT_BYTES, SpanStore
from traces.otel.spans import Span
from traces.otel.user_edges import EdgeSource

logger = logging.getLogger(__name__)

_OURS = re.compile(rb'\s*\{\s*"(?:schema_version|trace|trace_id)"\s*:')


def read(source: TraceSource) -> Iterator[ExecutionTrace]:
    """Yield the traces of a file: promptiter's own JSON, read as a stream, or an OTLP export."""
    with open_source(source) as (name, file):
        if holds_traces(file):
            yield from parse_traces(name, file)
        else:
            yield from _stream([(name, file)], Corrector(None, None), Intake(), limit_bytes=DEFAULT_LIMIT_BYTES)


def holds_traces(file: TraceReader) -> bool:
    """Whether an open file has promptiter's own traces, not spans."""
    return _OURS.match(file.peek().removeprefix(codecs.BOM_UTF8)) is not None


def read_otel(
    *sources: TraceSource,
    coverage: Coverage | None = None,
    edges: EdgeSource | None = None,
    max_attribute_mb: int = MAX_ATTRIBUTE_MB,
) -> list[ExecutionTrace]:
    """Read the traces of exports of spans, in the order of their first spans. Spans may be in any order, and repeated.

    Several files are read together: the spans of a run, and the log records that belong to them, may be spread over
    them. OTLP traces without any step are skipped with a warning. If there are no others, that is an error. `coverage`
    counts what was taken over. `edges` are those that you know, as a file or a list: they replace guessed ones. Several
    runs of one application correct each other's guessed edges. An attribute of more than `max_attribute_mb` is refused.
    """
    with pause_gc(is_last=True):
        found = stream_otel(
            *sources, coverage=coverage, edges=edges, max_attribute_mb=max_attribute_mb, limit_bytes=inf
        )
        return list(found)


def stream_otel(
    *sources: TraceSource,
    coverage: Coverage | None = None,
    edges: EdgeSource | None = None,
    max_attribute_mb: int = MAX_ATTRIBUTE_MB,
    limit_bytes: float = DEFAULT_LIMIT_BYTES,
) -> Iterator[ExecutionTrace]:
    """Yield the traces that `read_otel` returns, one after the other, without keeping all of them in memory.

    Exports have no order, so the first trace comes after the last span was read. Until then, spans that take more than
    about `limit_bytes` in memory wait in a temporary file. So do traces, until their edges are corrected: an eighth of
    the limit is for them.
    """
    corrector = Corrector(edges, coverage)
    intake = Intake(coverage, max_attribute_mb=max_attribute_mb)
    with ExitStack() as stack:
        files = [stack.enter_context(open_source(source)) for source in sources]
        yield from _stream(files, corrector, intake, coverage, limit_bytes=limit_bytes)


def drop_duplicates(spans: list[Span]) -> list[Span]:
    """Drop spans that were exported twice. Two different spans with the same id are an error."""
    by_id = {span.span_id: span for span in spans}
    if len(by_id) == len(spans):
        return spans
    for span in spans:
        known = by_id[span.span_id]
        if span.end_ns is None or known.end_ns is None:
            by_id[span.span_id] = known if span.end_ns is None else span  # one was exported before the span ended
        elif span[:-1] != known[:-1]:  # everything but the place
            raise UnreadableTraceError(
                f"span {span.span_id} ({span.name!r}) occurs twice with different content; if these are two exports of "
                "the same run, import one of them, otherwise export the trace again",
                place=span.place,
            )
    return list(by_id.values())


_TRACES_SHARE = 1 / 8
"""The share of the limit on memory that is for traces whose edges are not corrected yet. The rest is for spans."""


def _stream(
    files: Sequence[tuple[str, TraceReader]],
    corrector: Corrector,
    intake: Intake,
    coverage: Coverage | None = None,
    *,
    limit_bytes: float,
) -> Iterator[ExecutionTrace]:
    found = _build(files, coverage, intake, limit_bytes=limit_bytes * (1 - _TRACES_SHARE))
    yield from correct_edges(found, corrector, limit_bytes=limit_bytes * _TRACES_SHARE)


def _build(
    files: Sequence[tuple[str, TraceReader]], coverage: Coverage | None, intake: Intake, *, limit_bytes: float
) -> Iterator[ExecutionTrace]:
    foreign: list[UnknownConventionError] = []
    is_empty = True
    with SpanStore(limit_bytes) as store:
        with pause_gc():
            for name, file in files:
                for batch in read_spans(name, file, intake):
                    store.add(batch)
            runs = join_runs(store)
        if not runs and files:
            _warn_of_no_spans(files, coverage)
        for trace_ids in runs:
            with pause_gc():
                spans = [span for trace_id in trace_ids for span in store.take(trace_id)]
                try:
                    found = build_traces(drop_duplicates(spans), coverage)
                except UnknownConventionError as error:
                    foreign.append(error)
                    continue
            is_empty = False
            yield from found
    if foreign and is_empty:
        raise foreign[0]
    if foreign and coverage is None:
        names = ", ".join(name for name, _ in files)
        logger.warning("skipped %d traces of %s: %s", len(foreign), names, foreign[0].message)


def _warn_of_no_spans(files: Sequence[tuple[str, TraceReader]], coverage: Coverage | None) -> None:
    if coverage is None:
        names = ", ".join(name for name, _ in files)
        logger.warning("%s: %s", names, _NO_SPANS)
    elif coverage.received:
        coverage.warnings["log records without spans: pass the file with their spans, too"] = coverage.received
    elif not coverage.warnings:
        coverage.warnings[_NO_SPANS] = len(files)


_NO_SPANS = "no spans in the export: check that the application ran and flushed its exporter (`provider.shutdown()`)"
