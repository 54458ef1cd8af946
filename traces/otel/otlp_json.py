"""OTLP spans as JSON lines: one ExportTraceServiceRequest a line, as the OTLP file exporters write them.

Hand-written because `google.protobuf.json_format` reads the hex ids as base64 and is thirty times slower.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from traces.errors import Place, UnreadableTraceError, UnwritableTraceError
from traces.files import field_path, not_json
from traces.model import Json
from traces.otel.spans import Link, Span

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def decode(documents: Iterable[tuple[Place, bytes]]) -> Iterator[list[Span]]:
    """Yield the spans of each OTLP/JSON document; integers may be written as text, unknown fields are ignored."""
    for place, raw in documents:
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise not_json(raw, place) from error
        requests = document if isinstance(document, list) else [document]
        try:
            yield [span for request in requests for span in _spans(request, place)]
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, UnreadableTraceError):
                raise
            raise UnreadableTraceError(_what_is_wrong(document, error), place=place) from error


def encode(spans: Sequence[Span], *, resource: dict[str, Json]) -> bytes:
    """One line with all these spans."""
    scope_spans = [{"scope": {"name": scope}, "spans": group} for scope, group in _by_scope(spans).items()]
    request = {"resourceSpans": [{"resource": {"attributes": _key_values(resource)}, "scopeSpans": scope_spans}]}
    try:
        return orjson.dumps(request) + b"\n"
    except TypeError as error:  # orjson.JSONEncodeError
        raise UnwritableTraceError(f"a span of trace {spans[0].trace_id} cannot be written as JSON: {error}") from error


def _spans(request: dict[str, Any], place: Place) -> Iterator[Span]:
    if "resourceSpans" not in request:
        raise UnreadableTraceError("is no OTLP trace export: it has no 'resourceSpans'", place=place)
    for resource_spans in request["resourceSpans"]:
        for scope_spans in resource_spans.get("scopeSpans", ()):
            scope = scope_spans.get("scope", {}).get("name", "")
            for span in scope_spans.get("spans", ()):
                get = span.get
                trace_id, span_id = span["traceId"].lower(), span["spanId"].lower()
                if len(trace_id) != 32 or len(span_id) != 16:
                    raise UnreadableTraceError(
                        f"span {get('name', '')!r}: traceId {trace_id!r} and spanId {span_id!r} "
                        "must have 32 and 16 hex digits",
                        place=place,
                    )
                status = get("status")
                links = get("links")
                yield Span(
                    trace_id,
                    span_id,
                    (get("parentSpanId") or "").lower() or None,
                    get("name", ""),
                    get("kind", 0),
                    int(get("startTimeUnixNano") or 0) or None,
                    int(get("endTimeUnixNano") or 0) or None,
                    _attributes(get("attributes") or ()),
                    tuple(map(_link, links)) if links else (),
                    status.get("code") == 2 if status else False,
                    status.get("message", "") if status else "",
                    scope,
                    place,
                )


def _link(link: dict[str, Any]) -> Link:
    attributes = link.get("attributes")
    return Link(link["traceId"].lower(), link["spanId"].lower(), _attributes(attributes) if attributes else {})


def _attributes(items: Iterable[dict[str, Any]]) -> dict[str, Json]:
    # Almost all are text, and this is the hottest line of all reading.
    return {
        item["key"]: value["stringValue"] if "stringValue" in (value := item["value"]) else _any_value(value)
        for item in items
    }


def _any_value(value: dict[str, Any]) -> Json:
    for kind, content in value.items():
        if kind == "stringValue" or kind == "boolValue":
            return content
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_any_value(item) for item in content.get("values", ())]
        if kind == "doubleValue":
            return _NON_FINITE[content] if isinstance(content, str) else float(content)
        if kind == "kvlistValue":
            return _attributes(content.get("values", ()))
        if kind == "bytesValue":
            return base64.b64decode(content).hex()
    return None


def _by_scope(spans: Iterable[Span]) -> dict[str, list[dict[str, Any]]]:
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        fields: dict[str, Any] = {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.start_ns or 0),
            "endTimeUnixNano": str(span.end_ns or 0),
            "attributes": _key_values(span.attributes),
        }
        if span.parent_id:
            fields["parentSpanId"] = span.parent_id
        if span.links:
            fields["links"] = [
                {
                    "traceId": link.trace_id,
                    "spanId": link.span_id,
                    **({"attributes": _key_values(link.attributes)} if link.attributes else {}),
                }
                for link in span.links
            ]
        if span.is_error:
            fields["status"] = {"code": 2, "message": span.status_message}
        by_scope.setdefault(span.scope, []).append(fields)
    return by_scope


def _key_values(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Json) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            if not -(2**63) <= value < 2**63:
                raise UnwritableTraceError(f"OTLP holds integers of 64 bits; {value} is larger: write it as text")
            return {"intValue": str(value)}
        case float():
            return {
                "doubleValue": value
                if value - value == 0
                else str(value).replace("inf", "Infinity").replace("nan", "NaN")
            }
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": _key_values(value)}}
        case None:
            return {}
        case _:
            raise UnwritableTraceError(f"{value!r} is no JSON value and cannot be an attribute")


def _what_is_wrong(document: Any, error: Exception) -> str:
    """The reading above is quick and trusting; when it fails, a slow and careful look finds what to tell."""
    from pydantic import ValidationError

    try:
        _otlp_shape().validate_python(document)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        return (
            f"is no OTLP trace export: {field_path(first['loc'])}: {first['msg'].lower()}, got {first['input']!r:.60}"
        )
    return f"is no OTLP trace export: {error!r}"


@cache
def _otlp_shape() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from typing_extensions import TypedDict

    class KeyValue(TypedDict):
        key: str
        value: dict[str, Any]

    class Reference(TypedDict):
        traceId: str
        spanId: str

    class Marked(Reference, total=False):
        parentSpanId: str | None
        name: str
        kind: int
        startTimeUnixNano: int | str | None
        endTimeUnixNano: int | str | None
        attributes: list[KeyValue] | None
        links: list[Reference] | None
        status: dict[str, Any] | None

    class ScopeSpans(TypedDict, total=False):
        scope: dict[str, Any]
        spans: list[Marked]

    class ResourceSpans(TypedDict, total=False):
        scopeSpans: list[ScopeSpans]

    class Request(TypedDict):
        resourceSpans: list[ResourceSpans]

    return TypeAdapter(Request)
