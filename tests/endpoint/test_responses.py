from __future__ import annotations

from typing import Any

import orjson
import pytest

from promptiter.endpoint.chat import read_chat, write_completion
from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.endpoint.responses import list_messages, stream_response, to_chat, to_response
from promptiter.llm import ModelReply, ToolRequest
from traces import Usage

CALL = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'}


def convert(**fields: Any) -> dict[str, Any]:
    return to_chat({"model": "clerk", "input": "Hello", **fields}, {})


def respond(reply: ModelReply, **fields: Any) -> dict[str, Any]:
    body = {"model": "clerk", "input": "Hello", **fields}
    return to_response(body, write_completion(read_chat(to_chat(body, {})).request, reply))


def test_items_become_the_messages_of_a_chat() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "?"},
                {"type": "input_image", "image_url": "data:,", "detail": "low"},
                {"type": "input_file", "file_data": "data:,x", "filename": "a.pdf"},
            ],
        },
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ]
    messages = convert(input=items)["messages"]
    assert [message["role"] for message in messages] == ["developer", "user", "assistant", "tool"]
    assert messages[1]["content"] == [
        {"type": "text", "text": "?"},
        {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:,x", "filename": "a.pdf"}},
    ]
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["c1", "c2"]
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "found"}


def test_settings_have_their_names_in_chat() -> None:
    schema = {"type": "object"}
    chat = convert(
        instructions="Be brief.",
        max_output_tokens=9,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}},
        tools=[{"type": "function", "name": "search", "parameters": schema}],
        tool_choice={"type": "function", "name": "search"},
        top_logprobs=2,
        store=False,
        my_field=1,
    )
    assert chat == {
        "model": "clerk",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "max_tokens": 9,
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
        "tools": [{"type": "function", "function": {"name": "search", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "search"}},
        "logprobs": True,
        "top_logprobs": 2,
        "my_field": 1,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "web_search"}},
        {"background": True},
        {"conversation": "c"},
        {"prompt": {"id": "p"}},
        {"input": {"a": 1}},
        {"input": ["x"]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        {"previous_response_id": "resp_x"},
    ],
)
def test_what_chat_completions_cannot_express_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedRequestError):
        convert(**fields)


def test_a_reply_that_was_cut_off_is_an_incomplete_response() -> None:
    response = respond(ModelReply(text="Half", finish_reason="length"))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"] is None


def test_a_refusal_is_a_part_of_its_own() -> None:
    response = respond(ModelReply(text="No.", extra={"message": {"content": None, "refusal": "No."}}))
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_events_are_numbered_and_end_with_the_response() -> None:
    reply = ModelReply(
        text="Let me look.",
        tool_requests=(ToolRequest("c1", "search", {"q": "x"}),),
        usage=Usage(input_tokens=2, output_tokens=3),
    )
    response = respond(reply)
    events = [orjson.loads(event.split(b"data: ")[1]) for event in stream_response(response)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1] == {"type": "response.completed", "sequence_number": len(events) - 1, "response": response}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"]


def test_the_conversation_is_carried_over_without_the_instructions() -> None:
    body = {"model": "clerk", "input": "Hello", "instructions": "Be brief."}
    chat = to_chat(body, {})
    completion = write_completion(read_chat(chat).request, ModelReply(text="Hi"))
    kept = list_messages(body, chat, completion)
    assert kept == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    again = to_chat({"model": "clerk", "input": "More", "previous_response_id": "r"}, {"r": kept})
    assert again["messages"] == [*kept, {"role": "user", "content": "More"}]
