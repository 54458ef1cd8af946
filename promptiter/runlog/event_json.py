"""Events as JSON, as stores keep them. What is read back is equal to what was written."""

from __future__ import annotations

import json
from contextlib import suppress

import orjson
from pydantic import ValidationError

from promptiter.errors import JournalError
from promptiter.runlog.codec import describe_first_problem
from promptiter.runlog.events import SCHEMA_VERSION, Event
from traces.model import holds_non_finite

_FIELDS = tuple(Event.model_fields)


def encode_event(event: Event) -> bytes:
    """Encode an event on one line, without a line break. JournalError if it holds values that are not JSON."""
    values = vars(event)
    fields = {name: values[name] for name in _FIELDS} | {"measured": vars(event.measured)}
    if event.request is None:
        del fields["request"]
    try:
        raw = orjson.dumps(fields)
        if b"null" not in raw or not holds_non_finite(event.data):
            return raw
        problem = "it holds a NaN or infinite number"
    except orjson.JSONEncodeError as error:
        problem = str(error)
        with suppress(TypeError, ValueError):
            # A lone surrogate and integers beyond 64 bits are valid JSON too, and survive the round trip.
            raw = json.dumps(fields, allow_nan=False).encode()
            if json.loads(raw) == fields:
                return raw
    raise JournalError(
        f"event {event.seq} ({event.type}) cannot be stored as JSON: {problem}; record plain JSON values"
    )


def decode_event(raw: bytes, *, where: str) -> Event:
    """Decode an event. JournalError, which names `where` it is stored, if another release wrote it."""
    try:
        event = _parse(raw)
    except ValidationError as error:
        raise _describe_other_release(raw, where, describe_first_problem(error)) from error
    if event.schema_version != SCHEMA_VERSION:
        raise _describe_other_release(raw, where, "another version")
    return event


def _parse(raw: bytes) -> Event:
    try:
        return Event.model_validate_json(raw)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
    return Event.model_validate(json.loads(raw))


def _describe_other_release(raw: bytes, where: str, problem: str) -> JournalError:
    fields = json.loads(raw)
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        problem = f"its schema_version is {version!r}, this release reads {SCHEMA_VERSION}"
    return JournalError(f"{where} was written by another release of promptiter ({problem})")
