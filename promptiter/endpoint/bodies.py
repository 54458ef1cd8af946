"""What the protocols of the endpoint share: bodies of requests, the fields in them, and events of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import orjson

from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.errors import SetupError
from promptiter.llm.options import RESERVED_OPTIONS, check_options
from traces.model import Json

Body: TypeAlias = dict[str, Any]

_CHUNK_LENGTH = 200
"""Characters of text in one event of a stream."""


def parse_body(raw: bytes) -> dict[str, Json]:
    """The JSON object of a body."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusedRequestError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedRequestError(400, "the body is not a JSON object")
    return body


def read_model_name(body: Mapping[str, Json]) -> str:
    """The model that a body names."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RefusedRequestError(400, "the body names no model; give its name as `model`", param="model")
    return model


def read_options(body: Mapping[str, Json], *, known: Collection[str], options: Collection[str]) -> dict[str, Json]:
    """The `options` of a body, and all other fields that are not `known` under `extra_body`."""
    given = {name: value for name, value in body.items() if name not in known and value is not None}
    found = {name: value for name, value in given.items() if name in options}
    if extra := {name: value for name, value in given.items() if name not in options}:
        refused = next((name for name in extra if name in RESERVED_OPTIONS), None)
        if refused is not None:
            message = f"the endpoint does not take {refused!r}: {RESERVED_OPTIONS[refused]}"
            raise RefusedRequestError(400, message, param=refused)
        found["extra_body"] = extra
    try:
        check_options(found, place="the fields of the body", allows_choices=True)
    except SetupError as error:
        raise RefusedRequestError(400, str(error)) from None
    return found


def select_fields(body: Mapping[str, Json], names: Collection[str]) -> Body:
    """The fields of these names that a body has, and that are not null."""
    return {name: body[name] for name in names if body.get(name) is not None}


def refuse_built_in_tool(kind: Json, index: int) -> RefusedRequestError:
    """The error for a tool that a provider would run itself."""
    message = f"tool {index} is of type {kind!r}: the endpoint serves functions, not built-in tools of a provider"
    return RefusedRequestError(400, message, param=f"tools[{index}]")


def write_event(document: Json, *, name: str = "") -> bytes:
    """A server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(document) + b"\n\n"


def split_text(text: str) -> Iterator[str]:
    """The parts of a text that a stream sends one after the other."""
    return (text[start : start + _CHUNK_LENGTH] for start in range(0, len(text), _CHUNK_LENGTH))
