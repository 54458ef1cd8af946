"""Find out how an export of spans is encoded, and read its spans and log records."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import IO

from traces.errors import Place, UnreadableTraceError
from traces.files import TraceReader, split_documents
from traces.otel import otlp_json
from traces.otel.frames import RESOURCE_TAG, is_framed, split_frames
from traces.otel.intake import MAX_DOCUMENT_MB, Intake
from traces.otel.spans import Log, Span

_FIRST_KEY = re.compile(rb'\s*[\[{][\s\[{]*(?:"[^"\x00-\x1f]*"\s*:|[\]}])')


def read_spans(name: str, file: TraceReader, intake: Intake | None = None) -> Iterator[list[Span | Log]]:
    """Yield the spans and log records of an open export, batch by batch."""
    intake = intake or Intake()
    for batch in _decode(name, file, intake):
        intake.count(len(batch))
        yield batch


def _decode(name: str, file: TraceReader, intake: Intake) -> Iterator[list[Span | Log]]:
    start = file.peek()
    if is_json(start):
        return otlp_json.decode(split_documents(name, file, max_mb=MAX_DOCUMENT_MB), intake)
    _refuse_others(start, Place(name))
    return _decode_frames(name, file, intake) if is_framed(start) else _decode_message(name, file, intake)


def _decode_frames(name: str, file: TraceReader, intake: Intake) -> Iterator[list[Span | Log]]:
    for place, raw in split_frames(name, file, intake):
        if is_json(raw):
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


def is_json(start: bytes) -> bool:
    """Whether a file is JSON. Protobuf also starts with a line feed, so that counts only if a JSON key follows."""
    start = start.removeprefix(codecs.BOM_UTF8)
    if len(start) > 1 and start.isspace():
        return True
    return start.lstrip(b" \t\r")[:1] in (b"{", b"[") or (start[:1].isspace() and bool(_FIRST_KEY.match(start)))
