from __future__ import annotations

from typing import Any

import orjson
import pytest

from promptiter.endpoint.anthropic_messages import stream_message, to_chat, to_message
from promptiter.endpoint.chat import read_chat, write_completion
from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.llm import ModelReply, ToolRequest
from tests.endpoint.clients import HELLO, run_case
from traces import Usage


def convert(**fields: Any) -> dict[str, Any]:
    return to_chat({"model": "claude", "max_tokens": 9, "messages": HELLO, **fields})


def reply_with(reply: ModelReply) -> dict[str, Any]:
    return to_message(write_completion(read_chat(convert()).request, reply))


def test_blocks_become_the_messages_of_a_chat() -> None:
    marked = {"type": "text", "text": "Long rules", "cache_control": {"type": "ephemeral"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    chat = convert(
        system=[marked],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Find x"}]},
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "found"},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
    )
    function = {"name": "search", "arguments": '{"q":"x"}'}
    assert chat["messages"] == [
        {"role": "system", "content": [marked]},
        {"role": "user", "content": "Find x"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            "thinking_blocks": [thought],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "found"},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"type": "none"}, {"tool_choice": "none"}),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    assert convert(tool_choice=choice).items() >= expected.items()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "computer_20250124", "name": "computer"}]},
        {"messages": "Hello"},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
        {"system": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]},
    ],
)
def test_what_cannot_be_passed_on_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedRequestError):
        convert(**fields)


def test_cached_tokens_are_not_input_tokens_here() -> None:
    counted = Usage(input_tokens=9, output_tokens=2, cached_input_tokens=4)
    usage = reply_with(ModelReply(text="Hi", usage=counted))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 4, 2)


def test_events_add_up_to_the_message() -> None:
    thoughts = [{"type": "thinking", "thinking": "Hm. " * 100, "signature": "s"}]
    message = reply_with(
        ModelReply(
            text="word " * 100,
            tool_requests=(ToolRequest("t1", "search", {"q": "x" * 300}), ToolRequest("t2", "search", "{ not json")),
            extra={"message": {"thinking_blocks": thoughts}},
        )
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    events = [orjson.loads(event.split(b"data: ")[1]) for event in stream_message(message)]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]

    def add_up(field: str) -> str:
        return "".join(event["delta"].get(field, "") for event in events if event["type"] == "content_block_delta")

    assert add_up("text") == message["content"][1]["text"]
    assert add_up("thinking") == thoughts[0]["thinking"]
    assert add_up("signature") == "s"
    assert add_up("partial_json").startswith('{"q":"xxx')
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_key_in_x_api_key_and_errors_of_the_protocol() -> None:
    async with run_case() as (session, client):
        root = session.base_url.removesuffix("/v1").replace(f"/{session.key}", "")
        body = {"model": "clerk", "max_tokens": 9, "messages": HELLO}
        answered = await client.post(f"{root}/v1/messages", json=body, headers={"x-api-key": session.key})
        assert answered.json()["content"] == [{"type": "text", "text": "You said: Hello"}]
        refused = await client.post(f"{root}/v1/messages", json=body)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
