"""Documents of traces read and written with pydantic, which takes any value and says exactly what is wrong with one."""

from __future__ import annotations

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
        document = envelope.model_construct(schema_version=SCHEMA_VERSION, trace=trace)
        raw = document.__pydantic_serializer__.to_json(document, exclude_defaults=True)
    except ValueError as error:  # includes pydantic's PydanticSerializationError
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a value that JSON cannot represent: {error}"
        ) from error
    # pydantic writes NaN and Infinity, which are not valid JSON. A text may contain these words too: parse to be sure.
    if (b"NaN" in raw or b"Infinity" in raw) and not _is_json(raw):
        raise UnwritableTraceError(
            f"trace {trace.id!r} contains a NaN or infinite number, which JSON cannot represent; record it as text"
        )
    return raw


def read_any(raw: bytes, *, place: Place | None = None) -> ExecutionTrace:
    """Parse a trace whatever its document looks like, or say what is wrong with it."""
    from pydantic import ValidationError

    try:
        envelope: Any = _get_document_model().model_validate_json(raw)
    except TraceError as error:
        error.place = place
        raise
    except ValidationError as invalid:
        raise _explain(invalid, raw, place) from invalid
    if envelope.schema_version != SCHEMA_VERSION:
        raise _explain_version(envelope.schema_version, place)
    if (b"NaN" in raw or b"Infinity" in raw) and not _is_json(raw):
        raise explain_invalid_json(raw, place)
    return cast("ExecutionTrace", envelope.trace)


@cache
def _get_document_model() -> type[BaseModel]:
    from pydantic import BaseModel, ConfigDict

    class TraceDocument(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")
        schema_version: int
        trace: ExecutionTrace

    return TraceDocument


def _explain(invalid: ValidationError, raw: bytes, place: Place | None) -> TraceError:
    first = invalid.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return explain_invalid_json(raw, place)
    where = format_field_path(first["loc"])
    version = _find_version(raw)
    if version is not None and version != SCHEMA_VERSION:
        return _explain_version(version, place)
    if where in ("", "schema_version", "trace"):
        expected = f'{{"schema_version": {SCHEMA_VERSION}, "trace": {{...}}}}'
        return UnreadableTraceError(f"is not a trace: expected {expected}, got {_shorten(first['input'])}", place=place)
    more = f" (and {invalid.error_count() - 1} more)" if invalid.error_count() > 1 else ""
    got = "" if first["type"] == "missing" else f", got {_shorten(first['input'])}"
    return UnreadableTraceError(f"{where}: {_describe_problem(first['type'], first['msg'])}{got}{more}", place=place)


def _find_version(raw: bytes) -> Json:
    """Find the version that a document states, whatever else is wrong with it."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    version = document.get("schema_version") if isinstance(document, dict) else None
    return repr(version) if isinstance(version, bool) else version


def _explain_version(version: Json, place: Place | None) -> UnreadableTraceError:
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


def _is_json(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return "number out of range" in str(error)  # an integer beyond 64 bits is still JSON
    return True
