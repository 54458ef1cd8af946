"""Write spans as OTLP protobuf. Concatenated messages form one message with all their repeated fields, so a file can be
written batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from traces.errors import UnwritableTraceError
from traces.model import Json
from traces.otel.spans import Span


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
