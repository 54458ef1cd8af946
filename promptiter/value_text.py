"""The value of a surface as text: for people, and for files and models that only hold or write texts.

For people, few-shot examples read like the conversation that they are.
"""

from __future__ import annotations

import orjson

from promptiter.errors import SetupError
from promptiter.structure import TEXT_TYPES, Surface
from promptiter.wording import shorten
from traces.model import Json


def describe_value(value: Json) -> str:
    """A text as it is, examples as `user: ...` and `assistant: ...`, no examples as no text, other values as JSON."""
    if isinstance(value, str):
        return value
    if value == []:
        return ""
    if _is_conversation(value):
        return "\n".join(f"{message['role']}: {message['content']}" for message in value)
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def encode_value(value: Json) -> str:
    """The text that holds a value: itself, or JSON. `decode_value` reads it."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def decode_value(surface: Surface, text: str) -> Json:
    """The value of a surface that a text holds: itself, or JSON if the surface does not hold text."""
    if surface.type in TEXT_TYPES:
        return text
    if surface.type == "model":
        return text.strip()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SetupError(f"the source of {surface.id!r} must hold JSON, holds {shorten(text)}: {error}") from error


def _is_conversation(value: Json) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and set(each) == {"role", "content"} and isinstance(each["content"], str)
        for each in value
    )
