"""The value of a surface as text for people: few-shot examples read like the conversation that they are."""

from __future__ import annotations

import orjson

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


def _is_conversation(value: Json) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and set(each) == {"role", "content"} and isinstance(each["content"], str)
        for each in value
    )
