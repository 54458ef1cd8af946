"""Spans as rows: JSON objects with the fields of a span, under the names that different tools give them.

These are the Python SDK's `to_json`, Phoenix's rows and its OTLP in snake case, Logfire's records, ClickHouse tables,
nested spans (`child_spans`), and OTLP that is not quite by the book. Names are compared without case, dots and
underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from traces.errors import Place
from traces.model import Json
from traces.otel.intake import check_count, measure
from traces.otel.spans import Event, Link, Log, Span, add_exception_type, read_id

_TRACE_ID = ("traceid", "contexttraceid")
_SPAN_ID = ("spanid", "contextspanid")
_PARENT_ID = ("parentspanid", "parentid")
_NAME = ("name", "spanname")
_START = ("starttimeunixnano", "starttime", "starttimestamp", "timestamp")
_END = ("endtimeunixnano", "endtime", "endtimestamp")
_ATTRIBUTES = ("attributes", "spanattributes")
_STATUS_CODE = ("statuscode", "otelstatuscode")
_STATUS_MESSAGE = ("statusmessage", "otelstatusmessage", "exceptionmessage")
_OPENINFERENCE_KINDS = frozenset(
    ("LLM", "CHAIN", "AGENT", "TOOL", "RETRIEVER", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT")
)


class Row:
    """The fields of a JSON object by their names without case, dots and underscores."""

    __slots__ = ("fields", "raw")

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.fields = {_simplify(name): value for name, value in raw.items()}

    def get(self, *names: str) -> Any:
        """The first of these fields that has a value."""
        for name in names:
            value = self.fields.get(name)
            if value is not None and value != "":
                return value
        return None


@lru_cache(4096)
def _simplify(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower() if len(name) < 100 else name


def is_row(row: Row) -> bool:
    """Whether a row is a span or a log record of one."""
    return isinstance(row.fields.get("context"), dict) or row.get(*_SPAN_ID) is not None


def read_rows(row: Row, place: Place, *, scope: str = "", service: str = "") -> Iterator[Span | Log]:
    """The span of a row and the spans inside it; or the log record of a row."""
    if row.get("kind") == "pending_span":  # Logfire's note that a span has begun
        return
    waiting = [(row, None, None)]
    while waiting:
        each, trace_id, parent_id = waiting.pop()
        span = _read_span(each, place, trace_id=trace_id, parent_id=parent_id, scope=scope, service=service)
        yield span
        if isinstance(span, Span):
            inner = each.get("childspans") or ()
            waiting += [(Row(child), span.trace_id, span.span_id) for child in reversed(inner)]  # type: ignore[misc]


def _read_span(
    row: Row, place: Place, *, trace_id: str | None, parent_id: str | None, scope: str, service: str
) -> Span | Log:
    context = Row(inner) if isinstance(inner := row.get("context"), dict) else row
    found_trace = context.get(*_TRACE_ID)
    trace_id = trace_id if found_trace is None else read_id(found_trace, 32)
    span_id = read_id(context.get(*_SPAN_ID), 16)
    if trace_id is None:
        raise ValueError(f"span {span_id} has no trace id")
    if row.get("body", "severitynumber", "severitytext") is not None and row.get(*_NAME, *_END) is None:
        return read_log(row, trace_id, span_id)
    attributes = dict(_list_attributes(row))
    check_count(len(attributes))
    for value in attributes.values():
        if isinstance(value, list | dict):
            measure(value)
    events = tuple(_read_event(Row(each)) for each in _read_list(row.get("events", "otelevents")))
    status = Row(inner) if isinstance(inner := row.get("status"), dict) else row
    code = row.get(*_STATUS_CODE) or status.get("code", *_STATUS_CODE, "status")
    is_error = code == 2 or (isinstance(code, str) and code.upper().endswith("ERROR"))
    message: Json = ""
    if is_error:
        message = row.get(*_STATUS_MESSAGE) or status.get("message", "description") or ""
        if (kind := row.get("exceptiontype")) is not None:
            attributes.setdefault("error.type", kind)
        add_exception_type(attributes, events)
    parent = row.get(*_PARENT_ID)
    start, end = _read_times(row)
    return Span(
        trace_id,
        span_id,
        read_id(parent, 16) if parent else parent_id,
        str(row.get(*_NAME) or ""),
        0,
        start,
        end,
        attributes,
        tuple(_read_link(Row(each)) for each in _read_list(row.get("links", "otellinks"))),
        is_error,
        str(message),
        scope or str(row.get("scopename", "otelscopename") or ""),
        events,
        service or _read_service(row),
        place,
    )


def read_log(row: Row, trace_id: str, span_id: str) -> Log:
    """A log record. The content of a message is the body, or an attribute in the conventions before and after."""
    attributes = read_pairs(row.get("attributes"))
    body = read_typed(row.get("body"))
    if isinstance(body, dict):
        attributes = {**attributes, **body}
    elif body is not None:
        attributes.setdefault("content", body)
    for value in attributes.values():
        measure(value)
    name = row.get("eventname") or attributes.get("event.name") or ""
    return Log(trace_id, span_id, Event(str(name), attributes))


def _list_attributes(row: Row) -> Iterator[tuple[str, Json]]:
    yield from read_pairs(row.get(*_ATTRIBUTES)).items()
    for key, value in row.raw.items():
        if key.startswith("attributes.") and value is not None:
            yield key.removeprefix("attributes."), value
    kind = row.get("spankind")
    if kind in _OPENINFERENCE_KINDS:
        yield "openinference.span.kind", kind


def read_pairs(attributes: Json) -> dict[str, Json]:
    """Attributes as a mapping, as JSON text, or as OTLP's list of keys and typed values."""
    if isinstance(attributes, str):
        attributes = _parse(attributes)
    if isinstance(attributes, dict):
        return dict(attributes)
    check_count(len(attributes or ()))
    return {str(each["key"]): read_typed(each.get("value")) for each in attributes or ()}


def read_typed(value: Json) -> Json:
    """A value of OTLP, `{"stringValue": …}`, also with other names and nulls for the types that it does not have."""
    if not isinstance(value, dict):
        return value
    for name, typed in value.items():
        if typed is None:
            continue
        match _simplify(name):
            case "stringvalue" | "boolvalue" | "doublevalue":
                return typed
            case "intvalue":
                return int(typed)
            case "arrayvalue":
                return [read_typed(each) for each in typed.get("values") or ()]
            case "kvlistvalue":
                return read_pairs(typed.get("values"))
            case "bytesvalue":
                return str(typed)
            case _:
                return value
    return None


def _read_list(value: Json) -> list[Any]:
    if isinstance(value, str):
        value = _parse(value)
    return value if isinstance(value, list) else []


def _parse(text: str) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(
            f"the attributes, events or links of a span are text that is not JSON: {text[:40]!r}"
        ) from error


def _read_event(row: Row) -> Event:
    attributes = read_pairs(row.get("attributes", "eventattributes"))
    for value in attributes.values():
        measure(value)
    return Event(str(row.get("name", "eventname") or ""), attributes)


def _read_link(row: Row) -> Link:
    context = Row(inner) if isinstance(inner := row.get("context"), dict) else row
    return Link(
        read_id(context.get(*_TRACE_ID), 32), read_id(context.get(*_SPAN_ID), 16), read_pairs(row.get("attributes"))
    )


def _read_service(row: Row) -> str:
    if (name := row.get("servicename")) is not None:
        return str(name)
    resource = row.get("resource")
    attributes = resource.get("attributes") if isinstance(resource, dict) else row.get("resourceattributes")
    return str(read_pairs(attributes).get("service.name", ""))


def _read_times(row: Row) -> tuple[int | None, int | None]:
    start, end = read_time(row.get(*_START)), read_time(row.get(*_END))
    if end is None and start is not None and (duration := row.get("duration")) is not None:
        end = start + _read_duration(duration)
    return start, end


_ISO_DURATION = re.compile(r"P(?:(\d+)D)?T?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d*)?)S)?")
_FRACTION = re.compile(r"\.(\d{1,9})\d*")


def _read_duration(value: Json) -> int:
    """Nanoseconds of `PT1M2.5S`, of a number of seconds with a point, or of a whole number of nanoseconds."""
    if isinstance(value, str) and (found := _ISO_DURATION.fullmatch(value)):
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 10**9)
    return int(value * 10**9) if isinstance(value, float) else int(value)


def read_time(value: Json) -> int | None:
    """Nanoseconds of an ISO time, or of seconds, milli-, micro- or nanoseconds since 1970."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
        value = float(value) if "." in value else int(value)
    if isinstance(value, int | float):
        scale = next((scale for limit, scale in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3)) if value < limit), 1)
        return _check_time(int(value * scale))
    text = str(value)
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    fraction = _FRACTION.search(text)
    nanoseconds = int(fraction[1].ljust(9, "0")) if fraction else 0
    return _check_time(int(moment.replace(microsecond=0).timestamp()) * 10**9 + nanoseconds)


def _check_time(nanoseconds: int) -> int | None:
    if not 0 <= nanoseconds < 2**63:
        raise ValueError(f"{nanoseconds} is not a time in nanoseconds")
    return nanoseconds or None
