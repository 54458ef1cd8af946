"""Answers of litellm as replies: the fields that every reply has, and under `extra` what else the server said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from promptiter.errors import ModelUnavailableError
from promptiter.llm.messages import ModelReply, ToolRequest
from traces import Usage
from traces.model import Json


def read_reply(response: Any, model: str) -> ModelReply:
    """The reply of a response of litellm to a request to this model."""
    if not getattr(response, "choices", None):
        raise ModelUnavailableError("the server answered without choices", may_be_billed=True)
    choice = response.choices[0]
    text = choice.message.content or _read_refusal(choice.message)
    tool_calls = choice.message.tool_calls or ()
    return ModelReply(
        text=text,
        tool_requests=tuple(
            ToolRequest(call.id or "", call.function.name or "", _read_arguments(call.function.arguments))
            for call in tool_calls
            if getattr(call, "function", None) is not None
        ),
        usage=_read_usage(getattr(response, "usage", None), is_empty=not text and not tool_calls),
        finish_reason=choice.finish_reason or "stop",
        extra=_read_extra(response.model_dump(), model) if hasattr(response, "model_dump") else {},
    )


def read_embeddings(response: Any) -> ModelReply:
    """The reply of a response with embeddings. These have no output tokens."""
    tokens = getattr(getattr(response, "usage", None), "prompt_tokens", None)
    usage = Usage(input_tokens=tokens, output_tokens=0) if tokens else Usage()
    return ModelReply(usage=usage, extra={"embeddings": [each["embedding"] for each in response.data]})


def _read_extra(response: dict[str, Any], model: str) -> dict[str, Json]:
    """What a response has besides the fields of a reply, without what is empty."""
    first, *others = response.pop("choices")
    usage = response.pop("usage", None) or {}
    extra = _drop_empty(response, _IN_EVERY_RESPONSE)
    if model.endswith(str(extra.get("model"))):
        del extra["model"]
    message = _read_message(first)
    if message.get("refusal") and not first["message"].get("content"):
        message["content"] = None
    if any(not call.get("function") for call in first["message"].get("tool_calls") or ()):
        message["tool_calls"] = first["message"]["tool_calls"]
    parts: dict[str, Json] = {
        "message": message,
        "choice": _flatten(first, ("index", "message", "finish_reason")),
        "usage": _read_details(usage),
        "choices": [_read_choice(each, number) for number, each in enumerate(others, 1)],
    }
    return {**extra, **{name: part for name, part in parts.items() if part}}


def _read_choice(choice: Mapping[str, Any], number: int) -> dict[str, Json]:
    """A further answer as a choice of OpenAI's format."""
    message = choice["message"]
    calls = {"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {}
    return {
        "index": number,
        "message": {"role": "assistant", "content": message.get("content"), **calls, **_read_message(choice)},
        "finish_reason": choice.get("finish_reason") or "stop",
        **_flatten(choice, ("index", "message", "finish_reason")),
    }


def _read_message(choice: Mapping[str, Any]) -> dict[str, Json]:
    return _flatten(choice["message"], ("role", "content", "tool_calls"))


def _flatten(given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Json]:
    """The other fields of a part of a response, with those that litellm does not know and keeps apart."""
    unknown = given.get(_UNKNOWN) or {}
    return _drop_empty({**unknown, **given}, (*known, _UNKNOWN))


def _read_details(usage: Mapping[str, Any]) -> dict[str, Json]:
    """Details of the usage, such as the tokens of the model's reasoning. The cached ones are part of every usage."""
    details = _drop_empty(usage, ("prompt_tokens", "completion_tokens", "total_tokens"))
    found = {name: _drop_empty(each) if isinstance(each, Mapping) else each for name, each in details.items()}
    if found.get("prompt_tokens_details", {}).keys() <= {"cached_tokens"}:
        found.pop("prompt_tokens_details", None)
    return _drop_empty(found)


def _drop_empty(given: Mapping[str, Any], known: tuple[str, ...] = ()) -> dict[str, Json]:
    return {name: value for name, value in given.items() if name not in known and value not in _EMPTY}


_UNKNOWN = "provider_specific_fields"
_IN_EVERY_RESPONSE = ("id", "created", "object")
_EMPTY: tuple[Json, ...] = (None, 0, "", [], {})


def _read_refusal(message: Any) -> str:
    """What a model says instead of an answer of the schema. Some servers have a field for it."""
    given = getattr(message, "provider_specific_fields", None) or {}
    return str(getattr(message, "refusal", None) or given.get("refusal") or "")


def _read_usage(usage: Any, *, is_empty: bool) -> Usage:
    """The usage of an answer. litellm puts zeros where a server reports no figure; only an empty answer can have 0."""
    if not getattr(usage, "prompt_tokens", None):
        return Usage()
    others = (getattr(usage, "total_tokens", None) or 0) - usage.prompt_tokens  # some count thinking only there
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=max(usage.completion_tokens or 0, others) or (0 if is_empty else None),
        cached_input_tokens=getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None),
    )


def _read_arguments(raw: str | None) -> Json:
    try:
        return orjson.loads(raw or "{}")
    except orjson.JSONDecodeError:
        return raw
