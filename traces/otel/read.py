"""Read traces from exports of spans, whatever their encoding, or from any trace file."""

from __future__ import annotations

import codecs
import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import inf
from typing import IO

from traces.errors import Place, UnknownConventionError, UnreadableTraceError
from traces.files import TraceReader, TraceSource, open_source, parse_traces, pause_gc, split_documents
from traces.model import ExecutionTrace
from traces.otel import otlp_json
from traces.otel.frames import RESOURCE_TAG, is_framed, split_frames
from traces.otel.intake import MAX_ATTRIBUTE_MB, MAX_DOCUMENT_MB, Intake
from traces.otel.recover.coverage import Coverage
from traces.otel.runs import build_traces, join_runs
from traces.otel.span_store import DEFAULT_LIMIT_BYTES, SpanStore
from traces.otel.spans import Log, Span

logger = logging.getLogger(__name__)

_OURS = re.compile(rb'\s*\{\s*"(?:schema_version|trace|trace_id)"\s*:')
_FIRST_KEY = re.compile(rb'\s*[\[{][\s\[{]*(?:"[^"\x00-\x1f]*"\s*:|[\]}])')


def read(source: TraceSource) -> Iterator[ExecutionTrace]:
    """Yield the traces of a file: promptiter's own JSON, read as a stream, or an OTLP export."""
    with open_source(source) as (name, file):
        if _OURS.match(file.peek().removeprefix(codecs.BOM_UTF8)):
            yield from parse_traces(name, file)
        else:
            yield from _stream([(name, file)], None, Intake(), limit_bytes=DEFAULT_LIMIT_BYTES)


def read_otel(
    *sources: TraceSource, coverage: Coverage | None = None, max_attribute_mb: int = MAX_ATTRIBUTE_MB
) -> list[ExecutionTrace]:
    """Read the traces of exports of spans, in the order of their first spans. Spans may be in any order, and repeated.

    Several files are read together: the spans of a run, and the log records that belong to them, may be spread over
    them. OTLP traces without any step are skipped with a warning. If there are no others, that is an error. `coverage`
    counts what was taken over. An attribute of more than `max_attribute_mb` is refused.
    """
    with pause_gc(is_last=True):
        return list(stream_otel(*sources, coverage=coverage, max_attribute_mb=max_attribute_mb, limit_bytes=inf))


def stream_otel(
    *sources: TraceSource,
    coverage: Coverage | None = None,
    max_attribute_mb: int = MAX_ATTRIBUTE_MB,
    limit_bytes: float = DEFAULT_LIMIT_BYTES,
) -> Iterator[ExecutionTrace]:
    """Yield the traces that `read_otel` returns, one after the other, without keeping all of them in memory.

    Exports have no order, so the first trace comes after the last span was read. Until then, spans that take more than
    about `limit_bytes` in memory wait in a temporary file.
    """
    intake = Intake(coverage, max_attribute_mb=max_attribute_mb)
    with ExitStack() as stack:
        files = [stack.enter_context(open_source(source)) for source in sources]
        yield from _stream(files, coverage, intake, limit_bytes=limit_bytes)


def read_spans(name: str, file: TraceReader, intake: Intake | None = None) -> Iterator[list[Span | Log]]:
    """Yield the spans and log records of an open export, batch by batch."""
    intake = intake or Intake()
    for batch in _decode(name, file, intake):
        intake.count(len(batch))
        yield batch


def _decode(name: str, file: TraceReader, intake: Intake) -> Iterator[list[Span | Log]]:
    start = file.peek()
    if _is_json(start):
        return otlp_json.decode(split_documents(name, file, max_mb=MAX_DOCUMENT_MB), intake)
    _refuse_others(start, Place(name))
    return _decode_frames(name, file, intake) if is_framed(start) else _decode_message(name, file, intake)


def _decode_frames(name: str, file: TraceReader, intake: Intake) -> Iterator[list[Span | Log]]:
    for place, raw in split_frames(name, file, intake):
        if _is_json(raw):
            yield from otlp_json.decode([(place, raw)], intake)
        else:
            yield from _decode_message(name, io.BytesIO(raw), intake, start=place.byte or 0)


def _decode_message(name: str, file: IO[bytes], intake: Intake, *, start: int = 0) -> Iterator[list[Span | Log]]:
    from traces.otel import otlp_protobuf

    return otlp_protobuf.decode(name, file, intake, start=start)


_OTHERS = {
    codecs.BOM_UTF16_LE: "is UTF-16 text; save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16 text; save it as UTF-8",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"PAR1": "is a Parquet file; export the spans as JSON lines",
    b"SQLite format 3": "is a SQLite database; export the spans as JSON lines",
    b"BZh": "is compressed with bzip2; unpack it first, or use gzip or zstd",
    b"\xfd7zXZ": "is compressed with xz; unpack it first, or use gzip or zstd",
}


def _refuse_others(start: bytes, place: Place) -> None:
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            raise UnreadableTraceError(what, place=place)
    head = start[:60]
    if len(head) > 8 and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head[:40]) and head[0] != RESOURCE_TAG:
        raise UnreadableTraceError(
            f"is text, but not JSON: it starts with {head[:40].decode()!r}; export the spans as OTLP, or as JSON lines",
            place=place,
        )


def drop_duplicates(spans: list[Span]) -> list[Span]:
    """Drop spans that were exported twice. Two different spans with the same id are an error."""
    by_id = {span.span_id: span for span in spans}
    if len(by_id) == len(spans):
        return spans
    for span in spans:
        if span[:-1] != by_id[span.span_id][:-1]:  # everything but the place
            raise UnreadableTraceError(
                f"span {span.span_id} ({span.name!r}) occurs twice with different content; export the trace again",
                place=span.place,
            )
    return list(by_id.values())


def _stream(
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


def _is_json(start: bytes) -> bool:
    """Whether a file is JSON. Protobuf also starts with a line feed, so that counts only if a JSON key follows."""
    start = start.removeprefix(codecs.BOM_UTF8)
    return start.lstrip(b" \t\r")[:1] in (b"{", b"[") or (start[:1].isspace() and bool(_FIRST_KEY.match(start)))
