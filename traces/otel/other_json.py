"""Spans as other tools write them in JSON: the Python SDK, Jaeger, Phoenix, and OTLP that is not quite by the book."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import orjson

from traces.errors import Place
from traces.model import Json
from traces.otel.spans import Event, Link, Span, add_exception_type, read_id


def split_documents(raw: bytes) -> Iterator[Json]:
    """The JSON documents of some bytes: one, or several one after another, as the console exporter writes them."""
    try:
        yield orjson.loads(raw)
    except orjson.JSONDecodeError:
        text = raw.decode()
        decoder = json.JSONDecoder()
        position = _skip_space(text, 0)
        while position < len(text):
            document, position = decoder.raw_decode(text, position)
            yield document
            position = _skip_space(text, position)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def read_document(document: Json, place: Place) -> list[Span]:
    """The spans of a parsed JSON document. Raises some error if it is not an export that we know."""
    if isinstance(document, list):
        return [span for each in document for span in read_document(each, place)]
    if not isinstance(document, dict):
        raise TypeError
    if isinstance(batches := _get(document, "resourceSpans"), list):
        return [span for each in batches for span in _read_resource_spans(each, place)]
    if isinstance(data := document.get("data"), list) and data:
        return read_document(data, place)
    if isinstance(spans := document.get("spans"), list) and _get(document, "traceID") is not None:
        return [_read_jaeger_span(span, document, place) for span in spans]
    if isinstance(spans, list):
        return read_document(spans, place)
    context = document.get("context")
    if isinstance(context, dict) and "span_id" in context:
        return [_read_flat_span(document, context.get("trace_id"), context["span_id"], place)]
    if "context.span_id" in document:
        return [_read_flat_span(document, document.get("context.trace_id"), document["context.span_id"], place)]
    if _get(document, "spanId") is not None and _get(document, "traceId") is not None:
        return [_read_loose_span(document, "", "", place)]
    raise KeyError("spans")


def _get(fields: Mapping[str, Any], name: str) -> Json:
    """A field by its name in camel case, or the same in snake case."""
    if name in fields:
        return fields[name]
    return fields.get("".join(f"_{each.lower()}" if each.isupper() else each for each in name))


def _read_resource_spans(fields: Mapping[str, Any], place: Place) -> Iterator[Span]:
    resource = fields.get("resource") or {}
    service = _read_pairs(resource.get("attributes")).get("service.name", "")
    for scope_spans in _get(fields, "scopeSpans") or ():
        scope = (scope_spans.get("scope") or {}).get("name") or ""
        for span in scope_spans.get("spans") or ():
            yield _read_loose_span(span, str(scope), str(service), place)


def _read_loose_span(fields: Mapping[str, Any], scope: str, service: str, place: Place) -> Span:
    """A span of OTLP with names in snake case, enums as words, nulls, or ids in base64."""
    attributes = _read_pairs(fields.get("attributes"))
    status = fields.get("status") or {}
    code = _get(fields, "statusCode") or (status.get("code") if isinstance(status, dict) else status)
    is_error = code == 2 or str(code).upper().endswith("ERROR")
    message = _get(fields, "statusMessage") or (status.get("message") if isinstance(status, dict) else "")
    events = tuple(
        Event(str(each.get("name", "")), _read_pairs(each.get("attributes"))) for each in fields.get("events") or ()
    )
    if is_error:
        add_exception_type(attributes, events)
    links = tuple(
        Link(read_id(_get(each, "traceId"), 32), read_id(_get(each, "spanId"), 16), _read_pairs(each.get("attributes")))
        for each in fields.get("links") or ()
    )
    parent = _get(fields, "parentSpanId") or _get(fields, "parentId")
    start, end = (
        _get(fields, long) or _get(fields, short)
        for long, short in (("startTimeUnixNano", "startTime"), ("endTimeUnixNano", "endTime"))
    )
    return Span(
        read_id(_get(fields, "traceId"), 32),
        read_id(_get(fields, "spanId"), 16),
        read_id(parent, 16) if parent else None,
        str(fields.get("name", "")),
        0,
        _read_time(start),
        _read_time(end),
        attributes,
        links,
        is_error,
        str(message or "") if is_error else "",
        scope,
        events,
        service,
        place,
    )


def _read_pairs(attributes: Json) -> dict[str, Json]:
    """Attributes as a mapping, or as OTLP's list of keys and typed values."""
    if isinstance(attributes, dict):
        return dict(attributes)
    return {str(each["key"]): _read_typed(each.get("value")) for each in attributes or ()}


def _read_typed(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    for name, typed in value.items():
        if typed is None:
            continue
        match name.replace("_", "").lower():
            case "stringvalue" | "boolvalue" | "doublevalue":
                return typed
            case "intvalue":
                return int(typed)
            case "arrayvalue":
                return [_read_typed(each) for each in typed.get("values") or ()]
            case "kvlistvalue":
                return _read_pairs(typed.get("values"))
            case "bytesvalue":
                return str(typed)
    return None


def _read_flat_span(fields: Mapping[str, Any], trace_id: Json, span_id: Json, place: Place) -> Span:
    """A span of the Python SDK's `to_json`, of Phoenix's REST interface, or of a row of Phoenix's data frame."""
    attributes = dict(_list_flat_attributes(fields))
    if (kind := fields.get("span_kind")) and kind != "UNKNOWN":
        attributes.setdefault("openinference.span.kind", kind)
    status: Mapping[str, Any] = inner if isinstance(inner := fields.get("status"), dict) else {}
    code = str(fields.get("status_code") or status.get("status_code") or "")
    message = str(fields.get("status_message") or status.get("description") or "")
    events = tuple(_read_event(each) for each in fields.get("events") or ())
    is_error = code.upper().endswith("ERROR")
    if is_error:
        add_exception_type(attributes, events)
    links = tuple(
        Link(
            read_id(each["context"]["trace_id"], 32),
            read_id(each["context"]["span_id"], 16),
            each.get("attributes") or {},
        )
        for each in fields.get("links") or ()
    )
    resource = fields.get("resource")
    service = (resource.get("attributes") or {}).get("service.name", "") if isinstance(resource, dict) else ""
    parent = fields.get("parent_id")
    return Span(
        read_id(trace_id, 32),
        read_id(span_id, 16),
        read_id(parent, 16) if parent else None,
        str(fields.get("name", "")),
        0,
        _read_time(fields.get("start_time")),
        _read_time(fields.get("end_time")),
        attributes,
        links,
        is_error,
        message if is_error else "",
        "",
        events,
        str(service),
        place,
    )


def _list_flat_attributes(fields: Mapping[str, Any]) -> Iterable[tuple[str, Json]]:
    if isinstance(inner := fields.get("attributes"), dict):
        yield from inner.items()
    for key, value in fields.items():
        if key.startswith("attributes.") and value is not None:
            yield key.removeprefix("attributes."), value


def _read_event(fields: Mapping[str, Any]) -> Event:
    return Event(str(fields.get("name", "")), fields.get("attributes") or {})


def _read_jaeger_span(fields: Mapping[str, Any], trace: Mapping[str, Any], place: Place) -> Span:
    tags = {tag["key"]: tag.get("value") for tag in fields.get("tags") or ()}
    references = fields.get("references") or ()
    parent = next(
        (each["spanID"] for each in references if each.get("refType") == "CHILD_OF"), fields.get("parentSpanID")
    )
    links = tuple(
        Link(read_id(each["traceID"], 32), read_id(each["spanID"], 16), {})
        for each in references
        if each.get("refType") == "FOLLOWS_FROM"
    )
    events = tuple(_read_jaeger_log(each) for each in fields.get("logs") or ())
    process = (trace.get("processes") or {}).get(fields.get("processID"), fields.get("process")) or {}
    is_error = tags.pop("otel.status_code", None) == "ERROR" or tags.pop("error", False) in (True, "true")
    message = str(tags.pop("otel.status_description", ""))
    start = int(fields.get("startTime") or 0) * 1000
    if is_error:
        add_exception_type(tags, events)
    return Span(
        read_id(fields["traceID"], 32),
        read_id(fields["spanID"], 16),
        read_id(parent, 16) if parent else None,
        str(fields.get("operationName", "")),
        0,
        start or None,
        start + int(fields.get("duration") or 0) * 1000 if start else None,
        tags,
        links,
        is_error,
        message if is_error else "",
        str(tags.get("otel.scope.name", tags.get("otel.library.name", ""))),
        events,
        str(process.get("serviceName", "")),
        place,
    )


def _read_jaeger_log(log: Mapping[str, Any]) -> Event:
    fields = {each["key"]: each.get("value") for each in log.get("fields") or ()}
    return Event(str(fields.pop("event", "")), fields)


def _read_time(value: Json) -> int | None:
    """Nanoseconds of an ISO time, or of seconds, milli-, micro- or nanoseconds since 1970."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
        value = float(value) if "." in value else int(value)
    if isinstance(value, int | float):
        scale = next((scale for limit, scale in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3)) if value < limit), 1)
        return int(value * scale) or None
    moment = datetime.fromisoformat(str(value))
    seconds = int(moment.replace(microsecond=0).timestamp()) if moment.tzinfo else int(moment.timestamp())
    return seconds * 10**9 + moment.microsecond * 1000
