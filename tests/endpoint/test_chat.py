from __future__ import annotations

import json
from typing import Any

import pytest

from promptiter.endpoint.bodies import parse_body
from promptiter.endpoint.chat import read_chat, stream_completion, write_completion
from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.llm import Gateway
from promptiter.llm.litellm_options import build_options
from promptiter.llm.messages import Message, ModelReply, ModelRequest, RichMessage, ToolRequest, ToolSpec
from promptiter.llm.models import openai_messages
from promptiter.llm.pool import bound_output_tokens
from tests.endpoint.clients import HELLO, build_gateway, post_chat, read_events, run_case
from traces import Usage

TOOL = {
    "type": "function",
    "function": {"name": "search", "description": "Find", "parameters": {"type": "object", "properties": {}}},
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"tea"}'}}


def read(**fields: Any) -> ModelRequest:
    return read_chat({"model": "clerk", "messages": HELLO, **fields}).request


def test_a_plain_body_is_the_request_that_a_node_would_make() -> None:
    request = read(
        messages=[{"role": "system", "content": "Be brief."}, *HELLO], tools=[TOOL], temperature=0, max_tokens=9
    )
    assert request == ModelRequest(
        model="clerk",
        messages=(Message("system", "Be brief."), Message("user", "Hello")),
        tools=(ToolSpec("search", "Find", {"type": "object", "properties": {}}),),
        options={"temperature": 0, "max_tokens": 9},
    )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]},
        {"role": "user", "content": "Hello", "name": "ann"},
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{ "}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f"}}]},
        {"role": "tool", "content": "3 results", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "text", "text": "3 results"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "Fine.", "reasoning_content": "Hm.", "cache_control": {"type": "ephemeral"}},
    ],
)
def test_every_field_of_a_message_reaches_the_model(message: dict[str, Any]) -> None:
    assert openai_messages(read(messages=[message])) == [message]


@pytest.mark.parametrize(
    "tool",
    [
        TOOL,
        {**TOOL, "function": {**TOOL["function"], "strict": True}},  # type: ignore[dict-item]
        {"type": "custom", "custom": {"name": "code", "format": {"type": "text"}}},
    ],
)
def test_every_field_of_a_tool_reaches_the_model(tool: dict[str, Any]) -> None:
    assert build_options(read(tools=[tool]))["tools"] == [tool]


def test_other_models_get_the_text_of_a_message() -> None:
    (message,) = read(messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}]).messages
    assert message.content == "What?\n[image_url]"
    assert isinstance(message, RichMessage)


def test_fields_of_the_protocol_are_options_and_others_are_sent_in_the_body_only() -> None:
    request = read(tool_choice="required", stop=["x"], metadata={"a": "b"}, mock_response="no", user=None)
    assert request.options == {
        "tool_choice": "required",
        "stop": ["x"],
        "extra_body": {"metadata": {"a": "b"}, "mock_response": "no"},
    }


@pytest.mark.parametrize("name", ["api_base", "api_key", "base_url", "fallbacks", "functions"])
def test_fields_that_would_lead_a_call_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(RefusedRequestError, match=name):
        read(**{name: "http://elsewhere"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, r"messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, r"messages[0].role"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": ["search"]}, "tools[0]"),
    ],
)
def test_bodies_that_break_the_protocol_are_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedRequestError) as refused:
        read(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "fields", [{"temperature": "hot"}, {"max_tokens": 0}, {"messages": [{"role": "user", "content": 5}]}]
)
def test_values_that_no_server_takes_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedRequestError):
        read(**fields)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedRequestError, match="the body is not"):
        parse_body(raw)


def test_a_reply_is_written_in_the_format_of_the_protocol() -> None:
    reply = ModelReply(text="Hi", usage=Usage(input_tokens=3, output_tokens=2, cached_input_tokens=1))
    body = write_completion(read(), reply)
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert body["id"] == write_completion(read(), reply)["id"] != write_completion(read(), reply, number=1)["id"]


def test_unknown_usage_is_not_reported_as_0() -> None:
    assert write_completion(read(), ModelReply(text="Hi"))["usage"] is None


def test_tool_calls_of_a_reply_have_ids_and_their_finish_reason() -> None:
    reply = ModelReply(tool_requests=(ToolRequest("", "search", {"q": "tea"}), ToolRequest("c2", "search", "{ ")))
    (choice,) = write_completion(read(), reply)["choices"]
    first, second = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert first["id"].startswith("call_")
    assert (second["id"], second["function"]["arguments"]) == ("c2", "{ ")


def test_what_else_the_server_said_is_part_of_the_answer() -> None:
    extra = {
        "model": "clerk-2026",
        "message": {"content": None, "refusal": "No."},
        "choice": {"logprobs": {"content": []}},
        "usage": {"completion_tokens_details": {"reasoning_tokens": 7}},
        "choices": [{"index": 1, "message": {"role": "assistant", "content": "B"}, "finish_reason": "stop"}],
    }
    usage = Usage(input_tokens=1, output_tokens=9)
    body = write_completion(read(), ModelReply(text="No.", usage=usage, extra=extra))
    assert body["model"] == "clerk-2026"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "No."}
    assert body["choices"][0]["logprobs"] == {"content": []}
    assert body["choices"][1]["message"]["content"] == "B"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}


def test_a_stream_adds_up_to_the_answer() -> None:
    text = "word " * 200
    calls = (ToolRequest("c1", "search", {"q": "x" * 500}), ToolRequest("c2", "open", {}))
    usage = Usage(input_tokens=3, output_tokens=2)
    completion = write_completion(read(), ModelReply(text=text, tool_requests=calls, usage=usage))
    events = [event.decode() for event in stream_completion(completion, includes_usage=True)]
    assert events[-1] == "data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == completion["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    parts = [each for delta in deltas for each in delta.get("tool_calls", ())]
    for index, call in enumerate(completion["choices"][0]["message"]["tool_calls"]):
        mine = [each for each in parts if each["index"] == index]
        assert mine[0]["id"] == call["id"]
        assert "".join(each["function"]["arguments"] for each in mine) == call["function"]["arguments"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_simulated_model_answers_in_the_format_that_is_asked_for() -> None:
    schema = {
        "type": "object",
        "properties": {"department": {"enum": ["billing", "sales"]}},
        "required": ["department"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "route", "schema": schema}}
    async with run_case(Gateway()) as (_, client):
        response = await post_chat(client, "Where to?", model="simulated", response_format=form)
    said = json.loads(response.json()["choices"][0]["message"]["content"])
    assert said["department"] in ("billing", "sales")


def test_the_budget_reserves_the_tokens_of_all_answers() -> None:
    assert bound_output_tokens(read(n=3, max_tokens=10)) == 30
    assert bound_output_tokens(read(max_tokens=10)) == 10


async def test_a_streamed_call_is_an_ordinary_one_for_the_gateway() -> None:
    gateway = build_gateway()
    for is_stream in (False, True):
        async with run_case(gateway) as (_, client):
            response = await post_chat(client, stream=is_stream)
    assert response.headers["content-type"] == "text/event-stream"
    events = read_events(response)
    assert events[-1] == "[DONE]"
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in events[:-1]) == "You said: Hello"
    assert all("usage" not in each for each in events[:-1])
    total = gateway.ledger.snapshot().total
    assert (total.calls, total.cache_hits) == (1, 1)
