"""Read OTLP exports (JSON, JSON lines, protobuf, gzipped or not; a file, a pipe or bytes), or whatever a file holds."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator

from traces.errors import Place, UnknownConventionError, UnreadableTraceError
from traces.files import Reader, Source, documents, gc_paused, opened, traces_in
from traces.model import ExecutionTrace
from traces.otel import otlp_json
from traces.otel.dialects import registry
from traces.otel.spans import Span

logger = logging.getLogger(__name__)

_OURS = re.compile(rb'\s*\{\s*"(?:schema_version|trace)"\s*:')
_FIRST_KEY = re.compile(rb'\s*[\[{][\s\[{]*(?:"[^"\x00-\x1f]*"\s*:|[\]}])')


def read(source: Source) -> Iterator[ExecutionTrace]:
    """The traces of a file of either kind: our own JSON, as a stream, or an OTLP export."""
    with opened(source) as (name, file):
        if _OURS.match(file.peek().removeprefix(codecs.BOM_UTF8)):
            yield from traces_in(name, file)
        else:
            yield from _traces(name, file)


def read_otel(source: Source) -> list[ExecutionTrace]:
    """The traces of an OTLP export, in the order of their first spans. Spans may come in any order, and twice.

    OTLP traces in which nothing is a step are left out with a warning; if there is nothing else, that is an error.
    """
    with opened(source) as (name, file):
        return _traces(name, file)


def read_spans(name: str, file: Reader) -> Iterator[list[Span]]:
    """The bare spans of an open OTLP export, batch by batch as they come."""
    start = file.peek()
    if _is_json(start):
        return otlp_json.decode(documents(name, file))
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UnreadableTraceError("is UTF-16 text; save it as UTF-8", place=Place(name))
    from traces.otel import otlp_protobuf

    return otlp_protobuf.decode(name, file)


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


def _traces(name: str, file: Reader) -> list[ExecutionTrace]:
    with gc_paused(is_last=True):
        by_trace: dict[str, list[Span]] = {}
        for spans in read_spans(name, file):
            for span in spans:
                by_trace.setdefault(span.trace_id, []).append(span)
        found: list[ExecutionTrace] = []
        foreign: list[UnknownConventionError] = []
        for trace_id in list(by_trace):
            try:
                found += registry.build_traces(without_repeats(by_trace.pop(trace_id)))
            except UnknownConventionError as error:
                foreign.append(error)
    if foreign and not found:
        raise foreign[0]
    if foreign:
        logger.warning("%d traces of %s were left out: %s", len(foreign), name, foreign[0].message)
    return found


def _is_json(start: bytes) -> bool:
    """Whether a file is JSON. Protobuf starts with a line feed too, so one counts only before a first key."""
    start = start.removeprefix(codecs.BOM_UTF8)
    return start.lstrip(b" \t\r")[:1] in (b"{", b"[") or (start[:1].isspace() and bool(_FIRST_KEY.match(start)))
