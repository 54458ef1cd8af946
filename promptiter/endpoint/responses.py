"""The Responses API, by way of chat completions: its requests as bodies of chat, and completions as its responses.

Chat is what every server and provider takes. What has no counterpart there, such as built-in tools, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from promptiter.endpoint.bodies import Body, refuse_built_in_tool, select_fields, split_text, write_event
from promptiter.endpoint.http_messages import RefusedRequestError
from traces.model import Json

History = Mapping[str, Sequence[Json]]
"""The messages of earlier responses of the session, by response id."""

_SAME = (
    *("model", "parallel_tool_calls", "temperature", "top_p", "metadata", "user", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "stream"),
)
_REFUSED = {
    "background": "answers are not kept beyond the run; ask without it",
    "conversation": "the endpoint keeps no conversations; send the input, or previous_response_id",
    "prompt": "the endpoint has no stored prompts; send the instructions",
}
_WITHOUT_EFFECT = ("store", "truncation", "include", "max_tool_calls", "stream_options")
"""Fields that change nothing here: responses are kept for the run, and there are no built-in tools."""
_KNOWN = frozenset(
    (
        *_SAME,
        *_REFUSED,
        *_WITHOUT_EFFECT,
        *("input", "instructions", "tools", "tool_choice", "max_output_tokens", "text", "reasoning", "top_logprobs"),
        "previous_response_id",
    )
)
_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "reasoning"),
    *("temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user"),
)


def to_chat(body: Body, history: History) -> Body:
    """The body of a request as one of chat completions."""
    for name, advice in _REFUSED.items():
        if body.get(name):
            raise RefusedRequestError(400, f"the endpoint does not take {name!r}: {advice}", param=name)
    chat = select_fields(body, _SAME)
    chat |= {name: value for name, value in body.items() if name not in _KNOWN}
    chat["messages"] = _read_messages(body, history)
    if tools := body.get("tools"):
        chat["tools"] = [_read_tool(each, index) for index, each in enumerate(tools)]
        chat["tool_choice"] = _read_tool_choice(body.get("tool_choice"))
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("top_logprobs") or "message.output_text.logprobs" in (body.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    if text.get("verbosity"):
        chat["verbosity"] = text["verbosity"]
    if (form := text.get("format")) and form.get("type") != "text":
        chat["response_format"] = _read_format(form)
    if reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    return {name: value for name, value in chat.items() if value is not None}


def to_response(body: Body, completion: Mapping[str, Any]) -> Body:
    """A completion as the response to a body."""
    name = str(completion["id"]).removeprefix("chatcmpl-")
    choice = completion["choices"][0]
    is_cut_off = choice["finish_reason"] in ("length", "content_filter")
    reason = "max_output_tokens" if choice["finish_reason"] == "length" else "content_filter"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": completion["created"],
        "status": "incomplete" if is_cut_off else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if is_cut_off else None,
        "model": completion["model"],
        "output": list(_write_items(choice, name)),
        "usage": _write_usage(completion.get("usage")),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        **select_fields(body, _ECHOED),
    }


def list_messages(body: Body, chat: Body, completion: Mapping[str, Any]) -> list[Json]:
    """The messages of a conversation after a response, without the instructions, which are not carried over."""
    answer = completion["choices"][0]["message"]
    kept = select_fields(answer, ("role", "content", "tool_calls"))
    return [*chat["messages"][1 if body.get("instructions") else 0 :], {"content": None, **kept}]


def stream_response(response: Body) -> Iterator[bytes]:
    """A response as the events of the protocol."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[tuple[str, Body]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(response["output"]):
        events += ((name, {"output_index": index, **event}) for name, event in _split_item(item))
    events.append((f"response.{response['status']}", {"response": response}))
    for number, (name, event) in enumerate(events):
        yield write_event({"type": name, "sequence_number": number, **event}, name=name)


def _read_messages(body: Body, history: History) -> list[Json]:
    messages: list[Json] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    if (previous := body.get("previous_response_id")) is not None:
        if previous not in history:
            message = f"the response {previous!r} is not one of this run; send the whole input"
            raise RefusedRequestError(404, message, param="previous_response_id", kind="not_found_error")
        messages += history[previous]
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise RefusedRequestError(400, "`input` is neither a text nor a list of items", param="input")
    for index, item in enumerate(items):
        _add_item(messages, item, index)
    return messages


def _add_item(messages: list[Json], item: Body, index: int) -> None:
    match item.get("type", "message"):
        case "message":
            messages.append({"role": item.get("role"), "content": _read_content(item.get("content"), index)})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
            last = messages[-1] if messages else {}
            if last.get("role") == "assistant":  # an answer and its calls are one message in chat
                messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output":
            content = _read_content(item.get("output"), index)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":
            pass  # chat has no place for it
        case kind:
            message = f"input item {index} has the type {kind!r}, which chat completions do not have"
            raise RefusedRequestError(400, f"{message}; send messages and function calls", param=f"input[{index}]")


def _read_content(content: Json, index: int) -> Json:
    if not isinstance(content, list):
        return content
    return [_read_part(part, index) for part in content]


def _read_part(part: Json, index: int) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text")}
        case "refusal":
            return {"type": "refusal", "refusal": part.get("refusal")}
        case "input_image" if part.get("image_url"):
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case "input_file" if part.get("file_data"):
            return {"type": "file", "file": {name: part[name] for name in ("file_data", "filename") if name in part}}
    message = f"input item {index} has a part of type {kind!r} that chat completions cannot take"
    raise RefusedRequestError(400, f"{message}; send texts, images by URL, audio, or files as data")


def _read_tool(tool: Json, index: int) -> Json:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise refuse_built_in_tool(kind, index)
    function = select_fields(tool, ("name", "description", "parameters", "strict"))
    return {"type": "function", "function": function}


def _read_tool_choice(choice: Json) -> Json:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if isinstance(choice, dict):
        raise RefusedRequestError(400, f"the endpoint does not take tool_choice {choice!r}", param="tool_choice")
    return choice


def _read_format(form: Body) -> Body:
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": select_fields(form, ("name", "description", "schema", "strict"))}


def _write_items(choice: Mapping[str, Any], name: str) -> Iterator[Body]:
    message = choice["message"]
    if thoughts := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thoughts}]
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}
    parts: list[Body] = []
    if message.get("content"):
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        text = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": logprobs}
        parts.append(text)
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    status = "incomplete" if choice["finish_reason"] == "length" else "completed"
    if parts or not message.get("tool_calls"):
        yield {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": parts}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {
            "type": "function_call",
            "id": f"fc_{name}_{index}",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
            "status": "completed",
        }


def _write_usage(usage: Json) -> Json:
    if usage is None:
        return None
    inputs, outputs = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": inputs.get("cached_tokens") or 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": outputs.get("reasoning_tokens") or 0},
        "total_tokens": usage["total_tokens"],
    }


def _split_item(item: Body) -> Iterator[tuple[str, Body]]:
    """The events of one item of the output."""
    empty: dict[str, Body] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"content": []},
    }
    yield "response.output_item.added", {"item": {**item, "status": "in_progress", **empty[item["type"]]}}
    at: Body = {"item_id": item["id"]}
    if item["type"] == "function_call":
        for part in split_text(item["arguments"]):
            yield "response.function_call_arguments.delta", {**at, "delta": part}
        done = {**at, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    for index, part in enumerate(item.get("content") or ()):
        yield from _split_part(part, {**at, "content_index": index})
    yield "response.output_item.done", {"item": item}


def _split_part(part: Body, at: Body) -> Iterator[tuple[str, Body]]:
    kind = part["type"]
    field = "refusal" if kind == "refusal" else "text"
    logprobs: Body = {"logprobs": []} if kind == "output_text" else {}
    yield "response.content_part.added", {**at, "part": {**part, field: ""}}
    for piece in split_text(part[field]):
        yield f"response.{kind}.delta", {**at, "delta": piece, **logprobs}
    yield f"response.{kind}.done", {**at, field: part[field], **logprobs}
    yield "response.content_part.done", {**at, "part": part}
