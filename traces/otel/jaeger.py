"""Spans as Jaeger's interface and its query API give them out: a trace with its processes, times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.errors import Place
from traces.otel.intake import check_count, measure
from traces.otel.spans import Event, Link, Span, add_exception_type, read_id


def is_jaeger_span(fields: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a span of Jaeger."""
    return "operationName" in fields and "spanID" in fields


def read_jaeger_span(fields: Mapping[str, Any], trace: Mapping[str, Any], place: Place) -> Span:
    """A span; its process is in its trace, if not in itself. Tags hold the status as well as attributes."""
    check_count(len(fields.get("tags") or ()))
    tags = {str(tag["key"]): tag.get("value") for tag in fields.get("tags") or ()}
    for value in tags.values():
        measure(value)
    references = fields.get("references") or ()
    parent = next(
        (each["spanID"] for each in references if each.get("refType") == "CHILD_OF"), fields.get("parentSpanID")
    )
    links = tuple(
        Link(read_id(each["traceID"], 32), read_id(each["spanID"], 16), {})
        for each in references
        if each.get("refType") == "FOLLOWS_FROM"
    )
    events = tuple(_read_log(each) for each in fields.get("logs") or ())
    process = (trace.get("processes") or {}).get(fields.get("processID"), fields.get("process")) or {}
    is_error = tags.pop("otel.status_code", None) == "ERROR" or tags.pop("error", False) in (True, "true")
    message = str(tags.pop("otel.status_description", ""))
    start, duration = int(fields.get("startTime") or 0) * 1000, int(fields.get("duration") or 0) * 1000
    if not 0 <= start < 2**63 or not 0 <= duration < 2**63:
        raise ValueError(f"{start} is not a time in nanoseconds")
    if is_error:
        add_exception_type(tags, events)
    return Span(
        read_id(fields["traceID"], 32),
        read_id(fields["spanID"], 16),
        read_id(parent, 16) if parent else None,
        str(fields.get("operationName", "")),
        0,
        start or None,
        start + duration if start else None,
        tags,
        links,
        is_error,
        message if is_error else "",
        str(tags.get("otel.scope.name", tags.get("otel.library.name", ""))),
        events,
        str(process.get("serviceName", "")),
        place,
    )


def _read_log(log: Mapping[str, Any]) -> Event:
    fields = {str(each["key"]): each.get("value") for each in log.get("fields") or ()}
    for value in fields.values():
        measure(value)
    return Event(str(fields.pop("event", "")), fields)
