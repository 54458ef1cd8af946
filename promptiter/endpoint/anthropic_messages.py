"""Anthropic's messages, by way of chat completions: its requests as bodies of chat, and completions as its answers.

What has no counterpart there, such as built-in tools, is refused. Fields that only Claude knows, such as thinking
blocks, keep the names by which litellm passes them on to Claude.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from promptiter.endpoint.bodies import Body, refuse_built_in_tool, select_fields, split_text, write_event
from promptiter.endpoint.http_messages import RefusedRequestError
from traces.model import Json

_SAME = ("model", "max_tokens", "temperature", "top_p", "stream", "thinking")
_KNOWN = frozenset((*_SAME, "messages", "system", "tools", "tool_choice", "stop_sequences", "metadata", "service_tier"))
_APART = ("tool_result", "tool_use", "thinking", "redacted_thinking")
"""Blocks that are not parts of the content in chat."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def to_chat(body: Body) -> Body:
    """The body of a request as one of chat completions."""
    chat = select_fields(body, _SAME)
    chat |= {name: value for name, value in body.items() if name not in _KNOWN}
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RefusedRequestError(400, "the body has no messages; give a list of at least one", param="messages")
    chat["messages"] = [message for index, each in enumerate(messages) for message in _read_message(each, index)]
    if body.get("system"):
        chat["messages"].insert(0, {"role": "system", "content": _read_parts(body["system"], "system")})
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if user := (body.get("metadata") or {}).get("user_id"):
        chat["user"] = user
    if tools := body.get("tools"):
        chat["tools"] = [_read_tool(each, index) for index, each in enumerate(tools)]
    if choice := body.get("tool_choice"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = named if choice.get("type") == "tool" else _CHOICES.get(str(choice.get("type")), "auto")
        if choice.get("disable_parallel_tool_use"):
            chat["parallel_tool_calls"] = False
    return chat


def to_message(completion: Mapping[str, Any]) -> Body:
    """A completion as a message of the protocol."""
    choice, usage = completion["choices"][0], completion.get("usage") or {}
    message = choice["message"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    created = usage.get("cache_creation_input_tokens") or 0
    return {
        "id": str(completion["id"]).replace("chatcmpl-", "msg_"),
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": list(_write_blocks(message)),
        "stop_reason": _STOP_REASONS.get(choice["finish_reason"], choice["finish_reason"]),
        "stop_sequence": None,
        "usage": {
            "input_tokens": max(0, usage.get("prompt_tokens", 0) - cached - created),
            "output_tokens": usage.get("completion_tokens", 0),
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": created,
        },
    }


def stream_message(message: Body) -> Iterator[bytes]:
    """A message as the events of the protocol."""
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield _write({"type": "message_start", "message": begun})
    for index, block in enumerate(message["content"]):
        start, deltas = _split_block(block)
        yield _write({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield _write({"type": "content_block_delta", "index": index, "delta": delta})
        yield _write({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _write({"type": "message_delta", "delta": delta, "usage": usage})
    yield _write({"type": "message_stop"})


def _write(event: Body) -> bytes:
    return write_event(event, name=event["type"])


def _read_message(message: Json, index: int) -> Iterator[Body]:
    """The messages of chat that one of the protocol becomes: results of tools are messages of their own there."""
    role, content = (message.get(name) for name in ("role", "content")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant", "system"):
        raise RefusedRequestError(400, f"message {index} has the role {role!r}", param=f"messages[{index}].role")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    blocks = [block for block in content if isinstance(block, dict)]
    for block in blocks:
        if block.get("type") == "tool_result":
            result = _read_parts(block.get("content") or "", f"messages[{index}]")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
    calls = [_read_call(block) for block in blocks if block.get("type") == "tool_use"]
    thoughts = [block for block in blocks if block.get("type") in ("thinking", "redacted_thinking")]
    others = [block for block in blocks if block.get("type") not in _APART]
    if not (others or calls or thoughts):
        return
    written: Body = {"role": role, "content": _read_parts(others, f"messages[{index}]") if others else None}
    if calls:
        written["tool_calls"] = calls
    if thoughts:
        written["thinking_blocks"] = thoughts
    yield written


def _read_call(block: Body) -> Body:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _read_parts(content: Json, place: str) -> Json:
    """The content of a message: a text if it is nothing else."""
    if not isinstance(content, list):
        return content
    parts = [_read_part(block, place) for block in content]
    is_text = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if is_text else parts


def _read_part(block: Json, place: str) -> Body:
    kind = block.get("type") if isinstance(block, dict) else None
    marks = {"cache_control": block["cache_control"]} if kind and block.get("cache_control") else {}
    source = block.get("source") or {} if kind else {}
    match kind, source.get("type"):
        case "text", _:
            return {"type": "text", "text": block.get("text"), **marks}
        case (("image" | "document"), ("base64" | "url")):
            data = f"data:{source.get('media_type')};base64,{source.get('data')}"
            url = source.get("url") or data
            if kind == "image":
                return {"type": "image_url", "image_url": {"url": url}, **marks}
            return {"type": "file", "file": {"file_data": url, "filename": block.get("title") or "document"}, **marks}
        case "document", "text":
            return {"type": "text", "text": source.get("data"), **marks}
    message = f"{place} has a block of type {kind!r} that the endpoint cannot pass on"
    raise RefusedRequestError(400, f"{message}; send texts, images, documents, and the use and results of tools")


def _read_tool(tool: Json, index: int) -> Body:
    kind = tool.get("type", "custom") if isinstance(tool, dict) else None
    if kind != "custom":
        raise refuse_built_in_tool(kind, index)
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    others = select_fields(tool, ("description", "strict", "cache_control"))
    return {"type": "function", "function": {**function, **others}}


def _write_blocks(message: Mapping[str, Any]) -> Iterator[Body]:
    if blocks := message.get("thinking_blocks"):
        yield from blocks
    elif thoughts := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thoughts, "signature": ""}
    if text := message.get("content") or message.get("refusal"):
        yield {"type": "text", "text": text}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = orjson.loads(function["arguments"] or "{}")
        except orjson.JSONDecodeError:
            arguments = {"arguments": function["arguments"]}  # the protocol has no place for what is not JSON
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _split_block(block: Body) -> tuple[Body, list[Body]]:
    """How the events of a block begin, and its parts."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": part} for part in split_text(block["text"])]
        case "tool_use":
            raw = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": each} for each in split_text(raw)
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": part} for part in split_text(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block.get("signature") or ""}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
    return block, []
