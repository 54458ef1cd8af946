"""OTLP spans as JSON lines: one ExportTraceServiceRequest per line, as OTLP file exporters write them.

msgspec decodes them straight into typed records. `google.protobuf.json_format` misreads the hex ids as base64 and is
thirty times slower. Field names are those of the format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from sys import intern

import msgspec
import orjson

from traces.checked_documents import explain_invalid_json
from traces.errors import Place, UnreadableTraceError
from traces.model import Json
from traces.otel.intake import Intake, check_count
from traces.otel.spans import MAX_DEPTH, Event, Link, Log, Span, add_exception_type, is_hex, read_id

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
    instrumentationLibrarySpans: list[msgspec.Raw] | None = None


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
    resourceMetrics: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Request | list[_Request])


def decode(documents: Iterable[tuple[Place, bytes]], intake: Intake) -> Iterator[list[Span | Log]]:
    """Yield the spans and log records of each JSON document, in OTLP or as another tool writes them.

    Integers may be strings; unknown fields are ignored. A last line that is only half written is counted.
    """
    is_first = True
    for place, raw in documents:
        found = _read_document(raw, place, intake, is_first=is_first)
        intake.check(found, size=len(raw))
        yield found
        is_first = False


def _read_document(raw: bytes, place: Place, intake: Intake, *, is_first: bool) -> list[Span | Log]:
    try:
        document = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is one, too
        if not is_first and not raw.endswith(b"\n") and not _is_whole(raw):
            intake.warn("a half-written last line was left out", place)
            return []
        return _read_other(raw, place, error, intake)
    except RecursionError as error:
        raise UnreadableTraceError("is nested too deeply", place=place) from error
    requests = document if isinstance(document, list) else [document]
    if not all(request.resourceSpans is not None or request.resourceLogs is not None for request in requests):
        if requests and all(request.resourceMetrics is not None for request in requests):
            intake.warn("a batch of metrics was left out", place)
            return []
        return _read_other(raw, place, ValueError("it has no `resourceSpans`"), intake)
    known: dict[str, str] = {}
    found: list[Span | Log] = [
        _read_span(span, scope_spans.scope.name if scope_spans.scope else "", service, place, known)
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
    return found


def _is_whole(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def _read_other(raw: bytes, place: Place, problem: Exception, intake: Intake) -> list[Span | Log]:
    """The spans of a document that is not plain OTLP; `problem` says why it is not."""
    from traces.otel import other_json

    if isinstance(problem, UnicodeDecodeError):
        raise explain_invalid_json(raw, place) from problem
    try:
        return other_json.read_documents(raw, place, intake)
    except json.JSONDecodeError as error:
        raise explain_invalid_json(raw, place) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if b"resourceSpans" not in raw[:1000]:
            problem = error
        message = f"is neither a promptiter trace nor an export of spans: {_describe(problem)}"
        raise UnreadableTraceError(message, place=place) from error


def _describe(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    return str(problem.args[0]) if isinstance(problem, KeyError) and problem.args else str(problem)


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


def _check_version(resource_spans: _ResourceSpans, place: Place) -> list[_ScopeSpans]:
    if resource_spans.instrumentationLibrarySpans is not None:
        raise UnreadableTraceError(
            "is OTLP from before 2022 (instrumentationLibrarySpans); export it with a newer version", place=place
        )
    return resource_spans.scopeSpans


def _read_span(span: _Span, scope: str, service: str, place: Place, known: dict[str, str]) -> Span:
    """A span. `known` are the trace ids of the document so far: many spans share one."""
    trace_id, span_id, status = span.traceId, span.spanId.lower(), span.status
    parent_id = span.parentSpanId.lower() if span.parentSpanId else None
    is_error = status is not None and status.code == 2
    try:
        if trace_id not in known:
            known[trace_id] = read_id(trace_id, 32)
        trace_id = known[trace_id]
        if len(span_id) != 16 or not is_hex(span_id) or len(span.traceId) != 32:
            span_id = read_id(span.spanId, 16)
            parent_id = read_id(span.parentSpanId, 16) if span.parentSpanId else None
        if span.attributes:
            check_count(len(span.attributes))
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
        if len(nanoseconds) == 19 and nanoseconds.isdecimal():  # all between 2001 and 2286
            return int(nanoseconds) or None
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
        intern(item.key): _read_value(item.value, depth) if (text := item.value.stringValue) is None else text
        for item in items
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
