"""OTLP spans as protobuf: an ExportTraceServiceRequest, or the length-prefixed batches that collectors write.

Concatenated protobuf messages form one message with all their repeated fields, so a file can be written batch by batch.
It is read one ResourceSpans at a time, which bounds memory and lets errors name the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from traces.errors import Place, UnreadableTraceError, UnwritableTraceError
from traces.model import Json
from traces.otel.spans import Event, Link, Log, Span, add_exception_type

_RESOURCE_SPANS_TAG = 0x0A  # field 1, length-delimited: the only field of the message
_LARGEST_FRAME_BYTE = 0x08  # a frame starts with its big-endian length, which is below 128 MB


def decode(name: str, file: IO[bytes]) -> Iterator[list[Span | Log]]:
    """Yield the spans of an OTLP protobuf file, batch by batch."""
    for place, raw in _split_resource_spans(name, file):
        try:
            message = trace_pb2.ResourceSpans.FromString(raw)
        except DecodeError as error:
            raise UnreadableTraceError(f"is not OTLP protobuf: {error}; export it again", place=place) from error
        service = next(
            (item.value.string_value for item in message.resource.attributes if item.key == "service.name"), ""
        )
        yield [
            _read_span(span, scope_spans.scope.name, service, place)
            for scope_spans in message.scope_spans
            for span in scope_spans.spans
        ]


def _read_span(span: trace_pb2.Span, scope: str, service: str, place: Place) -> Span:
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    if len(trace_id) != 32 or len(span_id) != 16:
        raise UnreadableTraceError(
            f"span {span.name!r}: trace id {trace_id!r} and span id {span_id!r} must have 16 and 8 bytes", place=place
        )
    is_error = span.status.code == 2
    attributes = _read_attributes(span.attributes)
    events: tuple[Event, ...] = ()
    if span.events:
        events = tuple(Event(event.name, _read_attributes(event.attributes)) for event in span.events)
        if is_error:
            add_exception_type(attributes, events)
    return Span(
        trace_id,
        span_id,
        span.parent_span_id.hex() or None,
        span.name,
        span.kind,
        span.start_time_unix_nano or None,
        span.end_time_unix_nano or None,
        attributes,
        tuple(Link(link.trace_id.hex(), link.span_id.hex(), _read_attributes(link.attributes)) for link in span.links),
        is_error,
        span.status.message if is_error else "",
        scope,
        events,
        service,
        place,
    )


def encode(spans: Sequence[Span], *, resource: dict[str, Json]) -> bytes:
    """Encode all these spans as one message."""
    resource_spans = trace_pb2.ResourceSpans()
    _set_attributes(resource_spans.resource.attributes, resource)
    scopes: dict[str, Any] = {}
    try:
        for span in spans:
            if span.scope not in scopes:
                scopes[span.scope] = resource_spans.scope_spans.add()
                scopes[span.scope].scope.name = span.scope
            _fill_span(scopes[span.scope].spans.add(), span)
        return trace_pb2.TracesData(resource_spans=[resource_spans]).SerializeToString(deterministic=True)
    except (ValueError, TypeError, RecursionError, DecodeError) as error:
        raise UnwritableTraceError(f"a span of trace {spans[0].trace_id} cannot be written: {error}") from error


def _split_resource_spans(name: str, file: IO[bytes]) -> Iterator[tuple[Place, bytes]]:
    """Yield the serialized ResourceSpans of a file, each with the byte at which it starts."""
    position = 0
    is_framed: bool | None = None
    while head := file.read(1):
        place = Place(name, byte=position)
        if is_framed is None:
            is_framed = head[0] < _LARGEST_FRAME_BYTE
        if is_framed:
            header = head + file.read(3)
            size, width = (int.from_bytes(header, "big"), 4) if len(header) == 4 else (0, 4)
        elif head[0] == _RESOURCE_SPANS_TAG:
            size, width = _read_varint(file)
            width += 1
        else:
            raise UnreadableTraceError(
                f"is neither JSON nor OTLP protobuf: it starts with byte {head[0]:#04x}; pass an OTLP export or traces "
                "as JSON lines",
                place=place,
            )
        raw = _read_bytes(file, size)
        if len(raw) < size or size == 0:
            raise UnreadableTraceError(
                f"is truncated or not an OTLP export: a message of {size:,} bytes starts here, but only {len(raw):,} "
                "follow; export it again",
                place=place,
            )
        if is_framed:
            yield from _split_frame(name, raw, position)
        else:
            yield place, raw
        position += width + size


def _read_bytes(file: IO[bytes], size: int) -> bytes:
    """Read up to `size` bytes in pieces, so that a wrong size does not allocate that much memory."""
    parts = []
    while size > 0 and (part := file.read(min(size, 1 << 22))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _split_frame(name: str, raw: bytes, start: int) -> Iterator[tuple[Place, bytes]]:
    try:
        message = trace_pb2.TracesData.FromString(raw)
    except DecodeError as error:
        raise UnreadableTraceError(
            f"is not OTLP protobuf: {error}; export it again", place=Place(name, byte=start)
        ) from error
    for resource_spans in message.resource_spans:
        yield Place(name, byte=start), resource_spans.SerializeToString()


def _read_varint(file: IO[bytes]) -> tuple[int, int]:
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


def _read_attributes(items: Any) -> dict[str, Json]:
    attributes: dict[str, Json] = {}
    for item in items:
        value = item.value
        attributes[item.key] = value.string_value or _read_value(value)
    return attributes


def _read_value(value: AnyValue) -> Json:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_read_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return {item.key: _read_value(item.value) for item in value.kvlist_value.values}
        case "bytes_value":
            return value.bytes_value.hex()
        case field:
            return getattr(value, field)


def _fill_span(message: Any, span: Span) -> None:
    message.trace_id = bytes.fromhex(span.trace_id)
    message.span_id = bytes.fromhex(span.span_id)
    if span.parent_id:
        message.parent_span_id = bytes.fromhex(span.parent_id)
    message.name = span.name
    message.kind = span.kind
    message.start_time_unix_nano = span.start_ns or 0
    message.end_time_unix_nano = span.end_ns or 0
    _set_attributes(message.attributes, span.attributes)
    for link in span.links:
        added = message.links.add(trace_id=bytes.fromhex(link.trace_id), span_id=bytes.fromhex(link.span_id))
        _set_attributes(added.attributes, link.attributes)
    if span.is_error:
        message.status.code = 2
        message.status.message = span.status_message


def _set_attributes(items: Any, attributes: Any) -> None:
    for key, value in attributes.items():
        _set_value(items.add(key=key).value, value)


def _set_value(target: AnyValue, value: Json) -> None:
    match value:
        case str():
            target.string_value = value
        case bool():
            target.bool_value = value
        case int():
            if not -(2**63) <= value < 2**63:
                raise UnwritableTraceError(f"OTLP integers have 64 bits and {value} is larger; record it as text")
            target.int_value = value
        case float():
            target.double_value = value
        case list() | tuple():
            target.array_value.SetInParent()
            for item in value:
                _set_value(target.array_value.values.add(), item)
        case dict():
            target.kvlist_value.SetInParent()
            target.kvlist_value.values.extend(KeyValue(key=key) for key in value)
            for item, inner in zip(target.kvlist_value.values, value.values(), strict=True):
                _set_value(item.value, inner)
        case None:
            pass
        case _:
            raise UnwritableTraceError(f"{value!r} is not a JSON value and cannot be an attribute")
