"""Binary files with many messages, each after its length: in 4 bytes, as collectors write them, or as a varint.

A collector may compress each message, and the messages may be JSON as well as protobuf.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO

from traces.compression import is_packed, unpack
from traces.errors import Place, UnreadableTraceError
from traces.files import TraceReader
from traces.otel.intake import MAX_DOCUMENT_MB, Intake

RESOURCE_TAG = 0x0A
"""The first byte of an OTLP message: field 1, length-delimited, the only field of a request."""
_LARGEST_FRAME_BYTE = 0x08  # a frame starts with its big-endian length, which is below 128 MB


def is_framed(start: bytes) -> bool:
    """Whether a binary file starts with the length of a message, not with the message."""
    return bool(start) and start[0] != RESOURCE_TAG


def split_frames(name: str, file: TraceReader, intake: Intake) -> Iterator[tuple[Place, bytes]]:
    """Yield the messages of a file, unpacked, each with the byte at which it starts."""
    has_fixed_width = file.peek(1)[0] < _LARGEST_FRAME_BYTE
    position = 0
    while head := file.peek(1)[:1]:
        place = Place(name, byte=position)
        if has_fixed_width:
            header = file.read(4)
            size, width = int.from_bytes(header, "big") if len(header) == 4 else 0, 4
        else:
            size, width = read_varint(file)
            if position == 0 and file.peek(1)[:1] != bytes([RESOURCE_TAG]):
                raise UnreadableTraceError(
                    f"is neither JSON nor OTLP protobuf: it starts with byte {head[0]:#04x}; pass an export of spans "
                    "or traces as JSON lines",
                    place=place,
                )
        raw = read_bytes(file, size)
        if len(raw) < size or size == 0:
            is_cut = len(raw) < size or (has_fixed_width and len(header) < 4)
            report_truncated(size, len(raw), place, intake, is_cut=is_cut)
            return
        if is_packed(raw):
            raw = _unpack(raw, place)
        yield Place(name, byte=position + width), raw
        position += width + size


def _unpack(raw: bytes, place: Place) -> bytes:
    largest = MAX_DOCUMENT_MB << 20
    unpacked = read_bytes(unpack(io.BytesIO(raw), raw[:4], place), largest + 1)
    if len(unpacked) > largest:
        raise UnreadableTraceError(
            f"unpacks to more than {MAX_DOCUMENT_MB} MB; let the collector write smaller batches", place=place
        )
    return unpacked


def report_truncated(size: int, found: int, place: Place, intake: Intake, *, is_cut: bool) -> None:
    """Count a message that is cut off at the end of a file; refuse it if it is all there is."""
    if place.byte and is_cut:
        intake.warn("a half-written last message was left out", place)
        return
    raise UnreadableTraceError(
        f"is truncated or not an OTLP export: a message of {size:,} bytes starts here, but only {found:,} follow; "
        "export it again",
        place=place,
    )


def read_bytes(file: IO[bytes], size: int) -> bytes:
    """Read up to `size` bytes in pieces, so that a wrong size does not allocate that much memory."""
    parts = []
    while size > 0 and (part := file.read(min(size, 1 << 22))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_varint(file: IO[bytes]) -> tuple[int, int]:
    """Read a variable-length integer; returns it with its width, or zeros if the file ends inside it."""
    value = 0
    for width in range(1, 11):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << (7 * (width - 1))
        if byte[0] < 0x80:
            return value, width
    return 0, 0
