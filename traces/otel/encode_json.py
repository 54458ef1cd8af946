"""Write spans as OTLP JSON: one ExportTraceServiceRequest per line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from traces.errors import UnwritableTraceError
from traces.model import Json
from traces.otel.spans import Span


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
