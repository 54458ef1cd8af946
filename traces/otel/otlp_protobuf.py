"""OTLP spans and log records as protobuf: an ExportTraceServiceRequest or an ExportLogsServiceRequest.

Concatenated protobuf messages form one message with all their repeated fields, so a file can be written batch by batch.
It is read one ResourceSpans at a time, which bounds memory and lets errors name the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from traces.errors import Place, UnreadableTraceError
from traces.model import Json
from traces.otel.frames import RESOURCE_TAG, read_bytes, read_varint, report_truncated
from traces.otel.intake import Intake, check_count
from traces.otel.spans import Event, Link, Log, Span, add_exception_type


def decode(name: str, file: IO[bytes], intake: Intake, *, start: int = 0) -> Iterator[list[Span | Log]]:
    """Yield the spans and log records of an OTLP message, batch by batch; `start` is its first byte in the file."""
    for place, raw in _split_message(name, file, start, intake):
        found: list[Span | Log]
        try:
            message = trace_pb2.ResourceSpans.FromString(raw)
            found = _read_spans(message, place) if _has_spans(message) else _read_logs(raw, place)
        except DecodeError as error:
            try:
                found = _read_logs(raw, place)
            except DecodeError:
                raise UnreadableTraceError(f"is not OTLP protobuf: {error}; export it again", place=place) from error
        intake.check(found, size=len(raw))
        yield found


def _has_spans(message: trace_pb2.ResourceSpans) -> bool:
    """Whether a message holds spans; in one with log records, the first field of a span has another type."""
    return all(not scope_spans.spans or bool(scope_spans.spans[0].trace_id) for scope_spans in message.scope_spans)


def _read_spans(message: trace_pb2.ResourceSpans, place: Place) -> list[Span | Log]:
    service = next((item.value.string_value for item in message.resource.attributes if item.key == "service.name"), "")
    return [
        _read_span(span, scope_spans.scope.name, service, place)
        for scope_spans in message.scope_spans
        for span in scope_spans.spans
    ]


def _read_logs(raw: bytes, place: Place) -> list[Span | Log]:
    message = logs_pb2.ResourceLogs.FromString(raw)
    records = [record for scope_logs in message.scope_logs for record in scope_logs.log_records]
    if not any(record.trace_id or record.time_unix_nano or record.observed_time_unix_nano for record in records):
        raise UnreadableTraceError("has spans or log records without ids; export it again", place=place)
    return [_read_log(record, place) for record in records if record.span_id]


def _read_log(record: logs_pb2.LogRecord, place: Place) -> Log:
    attributes = _read_attributes(record.attributes)
    body = _read_value(record.body)
    if isinstance(body, dict):
        attributes = {**attributes, **body}
    elif body is not None:
        attributes.setdefault("content", body)
    if len(record.trace_id) != 16 or len(record.span_id) != 8:
        raise UnreadableTraceError(
            f"log record {record.event_name!r}: its trace id and span id must have 16 and 8 bytes", place=place
        )
    name = record.event_name or str(attributes.get("event.name", ""))
    return Log(record.trace_id.hex(), record.span_id.hex(), Event(name, attributes))


def _read_span(span: trace_pb2.Span, scope: str, service: str, place: Place) -> Span:
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    if len(trace_id) != 32 or len(span_id) != 16:
        raise UnreadableTraceError(
            f"span {span.name!r}: trace id {trace_id!r} and span id {span_id!r} must have 16 and 8 bytes", place=place
        )
    is_error = span.status.code == 2
    try:
        check_count(len(span.attributes))
    except ValueError as error:
        raise UnreadableTraceError(f"span {span.name!r} ({span_id}): {error}", place=place) from error
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


def _split_message(name: str, file: IO[bytes], start: int, intake: Intake) -> Iterator[tuple[Place, bytes]]:
    position = start
    while head := file.read(1):
        place = Place(name, byte=position)
        size, width = read_varint(file) if head[0] == RESOURCE_TAG else (0, 0)
        raw = read_bytes(file, size)
        if len(raw) < size or size == 0:
            report_truncated(size, len(raw), place, intake, is_cut=len(raw) < size)
            return
        yield place, raw
        position += 1 + width + size


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
