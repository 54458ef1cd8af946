"""The parts of a message: texts, tool calls and their results, in every convention."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from traces.model import Json
from traces.otel.recover.concepts import first, load_json


class AskedCall(NamedTuple):
    """A tool call that a model asked for."""

    id: str | None
    name: str
    arguments: Json


def read_part(part: Json, texts: list[str], calls: list[AskedCall], answers: list[str]) -> None:
    """Add what a part of a message holds to its texts, the calls that it asks for, and the ids of those it answers."""
    if isinstance(part, str):
        texts.append(part)
        return
    if not isinstance(part, dict):
        if part is not None:
            texts.append(dump(part))
        return
    kind = part.get("type")
    if kind == "text" and len(part) == 2 and isinstance(text := part.get("content"), str):  # most parts are this
        texts.append(text)
        return
    if isinstance(inner := part.get("message_content"), dict):
        part = inner
        kind = part.get("type")
    if kind is None and any(key.startswith("message_content.") for key in part):
        part = {key.removeprefix("message_content."): item for key, item in part.items()}
        kind = part.get("type")
    if not _PROVIDER_KEYS.isdisjoint(part) and _read_provider_part(part, texts, calls, answers):
        return
    if kind in ("tool_call", "tool_use", "function_call", "tool-call"):
        call_id, name = first(part, ("id", "call_id", "toolCallId")), first(part, ("name", "toolName"))
        arguments = first(part, ("arguments", "input", "args"))
        calls.append(AskedCall(text_or_none(call_id), str(name), load_json(arguments)))
    elif kind in ("tool_call_response", "tool_result", "function_call_output", "tool-result"):
        if (answered := first(part, ("id", "tool_use_id", "call_id", "toolCallId"))) is not None:
            answers.append(str(answered))
        answer = part.get("response", part.get("result", part.get("content", part.get("output"))))
        texts.append(answer if isinstance(answer, str) else dump(answer))
    elif kind not in ("reasoning", "thinking"):
        text = part.get("content", part.get("text"))
        texts.append(text if isinstance(text, str) else "" if text is None else dump(text))


_PROVIDER_KEYS = frozenset(("toolUse", "toolResult", "function_call", "function_response"))


def _read_provider_part(part: Mapping[str, Any], texts: list[str], calls: list[AskedCall], answers: list[str]) -> bool:
    """The same for a part as Bedrock or Gemini writes it. Returns whether it is one."""
    if isinstance(tool_use := part.get("toolUse"), dict):
        calls.append(
            AskedCall(text_or_none(tool_use.get("toolUseId")), str(tool_use.get("name")), tool_use.get("input"))
        )
    elif isinstance(result := part.get("toolResult"), dict):
        answers.append(str(result.get("toolUseId")))
        texts.append(join_parts(result.get("content")))
    elif isinstance(asked := part.get("function_call"), dict):
        calls.append(AskedCall(text_or_none(asked.get("id")), str(asked.get("name")), asked.get("args")))
    elif isinstance(response := part.get("function_response"), dict):
        answers += [str(response["id"])] if response.get("id") else []
        texts.append(dump(response.get("response")))
    else:
        return False
    return True


def list_calls(value: Mapping[str, Any]) -> Iterator[AskedCall]:
    asked = value.get("tool_calls")
    if isinstance(asked, dict):
        asked = [each for _, each in list_numbered(asked)]
    for each in asked if isinstance(asked, list) else ():
        if not isinstance(each, dict):
            continue
        call: Mapping[str, Any] = inner if isinstance(inner := each.get("tool_call"), dict) else each
        if any(key.startswith("tool_call.") for key in call):
            call = {key.removeprefix("tool_call."): item for key, item in call.items()}
        function: Mapping[str, Any] = wanted if isinstance(wanted := call.get("function"), dict) else call
        name = function.get("name", call.get("function.name", call.get("name")))
        arguments = function.get("arguments", call.get("function.arguments", function.get("args")))
        yield AskedCall(text_or_none(call.get("id")), str(name), load_json(arguments))


def join_parts(value: Json) -> str:
    """The text of content that may be a text, a part, or a list of parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict) and not {"content", "text"}.isdisjoint(part):
            read_part(part, texts, [], [])
        else:
            texts.append(part if isinstance(part, str) else dump(part))
    return "\n".join(text for text in texts if text)


def dump(value: Json) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # nested too deeply for orjson, or a number of more than 64 bits
        try:
            return json.dumps(value, default=str)
        except (RecursionError, ValueError):
            return ""


def text_or_none(value: Json) -> str | None:
    return None if value is None else str(value)


def unflatten(attributes: Mapping[str, Json], prefix: str) -> list[dict[str, Any]]:
    """`messages.0.content = x` as `[{"content": x}]`: numbers are places in lists."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        at = root
        *path, last = key[len(prefix) :].split(".")
        for part in path:
            inner = at.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            at = inner
        else:
            at[last] = value
    return [each for _, each in list_numbered(root)]


def list_numbered(tree: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    numbered = ((int(key), value) for key, value in tree.items() if key.isdecimal() and isinstance(value, dict))
    return iter(sorted(numbered, key=lambda pair: pair[0]))


def load_python(text: str) -> Json:
    """A value that was written as Python shows it; None if it is not such a value."""
    if len(text) >= 100_000:
        return None
    try:
        return load_json(orjson.dumps(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def read_shown(text: str) -> Json:
    """The content of a message that pydantic shows as `source='user' ... content='...' type='...'`; None of others."""
    if "source='" not in text[:100]:
        return None
    return load_python(text.partition(" content=")[2].rpartition(" type='")[0])
