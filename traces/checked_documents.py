"""Documents of traces read and written with pydantic, which takes any value and says exactly what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import orjson

from traces.errors import Place, TraceError, UnreadableTraceError, UnwritableTraceError
from traces.model import SCHEMA_VERSION, ExecutionTrace, Json

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def write_any(trace: ExecutionTrace) -> bytes:
    """Serialize a trace whatever its values are, or say why that is not possible."""
    envelope = _get_document_model()
    try:
        document = envelope.model_construct(trace=trace)
        plain = document.__pydantic_serializer__.to_python(document, mode="json", exclude_defaults=True)
    except ValueError as error:  # includes pydantic's PydanticSerializationError
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a value that JSON cannot represent: {error}"
        ) from error
    try:
        return json.dumps(_flatten(plain["trace"]), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a NaN or infinite number, which JSON cannot represent; record it as text"
        ) from error


def read_any(raw: bytes, *, place: Place | None = None) -> ExecutionTrace:
    """Parse a trace whatever its document looks like, also as the first version wrote it, or say what is wrong."""
    from pydantic import ValidationError

    document = _parse(raw, place)
    version = document.get("schema_version")
    nested = {"trace": document.get("trace")} if version == 1 and "trace" in document else _nest(document)
    if isinstance(version, bool) or version not in (1, SCHEMA_VERSION):
        raise _explain_version(version, document, place)
    try:
        envelope: Any = _get_document_model().model_validate_json(json.dumps(nested))
    except TraceError as error:
        error.place = place
        raise
    except ValidationError as invalid:
        raise _explain(invalid, is_nested="trace" in document, place=place) from invalid
    return cast("ExecutionTrace", envelope.trace)


_NAMES = {"id": "step_id", "predecessors": "predecessor_step_ids"}
"""The fields of a step that have other names in a document."""


def _flatten(trace: dict[str, Any]) -> dict[str, Json]:
    """The document of a trace, given its fields."""
    steps = []
    for step in trace.pop("steps"):
        edges = step.get("edges", ())
        followed = {edge["source"] for edge in edges if edge.get("kind", "control") == "control"}
        read = {edge["source"] for edge in edges if edge.get("kind") == "data"} - followed
        sources = [source for source in step.pop("predecessors", ()) if source not in read]
        first = {"step_id": step.pop("id"), "node_id": step.pop("node_id"), "predecessor_step_ids": sources}
        steps.append(first | step)
    return {"schema_version": SCHEMA_VERSION, "trace_id": trace.pop("id"), "steps": steps, **trace}


def _nest(document: dict[str, Any]) -> dict[str, Json]:
    """The opposite: the fields of a trace, given its document."""
    trace = {{"trace_id": "id"}.get(name, name): value for name, value in document.items() if name != "schema_version"}
    if isinstance(trace.get("steps"), list):
        trace["steps"] = [_nest_step(step) if isinstance(step, dict) else step for step in trace["steps"]]
    return {"trace": trace}


def _nest_step(step: dict[str, Any]) -> dict[str, Any]:
    old = {name: own for own, name in _NAMES.items()}
    fields = {old.get(name, name): value for name, value in step.items()}
    sources, edges = fields.get("predecessors", []), fields.get("edges")
    if isinstance(sources, list) and isinstance(edges, list):
        read = [edge.get("source") for edge in edges if isinstance(edge, dict) and edge.get("kind") == "data"]
        fields["predecessors"] = [*sources, *(source for source in read if source not in sources)]
    return fields


def _parse(raw: bytes, place: Place | None) -> dict[str, Any]:
    """The fields of a document. Python's parser takes integers of any length, orjson does not."""
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise explain_invalid_json(raw, place) from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise _explain_other(document, place)
    return document


def _refuse_constant(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


@cache
def _get_document_model() -> type[BaseModel]:
    from pydantic import BaseModel, ConfigDict

    class TraceDocument(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")
        trace: ExecutionTrace

    return TraceDocument


def _explain(invalid: ValidationError, *, is_nested: bool, place: Place | None) -> TraceError:
    first = invalid.errors(include_url=False)[0]
    location = first["loc"] if is_nested else first["loc"][1:]
    where = format_field_path(location if is_nested else map(_name_field, location))
    if where in ("", "trace"):
        return _explain_other(first["input"], place)
    more = f" (and {invalid.error_count() - 1} more)" if invalid.error_count() > 1 else ""
    got = "" if first["type"] == "missing" else f", got {_shorten(first['input'])}"
    return UnreadableTraceError(f"{where}: {_describe_problem(first['type'], first['msg'])}{got}{more}", place=place)


def _name_field(part: int | str) -> int | str:
    return _NAMES.get(part, part) if isinstance(part, str) else part


def _explain_other(document: Json, place: Place | None) -> UnreadableTraceError:
    expected = f'{{"schema_version": {SCHEMA_VERSION}, "trace_id": …, "steps": […]}}'
    return UnreadableTraceError(f"is not a trace: expected {expected}, got {_shorten(document)}", place=place)


def _explain_version(version: Json, document: dict[str, Any], place: Place | None) -> UnreadableTraceError:
    if not isinstance(version, int):
        return _explain_other(document, place)
    message = f"schema_version is {version!r}, this release reads {SCHEMA_VERSION}; upgrade promptiter"
    return UnreadableTraceError(message, place=place)


def explain_invalid_json(raw: bytes, place: Place | None) -> UnreadableTraceError:
    """Build the error for bytes that are not JSON: what is wrong with them, and where."""
    reason = "it is nested too deeply or contains a number out of range"
    try:
        raw.decode()
        orjson.loads(raw)
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8 at byte {error.start} of the document"
    except orjson.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        if place is not None and place.line is None:
            place = Place(place.source, line=error.lineno)
    return UnreadableTraceError(
        f"is not valid JSON: {reason}; the file is truncated or damaged: write it again", place=place
    )


def format_field_path(location: Iterable[int | str]) -> str:
    """Format `("trace", "steps", 3, "id")` as `trace.steps[3].id`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _describe_problem(kind: str, message: str) -> str:
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return "is not a known field"
    if kind in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return "is missing"
    return message[:1].lower() + message[1:]


def _shorten(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
