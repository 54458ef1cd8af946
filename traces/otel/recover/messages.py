"""The messages of model calls, in every convention: as one attribute, as one attribute per field, or as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from traces.model import Json
from traces.otel.recover.concepts import as_data, first, load_json
from traces.otel.recover.parts import (
    AskedCall,
    dump,
    join_parts,
    list_calls,
    list_numbered,
    read_part,
    read_shown,
    text_or_none,
    unflatten,
)
from traces.otel.spans import Span


class Message(NamedTuple):
    """One message. `answers` are the ids of the tool calls whose results it holds."""

    role: str
    text: str
    calls: tuple[AskedCall, ...] = ()
    answers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The message as the GenAI conventions write it today."""
        parts: list[Json] = []
        if self.answers:
            parts += [{"type": "tool_call_response", "id": each, "response": self.text} for each in self.answers]
        elif self.text:
            parts.append({"type": "text", "content": self.text})
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": as_data(call.arguments)}
            for call in self.calls
        ]
        return {"role": self.role, "parts": parts}


class Conversation(NamedTuple):
    """What a model was asked and what it answered."""

    system: str
    asked: tuple[Message, ...]
    answered: tuple[Message, ...]


_INPUT = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "ai.prompt.messages")
_OUTPUT = ("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages")
_INPUT_VALUE = (
    "input.value",
    "langfuse.observation.input",
    "mlflow.spanInputs",
    "lmnr.span.input",
    "ai.prompt",
    "input",
    "request_data",
)
_OUTPUT_VALUE = (
    "output.value",
    "langfuse.observation.output",
    "mlflow.spanOutputs",
    "lmnr.span.output",
    "output",
    "response_data",
)
_SYSTEM_ROLES = ("system", "developer")
_FLAT_KEYS = {key: frozenset((f"{key}.0.role", f"{key}.0.content")) for key in (*_INPUT, *_OUTPUT)}
_NESTED = ("role", "content", "tool_calls.0.tool_call.function.name")
_NESTED_KEYS = {key: frozenset(f"{key}.0.message.{each}" for each in _NESTED) for key in (*_INPUT, *_OUTPUT)}
_CONTENT_KEYS = frozenset(("gen_ai.system_instructions", "events", "all_messages_events")).union(
    (*_INPUT, *_OUTPUT, *_INPUT_VALUE, *_OUTPUT_VALUE),
    *_FLAT_KEYS.values(),
    *_NESTED_KEYS.values(),
    ("gcp.vertex.agent.llm_request", "gen_ai.response.content", "ai.response.text", "ai.response.toolCalls"),
)
"""A span without events has messages only if it has one of these."""
_NOTHING = Conversation("", (), ())


def read_conversation(span: Span) -> Conversation:
    """The messages of a model call or an agent run, however they were recorded."""
    attributes = span.attributes
    if not span.events and _CONTENT_KEYS.isdisjoint(attributes):
        return _NOTHING
    asked = _read_side(attributes, _INPUT, "user")
    answered = _read_side(attributes, _OUTPUT, "assistant")
    system = _read_system(attributes.get("gen_ai.system_instructions"))
    if events := _list_events(span):
        of_events = _read_events(events)
        system = system or of_events.system
        asked, answered = asked or list(of_events.asked), answered or list(of_events.answered)
    if not asked and "gcp.vertex.agent.llm_request" in attributes:
        system, asked, answered = _read_gemini(attributes)
    if not answered and (text := first(attributes, ("gen_ai.response.content", "ai.response.text"))):
        answered = [Message("assistant", str(text))]
    listed = load_json(attributes["ai.response.toolCalls"]) if "ai.response.toolCalls" in attributes else None
    if listed and isinstance(listed, list):
        answered.append(
            _read_message(
                {"content": [{"type": "tool-call", **each} for each in listed if isinstance(each, dict)]}, "assistant"
            )
        )
    if not asked and (text := first(attributes, _INPUT_VALUE)) is not None:
        asked = _read_list(load_json(text), "user") or [Message("user", str(text))]
    if not answered and (text := first(attributes, _OUTPUT_VALUE)) is not None:
        loaded = load_json(text)
        items = [each for each in loaded if not _is_reasoning(each)] if isinstance(loaded, list) else [loaded]
        are_messages = items and all(isinstance(each, dict) and not _SAID_KEYS.isdisjoint(each) for each in items)
        answered = (_read_list(items, "assistant") if are_messages else []) or [
            Message("assistant", join_parts(loaded))
        ]
    while asked and asked[0].role in _SYSTEM_ROLES:
        system = "\n\n".join(part for part in (system, asked[0].text) if part)
        asked = asked[1:]
    return Conversation(system, tuple(asked), tuple(answered))


_SAID_KEYS = frozenset(("role", "message", "call_id"))
"""What a model answered is a message if it has one of these."""


def _is_reasoning(item: Json) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _read_system(value: Json) -> str:
    """The text of system instructions. They are the same in many spans, so those read last are remembered."""
    if isinstance(value, str) and len(value) < 20_000:
        return _remember_system(value)
    return join_parts(load_json(value))


@lru_cache(maxsize=256)
def _remember_system(value: str) -> str:
    return join_parts(load_json(value))


def _read_gemini(attributes: Mapping[str, Json]) -> tuple[str, list[Message], list[Message]]:
    """The request and the response of Gemini, which ADK writes as they are."""
    request = load_json(attributes.get("gcp.vertex.agent.llm_request"))
    response = load_json(attributes.get("gcp.vertex.agent.llm_response"))
    fields = request if isinstance(request, dict) else {}
    config = fields.get("config")
    system = join_parts(config.get("system_instruction")) if isinstance(config, dict) else ""
    content = response.get("content") if isinstance(response, dict) else None
    return system, _read_list(fields.get("contents"), "user"), _read_list(content, "assistant")


def has_messages(span: Span) -> bool:
    """Whether a span holds messages as such, and not only the arguments of a call."""
    return bool(_list_events(span)) or any(key.startswith(_INPUT) for key in span.attributes)


def _read_side(attributes: Mapping[str, Json], keys: Iterable[str], role: str) -> list[Message]:
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            if messages := _read_list(load_json(value), role):
                return messages
            if isinstance(value, str) and value:
                return [Message(role, value)]
        elif not _FLAT_KEYS[key].isdisjoint(attributes):
            return [_read_message(each, role) for each in unflatten(attributes, f"{key}.")]
        elif not _NESTED_KEYS[key].isdisjoint(attributes):
            return [_read_message(each.get("message", each), role) for each in unflatten(attributes, f"{key}.")]
    return []


def _read_list(value: Json, role: str) -> list[Message]:
    if isinstance(value, dict):
        inner = value.get("messages", value.get("message"))
        value = inner if isinstance(inner, list) else [value] if _looks_like_message(value) else []
    if not isinstance(value, list):
        return []
    while len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    messages: list[Message] = []
    for each in value:
        if isinstance(each, str) and (shown := read_shown(each)) is not None:
            each = {"content": shown}
        if not isinstance(each, dict) or _MESSAGE_KEYS.isdisjoint(each):
            return []
        messages.append(_read_message(each, role))
    return messages


_MESSAGE_KEYS = frozenset(
    ("role", "parts", "content", "kwargs", "message", "message.role", "message.content", "call_id")
)


def _looks_like_message(value: Mapping[str, Any]) -> bool:
    return not _MESSAGE_KEYS.isdisjoint(value)


_ROLES = {"model": "assistant"}
_LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


_GENAI_KEYS = frozenset(("role", "parts", "name", "finish_reason"))


def _read_message(value: Mapping[str, Any], default: str) -> Message:
    parts = value.get("parts")
    if isinstance(parts, list) and value.keys() <= _GENAI_KEYS:  # as the conventions say, and most do
        texts: list[str] = []
        calls: list[AskedCall] = []
        answers: list[str] = []
        for part in parts:
            read_part(part, texts, calls, answers)
        text = texts[0] if len(texts) == 1 else "\n".join(filter(None, texts))
        role = str(value.get("role") or default).lower()
        return Message(_ROLES.get(role, role), text, tuple(calls), tuple(answers))
    return _read_other_message(value, default)


def _read_other_message(value: Mapping[str, Any], default: str) -> Message:
    if isinstance(value.get("message"), dict):
        value = value["message"]
    if isinstance(value.get("kwargs"), dict):
        value = value["kwargs"]
    if any(key.startswith("message.") for key in value):
        value = {key.removeprefix("message."): item for key, item in value.items()}
    role = str(value.get("role") or _LANGCHAIN_ROLES.get(str(value.get("type")), "") or default).lower()
    role = _ROLES.get(role, role.rpartition(".")[2])  # `ChatRole.SYSTEM`, as Python shows the members of an enumeration
    content = _load_parts(value.get("parts", value.get("content", value.get("contents"))))
    calls = list(list_calls(value))
    answers = [str(each) for each in (value.get("tool_call_id"), value.get("call_id")) if each]
    texts: list[str] = []
    if isinstance(content, dict) and all(key.isdecimal() for key in content):
        content = [each for _, each in list_numbered(content)]
    for part in content if isinstance(content, list) else [content]:
        read_part(part, texts, calls, answers)
    if not texts and (output := value.get("output")) is not None:
        texts.append(output if isinstance(output, str) else dump(output))
    if value.get("type") == "function_call":  # an item of the Responses API
        calls.append(
            AskedCall(text_or_none(value.get("call_id")), str(value.get("name")), load_json(value.get("arguments")))
        )
        answers = []
        role = "assistant"
    return Message(role, "\n".join(text for text in texts if text), tuple(calls), tuple(answers))


_PART_KEYS = frozenset(
    ("type", "text", "content", "toolUse", "toolResult", "function_call", "function_response", "message_content")
)


def _load_parts(content: Json) -> Json:
    """Parts that were written as a text of JSON. Any other JSON is what was said: an answer in JSON is a text."""
    if not isinstance(content, str):
        return content
    loaded = load_json(content)
    are_parts = isinstance(loaded, list) and all(
        isinstance(each, dict) and not _PART_KEYS.isdisjoint(each) for each in loaded
    )
    return loaded if loaded and are_parts else content


_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def _list_events(span: Span) -> list[tuple[str, Mapping[str, Any]]]:
    """The events of a span by name, also those that are written as one attribute."""
    events: list[tuple[str, Mapping[str, Any]]] = [(event.name, event.attributes) for event in span.events]
    if "events" in span.attributes or "all_messages_events" in span.attributes:
        listed = load_json(first(span.attributes, ("events", "all_messages_events")))
        named = (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
        events += [(str(each["event.name"]), each) for each in named if "event.name" in each]
    return events


def _read_events(events: Iterable[tuple[str, Mapping[str, Any]]]) -> Conversation:
    """The messages that events hold: one event per message (until 1.36), or one with all (since 1.37)."""
    asked: list[Message] = []
    answered: list[Message] = []
    system = ""
    for name, details in events:
        if (role := _EVENT_ROLES.get(name)) is not None:
            message = _read_message(_event_fields(details, "content"), role)
            if role in _SYSTEM_ROLES:
                system = "\n\n".join(part for part in (system, message.text) if part)
            else:
                asked.append(message._replace(role=role))
        elif name == "gen_ai.choice":
            answered.append(_read_message(_event_fields(details, "message"), "assistant"))
            if (result := details.get("tool.result")) is not None:
                asked.append(_read_message({"content": load_json(result)}, "tool"))
        elif (
            "gen_ai.input.messages" in details
            or "gen_ai.output.messages" in details
            or ("gen_ai.system_instructions" in details)
        ):
            asked += _read_side(details, _INPUT, "user")
            answered += _read_side(details, _OUTPUT, "assistant")
            system = system or join_parts(load_json(details.get("gen_ai.system_instructions")))
    return Conversation(system, tuple(asked), tuple(answered))


def _event_fields(details: Mapping[str, Any], key: str) -> dict[str, Any]:
    content = details.get(key, details.get("content"))
    loaded = load_json(content)
    if isinstance(loaded, dict) and _looks_like_message(loaded):
        return loaded
    return {**{name: value for name, value in details.items() if name != key}, "content": content, "type": None}
