"""Spans as other tools write them in JSON: the Python SDK, Jaeger and Phoenix; and OTLP log records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from traces.errors import Place, UnreadableTraceError
from traces.model import Json
from traces.otel.spans import Event, Link, Span, add_exception_type


def read_document(document: Json, place: Place) -> list[Span] | None:
    """The spans of a parsed JSON document that is no OTLP; None if it is not an export that we know."""
    if isinstance(document, list):
        found: list[Span] = []
        for each in document:
            spans = read_document(each, place)
            if spans is None:
                return None
            found += spans
        return found
    if not isinstance(document, dict):
        return None
    if isinstance(data := document.get("data"), list) and data:
        if all(isinstance(each, dict) and "spans" in each for each in data):
            return [_read_jaeger_span(span, each, place) for each in data for span in each["spans"]]
        return read_document(data, place)
    if "spans" in document and "traceID" in document:
        return [_read_jaeger_span(span, document, place) for span in document["spans"]]
    context = document.get("context")
    if isinstance(context, dict) and "span_id" in context:
        return [_read_flat_span(document, str(context.get("trace_id")), str(context["span_id"]), place)]
    if "context.span_id" in document:
        return [_read_flat_span(document, str(document.get("context.trace_id")), str(document["context.span_id"]), place)]
    return None


def _read_flat_span(fields: Mapping[str, Any], trace_id: str, span_id: str, place: Place) -> Span:
    """A span of the Python SDK's `to_json`, of Phoenix's REST interface, or of a row of Phoenix's data frame."""
    attributes = dict(_list_flat_attributes(fields))
    if (kind := fields.get("span_kind")) and kind != "UNKNOWN":
        attributes.setdefault("openinference.span.kind", kind)
    status = fields.get("status") if isinstance(fields.get("status"), dict) else {}
    code = str(fields.get("status_code") or status.get("status_code") or "")
    message = str(fields.get("status_message") or status.get("description") or "")
    events = tuple(_read_event(each) for each in fields.get("events") or ())
    is_error = code.upper().endswith("ERROR")
    if is_error:
        add_exception_type(attributes, events)
    links = tuple(
        Link(_hex(each["context"]["trace_id"], 32), _hex(each["context"]["span_id"], 16), each.get("attributes") or {})
        for each in fields.get("links") or ()
    )
    resource = fields.get("resource")
    service = (resource.get("attributes") or {}).get("service.name", "") if isinstance(resource, dict) else ""
    parent = fields.get("parent_id")
    return Span(
        _hex(trace_id, 32),
        _hex(span_id, 16),
        _hex(str(parent), 16) if parent else None,
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
    parent = next((each["spanID"] for each in references if each.get("refType") == "CHILD_OF"), fields.get("parentSpanID"))
    links = tuple(
        Link(_hex(each["traceID"], 32), _hex(each["spanID"], 16), {})
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
        _hex(fields["traceID"], 32),
        _hex(fields["spanID"], 16),
        _hex(parent, 16) if parent else None,
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


def _hex(value: str, digits: int) -> str:
    text = str(value).lower().removeprefix("0x")
    if len(text) > digits or not text or any(each not in "0123456789abcdef" for each in text):
        raise UnreadableTraceError(f"{value!r:.60} is not an id of {digits} hex digits")
    return text.rjust(digits, "0")


def _read_time(value: Json) -> int | None:
    """Nanoseconds of an ISO time with any number of decimals, or of seconds, milli-, micro- or nanoseconds since 1970."""
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        scale = next((scale for limit, scale in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3)) if value < limit), 1)
        return int(value * scale) or None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise UnreadableTraceError(f"{value!r:.60} is not a time") from error
    seconds = int(moment.replace(microsecond=0).timestamp()) if moment.tzinfo else int(moment.timestamp())
    return seconds * 10**9 + moment.microsecond * 1000
