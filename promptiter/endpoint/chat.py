"""Chat completions: a body of OpenAI's protocol as a ModelRequest, and a reply as a body or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from promptiter.endpoint.bodies import read_model_name, read_options, split_text, write_event
from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.llm.messages import (
    Message,
    MessageRole,
    ModelReply,
    ModelRequest,
    RichMessage,
    RichToolSpec,
    ToolRequest,
    ToolSpec,
)
from promptiter.llm.models import openai_messages, openai_tool_call
from traces import Usage, digest
from traces.model import Json

OPTIONS = frozenset(
    (
        *("audio", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "modalities"),
        *("n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "reasoning_effort"),
        *("response_format", "safety_identifier", "seed", "service_tier", "stop", "temperature", "thinking"),
        *("tool_choice", "top_k", "top_logprobs", "top_p", "user", "verbosity", "web_search_options"),
    )
)
"""The fields of the protocol that become options of the request. Other fields are sent to the server as they are: as
arguments of litellm, they could name another server or a file."""

_ROLES: Mapping[str, MessageRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A body of the protocol: the request, and how its answer is sent."""

    request: ModelRequest
    is_stream: bool = False
    includes_usage: bool = False


def read_chat(body: Mapping[str, Json]) -> ChatCall:
    """The request of a body. Raises RefusedRequestError if it does not follow the protocol."""
    model, messages, tools = read_model_name(body), body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages:
        raise RefusedRequestError(400, "the body has no messages; give a list of at least one", param="messages")
    if not isinstance(tools, list):
        raise RefusedRequestError(400, "`tools` is not a list", param="tools")
    stream_options = body.get("stream_options")
    return ChatCall(
        request=ModelRequest(
            model=model,
            messages=tuple(_read_message(each, index) for index, each in enumerate(messages)),
            tools=tuple(_read_tool(each, index) for index, each in enumerate(tools)),
            options=read_options(
                body, known=("model", "messages", "tools", "stream", "stream_options"), options=OPTIONS
            ),
        ),
        is_stream=bool(body.get("stream")),
        includes_usage=isinstance(stream_options, dict) and bool(stream_options.get("include_usage")),
    )


def write_completion(request: ModelRequest, reply: ModelReply, *, number: int = 0) -> dict[str, Json]:
    """A reply as the body of the protocol. The same reply always has the same id."""
    extra = dict(reply.extra)
    choice, message, usage = (extra.pop(name, None) or {} for name in ("choice", "message", "usage"))
    others = extra.pop("choices", ())
    name = digest([request.digest, number])[:24]
    finish = reply.finish_reason
    first: dict[str, Json] = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text or None, "refusal": None},
        "logprobs": None,
        "finish_reason": "tool_calls" if reply.tool_requests and finish == "stop" else finish,
        **choice,
    }
    if reply.tool_requests:
        first["message"]["tool_calls"] = [
            openai_tool_call(call) | {"id": call.id or f"call_{name[:16]}_{index}"}
            for index, call in enumerate(reply.tool_requests)
        ]
    elif not reply.text:
        first["message"]["content"] = ""
    first["message"].update(message)
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [first, *others],
        "usage": _write_usage(reply.usage, usage),
        **extra,
    }


def stream_completion(completion: Mapping[str, Json], *, includes_usage: bool) -> Iterator[bytes]:
    """A completion as the events of the protocol."""
    chunk = {name: value for name, value in completion.items() if name not in ("choices", "usage")}
    chunk["object"] = "chat.completion.chunk"
    nothing: dict[str, Json] = {"usage": None} if includes_usage else {}
    for choice in completion["choices"]:
        for delta, finish, others in _split_choice(choice):
            piece = {"index": choice["index"], "delta": delta, "finish_reason": finish, "logprobs": None, **others}
            yield write_event({**chunk, "choices": [piece], **nothing})
    if includes_usage:
        yield write_event({**chunk, "choices": [], "usage": completion["usage"]})
    yield b"data: [DONE]\n\n"


def _split_choice(choice: Mapping[str, Any]) -> Iterator[tuple[dict[str, Json], str | None, dict[str, Json]]]:
    """The deltas of a choice, each with the finish reason and other fields of its event."""
    message = dict(choice["message"])
    text, calls = message.pop("content", None), message.pop("tool_calls", None) or ()
    refusal = message.pop("refusal", None)
    yield {**message, "content": "", **({"refusal": ""} if refusal else {})}, None, {}
    logprobs: dict[str, Json] = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
    for part in split_text(text or ""):
        yield {"content": part}, None, logprobs
        logprobs = {}
    for part in split_text(refusal or ""):
        yield {"refusal": part}, None, {}
    for index, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = str(function.get("arguments") or "")
        start = {**call, "index": index}
        if function:
            start["function"] = {**function, "arguments": ""}
        yield {"tool_calls": [start]}, None, {}
        for part in split_text(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}, None, {}
    shown = ("index", "message", "finish_reason", "logprobs")
    others = {name: value for name, value in choice.items() if name not in shown}
    yield {}, choice["finish_reason"], {**logprobs, **others}


def _write_usage(usage: Usage, details: Mapping[str, Json]) -> Json:
    """The usage of a reply; None if the server did not report it."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    written: dict[str, Json] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens,
    }
    if usage.cached_input_tokens is not None:
        written["prompt_tokens_details"] = {"cached_tokens": usage.cached_input_tokens}
    return {**written, **details}


def _read_message(given: Json, index: int) -> Message:
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(_ROLES)
        raise RefusedRequestError(
            400, f"message {index} has the role {role!r}; give one of {known}", param=f"messages[{index}].role"
        )
    call_id = given.get("tool_call_id")
    plain = Message(
        _ROLES[role],
        read_text(given.get("content")),
        tool_requests=tuple(filter(None, map(_read_tool_call, given.get("tool_calls") or ()))),
        tool_request_id=call_id if isinstance(call_id, str) else None,
    )
    (written,) = openai_messages(ModelRequest(model="", messages=(plain,)))
    given = {name: value for name, value in given.items() if value is not None} | {"content": given.get("content")}
    extra = {name: value for name, value in given.items() if written.get(name) != value}
    return (
        RichMessage(plain.role, plain.content, plain.tool_requests, plain.tool_request_id, extra=extra)
        if extra
        else plain
    )


def read_text(content: Json) -> str:
    """The text of a message's content. Parts of other types are shown by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise RefusedRequestError(400, "the content of a message is neither a text nor a list of parts")
    return "\n".join(str(each.get("text") or each.get("refusal") or f"[{each.get('type')}]") for each in content)


def _read_tool_call(given: Json) -> ToolRequest | None:
    """A tool call of an earlier answer; None if it is not a call of a function."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        return None
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):  # what the model wrote instead of JSON
            arguments = orjson.loads(arguments)
    return ToolRequest(str(given.get("id") or ""), str(function.get("name") or ""), arguments)


def _read_tool(given: Json, index: int) -> ToolSpec:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise RefusedRequestError(400, f"tool {index} has no type; give 'function'", param=f"tools[{index}]")
    function = given.get("function")
    if given["type"] != "function" or not isinstance(function, dict) or given.keys() - {"type", "function"}:
        named = given.get(given["type"])
        name = (named.get("name") if isinstance(named, dict) else None) or given.get("name") or given["type"]
        return RichToolSpec(str(name), "", extra=given)
    parameters = function.get("parameters")
    known = {"name": str(function.get("name") or ""), "description": str(function.get("description") or "")}
    spec = ToolSpec(**known, parameters=parameters if isinstance(parameters, dict) else {})
    extra = {
        name: value for name, value in function.items() if value is not None and name not in (*known, "parameters")
    }
    return RichToolSpec(spec.name, spec.description, spec.parameters, extra=extra) if extra else spec
