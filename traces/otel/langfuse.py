"""Observations of Langfuse, from its API or its exports: spans with input, output and usage in fields of their own.

What the instrumentation recorded is in `metadata`; the fields fill in what is missing there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import orjson

from traces.errors import Place
from traces.model import Json
from traces.otel.intake import check_count, measure
from traces.otel.span_rows import Row, read_time
from traces.otel.spans import Span, read_id

_KINDS = {
    "GENERATION": "LLM",
    "EMBEDDING": "EMBEDDING",
    "AGENT": "AGENT",
    "TOOL": "TOOL",
    "CHAIN": "CHAIN",
    "RETRIEVER": "RETRIEVER",
    "EVALUATOR": "EVALUATOR",
    "GUARDRAIL": "GUARDRAIL",
}
_TYPES = frozenset((*_KINDS, "SPAN", "EVENT"))
_HEX = re.compile(r"[0-9a-f]+")


def is_observation(row: Row) -> bool:
    """Whether a JSON object is an observation of Langfuse."""
    return row.get("id") is not None and row.get("type") in _TYPES and row.get("starttime") is not None


def read_observation(row: Row, trace: Row, place: Place) -> Span:
    """An observation as a span; `trace` holds what its trace says about all of them."""
    metadata = _load(row.get("metadata"))
    metadata = metadata if isinstance(metadata, dict) else {}
    recorded = _load(metadata.get("attributes"))
    attributes: dict[str, Json] = {
        key: _load(value) if isinstance(value, str) and value[:1] == '"' else value
        for key, value in (recorded.items() if isinstance(recorded, dict) else ())
    }
    if not isinstance(recorded, dict):
        attributes.update((key, value) for key, value in metadata.items() if key not in ("resourceAttributes", "scope"))
    for key, value in _list_fields(row, trace):
        attributes.setdefault(key, value)
    check_count(len(attributes))
    for value in attributes.values():
        measure(value)
    is_error = row.get("level") == "ERROR"
    resource, scope = _load(metadata.get("resourceAttributes")), _load(metadata.get("scope"))
    parent = row.get("parentobservationid")
    return Span(
        _read_id(row.get("traceid") or trace.get("id"), 32),
        _read_id(row.get("id"), 16),
        _read_id(parent, 16) if parent else None,
        str(row.get("name") or ""),
        0,
        read_time(row.get("starttime")),
        read_time(row.get("endtime")),
        attributes,
        (),
        is_error,
        str(row.get("statusmessage") or "") if is_error else "",
        str(scope.get("name") or "") if isinstance(scope, dict) else "",
        (),
        str(resource.get("service.name") or "") if isinstance(resource, dict) else "",
        place,
    )


def _list_fields(row: Row, trace: Row) -> Iterator[tuple[str, Json]]:
    """What the fields of an observation say, as attributes."""
    if (kind := _KINDS.get(row.get("type"))) is not None:
        yield "openinference.span.kind", kind
        if kind == "AGENT" and row.get("name"):
            yield "agent.name", row.get("name")
        if kind == "TOOL" and row.get("name"):
            yield "tool.name", row.get("name")
    for key, value in (
        ("llm.model_name", row.get("model", "providedmodelname")),
        ("input.value", row.get("input")),
        ("output.value", row.get("output")),
        ("session.id", row.get("sessionid") or trace.get("sessionid")),
    ):
        if value is not None:
            yield key, _as_text(value)
    usage = _load(row.get("usagedetails", "usage"))
    if isinstance(usage, dict):
        for key, names in (
            ("llm.token_count.prompt", ("input", "promptTokens")),
            ("llm.token_count.completion", ("output", "completionTokens")),
            ("llm.token_count.prompt_details.cache_read", ("input_cached_tokens", "cache_read_input_tokens")),
        ):
            found = next((usage[name] for name in names if usage.get(name) is not None), None)
            if found is not None:
                yield key, found
    costs = _load(row.get("costdetails"))
    if isinstance(costs, dict) and (cost := costs.get("total")) is not None:
        yield "llm.cost.total", cost


def _read_id(value: Any, digits: int) -> str:
    """An id of OpenTelemetry as it is; one of Langfuse's own SDKs, such as a UUID, as a digest."""
    text = str(value).lower()
    if len(text) == digits and _HEX.fullmatch(text):
        return read_id(text, digits)
    if value is None or value == "":
        raise ValueError("it has no id")
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _as_text(value: Json) -> Json:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _load(value: Json) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value
