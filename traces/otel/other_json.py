"""JSON exports of spans that are not plain OTLP: of the Python SDK, Jaeger, Phoenix, Langfuse, Logfire and others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from traces.errors import Place
from traces.model import Json
from traces.otel.intake import Intake
from traces.otel.jaeger import is_jaeger_span, read_jaeger_span
from traces.otel.langfuse import is_observation, read_observation
from traces.otel.span_rows import Row, is_row, read_log, read_pairs, read_rows
from traces.otel.spans import Log, Span, read_id

_LARGE_ID = re.compile(rb"[:\[]\s*\d{20,39}\s*[,}\]]")  # orjson makes floats of integers with more than 64 bits
_MAX_LISTS = 20  # how deep lists of lists of spans may be


def read_documents(raw: bytes, place: Place, intake: Intake) -> list[Span | Log]:
    """The spans and log records of one or more JSON documents. Raises some error if they are no export that we know."""
    try:
        return list(_read_document(orjson.loads(raw), place))
    except ValueError as error:  # a JSONDecodeError is one, too
        if not isinstance(error, json.JSONDecodeError) and not _LARGE_ID.search(raw):
            raise
    return [each for document in _split_documents(raw, place, intake) for each in _read_document(document, place)]


def _split_documents(raw: bytes, place: Place, intake: Intake) -> Iterator[Json]:
    """One document, or several one after another, as the console exporter writes them. The last may be half written."""
    text = raw.decode()
    decoder = json.JSONDecoder(parse_constant=str)  # NaN and Infinity, which JSON does not have, are kept as text
    has_surrogates = "\\ud" in text.lower()
    position = start = _skip_space(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip())
            if position == start or not is_cut:
                raise
            intake.warn("a half-written document at the end of a file was left out", place)
            return
        yield _repair(document) if has_surrogates else document
        position = _skip_space(text, position)


def _repair(value: Json) -> Json:
    """A document with halves of surrogate pairs, which are no text, replaced."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_repair(key): _repair(inner) for key, inner in value.items()}
    return [_repair(inner) for inner in value] if isinstance(value, list) else value


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _read_document(document: Json, place: Place, depth: int = 0) -> Iterator[Span | Log]:
    if depth > _MAX_LISTS:
        raise ValueError("it is nested too deeply")
    if isinstance(document, list):
        for each in document:
            yield from _read_document(each, place, depth + 1)
        return
    if not isinstance(document, dict):
        raise TypeError(f"it has {document!r:.40} where a span should be")
    row = Row(document)
    resources = row.get("resourcespans", "resourcelogs")
    if isinstance(resources, list):
        for each in resources:
            yield from _read_resource(Row(each), place)
    elif is_jaeger_span(document):
        yield read_jaeger_span(document, {}, place)
    elif isinstance(spans := document.get("spans"), list) and document.get("traceID") is not None:
        for span in spans:
            yield read_jaeger_span(span, document, place)
    elif isinstance(observations := document.get("observations"), list):
        for observation in observations:
            yield read_observation(Row(observation), Row(document), place)
    elif is_observation(row):
        yield read_observation(row, Row({}), place)
    elif is_row(row):
        yield from read_rows(row, place)
    elif isinstance(inner := row.get("data", "spans", "rows", "traces"), list):
        if not inner:
            raise ValueError("it is the empty answer of a query; widen its time range or its filter")
        yield from _read_document(inner, place, depth + 1)
    elif isinstance(columns := document.get("columns"), list):
        yield from _read_document(_turn_columns(columns), place, depth + 1)
    else:
        raise KeyError(
            f"it has neither spans nor a span id, but {', '.join(map(repr, list(document)[:5])) or 'nothing'}"
        )


def _turn_columns(columns: list[Any]) -> list[dict[str, Json]]:
    """The rows of Logfire's answer by columns: `[{"name": …, "values": […]}, …]`."""
    names = [column["name"] for column in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*(each["values"] for each in columns), strict=True)]


def _read_resource(row: Row, place: Place) -> Iterator[Span | Log]:
    resource: Mapping[str, Any] = row.get("resource") or {}
    service = str(read_pairs(resource.get("attributes")).get("service.name", ""))
    for inner in row.get("scopespans") or ():
        scope = inner.get("scope") or {}
        for span in inner.get("spans") or ():
            yield from read_rows(Row(span), place, scope=str(scope.get("name") or ""), service=service)
    for inner in map(Row, row.get("scopelogs") or ()):
        for record in map(Row, inner.get("logrecords") or ()):
            if record.get("spanid") is not None:
                yield read_log(record, read_id(record.get("traceid"), 32), read_id(record.get("spanid"), 16))
