"""Read traces from exports of spans, whatever their encoding, or from any trace file."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from traces.errors import UnknownConventionError, UnreadableTraceError
from traces.files import TraceReader, TraceSource, open_source, parse_traces, pause_gc
from traces.model import ExecutionTrace
from traces.otel.detect import read_spans
from traces.otel.intake import MAX_ATTRIBUTE_MB, Intake
from traces.otel.recover.coverage import Coverage
from traces.otel.runs import build_traces, join_runs
from traces.otel.spans import Event, Log, Span, add_logs

logger = logging.getLogger(__name__)

_OURS = re.compile(rb'\s*\{\s*"(?:schema_version|trace|trace_id)"\s*:')


def read(source: TraceSource) -> Iterator[ExecutionTrace]:
    """Yield the traces of a file: promptiter's own JSON, read as a stream, or an OTLP export."""
    with open_source(source) as (name, file):
        if _OURS.match(file.peek().removeprefix(codecs.BOM_UTF8)):
            yield from parse_traces(name, file)
        else:
            yield from _read_otlp([(name, file)])


def read_otel(
    *sources: TraceSource, coverage: Coverage | None = None, max_attribute_mb: int = MAX_ATTRIBUTE_MB
) -> list[ExecutionTrace]:
    """Read the traces of exports of spans, in the order of their first spans. Spans may be in any order, and repeated.

    Several files are read together: the spans of a run, and the log records that belong to them, may be spread over
    them. OTLP traces without any step are skipped with a warning. If there are no others, that is an error. `coverage`
    counts what was taken over. An attribute of more than `max_attribute_mb` is refused.
    """
    intake = Intake(coverage, max_attribute_mb=max_attribute_mb)
    with ExitStack() as stack:
        return _read_otlp([stack.enter_context(open_source(source)) for source in sources], coverage, intake)


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
                f"span {span.span_id} ({span.name!r}) occurs twice with different content; export the trace again",
                place=span.place,
            )
    return list(by_id.values())


def _read_otlp(
    files: Sequence[tuple[str, TraceReader]], coverage: Coverage | None = None, intake: Intake | None = None
) -> list[ExecutionTrace]:
    with pause_gc(is_last=True):
        by_trace: dict[str, list[Span]] = {}
        logs: dict[tuple[str, str], list[Event]] = {}
        for name, file in files:
            for batch in read_spans(name, file, intake):
                for each in batch:
                    if isinstance(each, Log):
                        logs.setdefault((each.trace_id, each.span_id), []).append(each.event)
                    else:
                        by_trace.setdefault(each.trace_id, []).append(each)
        if logs:
            by_trace = {trace_id: add_logs(spans, logs) for trace_id, spans in by_trace.items()}
        found: list[ExecutionTrace] = []
        foreign: list[UnknownConventionError] = []
        for spans in join_runs(by_trace):
            try:
                found += build_traces(drop_duplicates(spans), coverage)
            except UnknownConventionError as error:
                foreign.append(error)
    if foreign and not found:
        raise foreign[0]
    if foreign and coverage is None:
        names = ", ".join(name for name, _ in files)
        logger.warning("skipped %d traces of %s: %s", len(foreign), names, foreign[0].message)
    return found
