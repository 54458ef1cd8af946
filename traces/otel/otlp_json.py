"""OTLP spans as JSON lines: one ExportTraceServiceRequest per line, as OTLP file exporters write them.

msgspec decodes them straight into typed records. `google.protobuf.json_format` misreads the hex ids as base64 and is
thirty times slower. Field names are those of the format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import orjson

from traces.checked_documents import explain_invalid_json
from traces.errors import Place, UnreadableTraceError, UnwritableTraceError
from traces.model import Json
from traces.otel.spans import Event, Link, Log, Span, add_exception_type, is_hex, read_id

MAX_DEPTH = 100
"""How many levels an attribute may be nested: more than any exporter writes, and few enough for any Python's stack."""

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _KeyValue(msgspec.Struct, gc=False):
    key: str
    value: _AnyValue


class _Array(msgspec.Struct, gc=False):
    values: list[_AnyValue] = []


class _KeyValues(msgspec.Struct, gc=False):
    values: list[_KeyValue] = []


class _AnyValue(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    stringValue: str | None = None
    intValue: int | str | None = None
    boolValue: bool | None = None
    doubleValue: float | str | None = None
    arrayValue: _Array | None = None
    kvlistValue: _KeyValues | None = None
    bytesValue: str | None = None


class _Link(msgspec.Struct, gc=False):
    traceId: str
    spanId: str
    attributes: list[_KeyValue] | None = None


class _Status(msgspec.Struct, gc=False):
    code: int = 0
    message: str = ""


class _Event(msgspec.Struct, gc=False):
    name: str = ""
    attributes: list[_KeyValue] | None = None


class _Span(msgspec.Struct, gc=False):
    traceId: str
    spanId: str
    parentSpanId: str | None = None
    name: str = ""
    kind: int = 0
    startTimeUnixNano: int | str | None = None
    endTimeUnixNano: int | str | None = None
    attributes: list[_KeyValue] | None = None
    links: list[_Link] | None = None
    events: list[_Event] | None = None
    status: _Status | None = None


class _InstrumentationScope(msgspec.Struct, gc=False):
    name: str = ""


class _ScopeSpans(msgspec.Struct, gc=False):
    scope: _InstrumentationScope | None = None
    spans: list[_Span] = []


class _Resource(msgspec.Struct, gc=False):
    attributes: list[_KeyValue] | None = None


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopeSpans: list[_ScopeSpans] = []
    instrumentationLibrarySpans: msgspec.Raw | None = None


class _LogRecord(msgspec.Struct, gc=False):
    traceId: str = ""
    spanId: str = ""
    eventName: str = ""
    body: _AnyValue | None = None
    attributes: list[_KeyValue] | None = None


class _ScopeLogs(msgspec.Struct, gc=False):
    logRecords: list[_LogRecord] = []


class _ResourceLogs(msgspec.Struct, gc=False):
    scopeLogs: list[_ScopeLogs] = []


class _Request(msgspec.Struct, gc=False):
    resourceSpans: list[_ResourceSpans] | None = None
    resourceLogs: list[_ResourceLogs] | None = None


_decoder = msgspec.json.Decoder(_Request | list[_Request])


def decode(documents: Iterable[tuple[Place, bytes]]) -> Iterator[list[Span | Log]]:
    """Yield the spans and log records of each JSON document, in OTLP or as another tool writes them.

    Integers may be strings; unknown fields are ignored.
    """
    for place, raw in documents:
        try:
            document = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is one, too
            yield _read_other(raw, place, error)
            continue
        except RecursionError as error:
            raise UnreadableTraceError("is nested too deeply", place=place) from error
        requests = document if isinstance(document, list) else [document]
        if not all(request.resourceSpans is not None or request.resourceLogs is not None for request in requests):
            yield _read_other(raw, place, ValueError("it has no `resourceSpans`"))
            continue
        found: list[Span | Log] = [
            _read_span(span, scope_spans.scope.name if scope_spans.scope else "", service, place)
            for request in requests
            for resource_spans in request.resourceSpans or ()
            for service in [_read_service(resource_spans.resource)]
            for scope_spans in _check_version(resource_spans, place)
            for span in scope_spans.spans
        ]
        found += [
            _read_log(record, place)
            for request in requests
            for resource_logs in request.resourceLogs or ()
            for scope_logs in resource_logs.scopeLogs
            for record in scope_logs.logRecords
            if record.spanId
        ]
        yield found


def _read_other(raw: bytes, place: Place, problem: Exception) -> list[Span | Log]:
    """The spans of a document that is not plain OTLP; `problem` says why it is not."""
    from traces.otel import other_json

    if isinstance(problem, UnicodeDecodeError):
        raise explain_invalid_json(raw, place) from problem
    found: list[Span | Log] = []
    try:
        for document in other_json.split_documents(raw):
            found += other_json.read_document(document, place)
    except json.JSONDecodeError as error:
        raise explain_invalid_json(raw, place) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = f"is neither a promptiter trace nor an export of spans: {problem}"
        raise UnreadableTraceError(message, place=place) from error
    return found


def _read_log(record: _LogRecord, place: Place) -> Log:
    """A log record. The content of a message is the body, or an attribute in the conventions before and after."""
    try:
        attributes = _read_attributes(record.attributes) if record.attributes else {}
        body = _read_value(record.body, 0) if record.body is not None else None
        if isinstance(body, dict):
            attributes = {**attributes, **body}
        elif body is not None:
            attributes.setdefault("content", body)
        name = record.eventName or str(attributes.get("event.name", ""))
        return Log(read_id(record.traceId, 32), read_id(record.spanId, 16), Event(name, attributes))
    except (ValueError, KeyError) as error:
        raise UnreadableTraceError(f"log record {record.eventName!r}: {error}", place=place) from error


def encode(spans: Sequence[Span], *, resource: dict[str, Json]) -> bytes:
    """Encode all these spans as one line."""
    try:
        scope_spans = [{"scope": {"name": scope}, "spans": group} for scope, group in _group_by_scope(spans).items()]
        request = {
            "resourceSpans": [{"resource": {"attributes": _write_attributes(resource)}, "scopeSpans": scope_spans}]
        }
        return orjson.dumps(request) + b"\n"
    except (TypeError, RecursionError) as error:  # orjson.JSONEncodeError is a TypeError
        raise UnwritableTraceError(f"a span of trace {spans[0].trace_id} cannot be written as JSON: {error}") from error


def _check_version(resource_spans: _ResourceSpans, place: Place) -> list[_ScopeSpans]:
    if resource_spans.instrumentationLibrarySpans is not None:
        raise UnreadableTraceError(
            "is OTLP from before 2022 (instrumentationLibrarySpans); export it with a newer version", place=place
        )
    return resource_spans.scopeSpans


def _read_span(span: _Span, scope: str, service: str, place: Place) -> Span:
    trace_id, span_id, status = span.traceId.lower(), span.spanId.lower(), span.status
    parent_id = span.parentSpanId.lower() if span.parentSpanId else None
    is_error = status is not None and status.code == 2
    try:
        if len(trace_id) != 32 or len(span_id) != 16 or not is_hex(trace_id + span_id):
            trace_id, span_id = read_id(span.traceId, 32), read_id(span.spanId, 16)
            parent_id = read_id(span.parentSpanId, 16) if span.parentSpanId else None
        attributes = _read_attributes(span.attributes) if span.attributes else {}
        events: tuple[Event, ...] = ()
        if span.events:
            events = tuple(Event(event.name, _read_attributes(event.attributes or [])) for event in span.events)
            if is_error:
                add_exception_type(attributes, events)
        return Span(
            trace_id,
            span_id,
            parent_id,
            span.name,
            span.kind,
            _read_time(span.startTimeUnixNano),
            _read_time(span.endTimeUnixNano),
            attributes,
            tuple(map(_read_link, span.links)) if span.links else (),
            is_error,
            status.message if status else "",
            scope,
            events,
            service,
            place,
        )
    except (ValueError, KeyError) as error:
        message = f"span {span.name!r} (traceId {trace_id!r}, spanId {span_id!r}): {error}"
        raise UnreadableTraceError(message, place=place) from error


def _read_service(resource: _Resource | None) -> str:
    for item in (resource.attributes or ()) if resource else ():
        if item.key == "service.name":
            return item.value.stringValue or ""
    return ""


def _read_time(nanoseconds: int | str | None) -> int | None:
    if not nanoseconds:
        return None
    if isinstance(nanoseconds, str):
        if not nanoseconds.isdecimal():
            raise ValueError(f"{nanoseconds!r} is not a time in nanoseconds")
        nanoseconds = int(nanoseconds)
    if not 0 <= nanoseconds < 2**64:
        raise ValueError(f"{nanoseconds} is not a time in nanoseconds")
    return nanoseconds or None


def _read_link(link: _Link) -> Link:
    return Link(
        read_id(link.traceId, 32),
        read_id(link.spanId, 16),
        _read_attributes(link.attributes) if link.attributes else {},
    )


def _read_attributes(items: list[_KeyValue], depth: int = 0) -> dict[str, Json]:
    # Almost all values are strings, and this is the hottest line when reading.
    return {
        item.key: _read_value(item.value, depth) if (text := item.value.stringValue) is None else text for item in items
    }


def _read_value(value: _AnyValue, depth: int) -> Json:
    if depth == MAX_DEPTH:
        raise ValueError(f"an attribute is nested more than {MAX_DEPTH} levels deep")
    if value.stringValue is not None:
        return value.stringValue
    if value.intValue is not None:
        return int(value.intValue)
    if value.arrayValue is not None:
        return [_read_value(item, depth + 1) for item in value.arrayValue.values]
    if value.boolValue is not None:
        return value.boolValue
    if value.doubleValue is not None:
        return float(_NON_FINITE[value.doubleValue]) if isinstance(value.doubleValue, str) else value.doubleValue
    if value.kvlistValue is not None:
        return _read_attributes(value.kvlistValue.values, depth + 1)
    if value.bytesValue is not None:
        return base64.b64decode(value.bytesValue, validate=True).hex()
    return None


def _group_by_scope(spans: Iterable[Span]) -> dict[str, list[dict[str, Any]]]:
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        fields: dict[str, Any] = {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.start_ns or 0),
            "endTimeUnixNano": str(span.end_ns or 0),
            "attributes": _write_attributes(span.attributes),
        }
        if span.parent_id:
            fields["parentSpanId"] = span.parent_id
        if span.links:
            fields["links"] = [
                {
                    "traceId": link.trace_id,
                    "spanId": link.span_id,
                    **({"attributes": _write_attributes(link.attributes)} if link.attributes else {}),
                }
                for link in span.links
            ]
        if span.is_error:
            fields["status"] = {"code": 2, "message": span.status_message}
        by_scope.setdefault(span.scope, []).append(fields)
    return by_scope


def _write_attributes(attributes: Any) -> list[dict[str, Any]]:
    if not all(isinstance(key, str) for key in attributes):
        raise UnwritableTraceError(f"attribute names must be text, got {list(attributes)!r:.60}")
    return [{"key": key, "value": _write_value(value)} for key, value in attributes.items()]


def _write_value(value: Json) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            if not -(2**63) <= value < 2**63:
                raise UnwritableTraceError(f"OTLP integers have 64 bits and {value} is larger; record it as text")
            return {"intValue": str(value)}
        case float():
            return {
                "doubleValue": value
                if value - value == 0
                else str(value).replace("inf", "Infinity").replace("nan", "NaN")
            }
        case list() | tuple():
            return {"arrayValue": {"values": [_write_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": _write_attributes(value)}}
        case None:
            return {}
        case _:
            raise UnwritableTraceError(f"{value!r} is not a JSON value and cannot be an attribute")
