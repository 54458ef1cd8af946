"""The SDKs of OpenAI and Anthropic against the endpoint, which calls a server of OpenAI's protocol through litellm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from promptiter.endpoint import EndpointSession, open_session
from promptiter.llm import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.retries import Retries
from tests.endpoint.clients import CASE, HELLO
from tests.worlds.model_server import LoopbackServer, run_server

pytestmark = pytest.mark.slow
MODEL = "openai/clerk"
SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        "strict": True,
    },
}


def answer(body: dict[str, Any]) -> str:
    return f"You said: {body['messages'][-1]['content']}"


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with run_server(LoopbackServer(answer=answer)) as server:
        yield server


def build_gateway(server: LoopbackServer, **settings: Any) -> Gateway:
    return Gateway(models={MODEL: LiteLLMModel(api_base=server.url, api_key="sk-upstream-secret")}, **settings)


@asynccontextmanager
async def run_sdk(gateway: Gateway) -> AsyncIterator[tuple[EndpointSession, openai.AsyncOpenAI]]:
    with gateway.active():
        async with open_session(CASE) as session, open_openai(session) as client:
            yield session, client


def open_openai(session: EndpointSession) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key="sk-of-the-agent")


async def test_everything_that_an_agent_sends_reaches_the_server_and_back(server: LoopbackServer) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    options: Any = {
        "tools": [SEARCH],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["END"],
        "seed": 7,
        "user": "u1",
        "verbosity": "low",
        "reasoning_effort": "low",
        "temperature": 0.5,
        "max_completion_tokens": 50,
        "metadata": {"team": "desk"},
        "logit_bias": {"5": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    }
    logprobs: Any = {"content": [{"token": "x", "logprob": -0.1, "bytes": None, "top_logprobs": []}], "refusal": None}
    call = {"id": "c9", "type": "function", "function": {"name": "search", "arguments": '{"q":"y"}'}}
    first = {"role": "assistant", "content": "A", "reasoning_content": "Hm.", "tool_calls": [call]}
    second = {"role": "assistant", "content": None, "refusal": "No."}
    server.fields = lambda _: {
        "model": "clerk-2026",
        "system_fingerprint": "fp",
        "choices": [
            {"index": 0, "message": first, "finish_reason": "tool_calls", "logprobs": logprobs},
            {"index": 1, "message": second, "finish_reason": "stop"},
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 6,
            "total_tokens": 11,
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
    }
    gateway = build_gateway(server)
    for _ in range(2):  # the second time from the cache
        async with run_sdk(gateway) as (_, client):
            said = await client.chat.completions.create(
                model=MODEL, messages=messages, extra_body={"my_field": 1}, **options
            )
        assert (said.model, said.system_fingerprint) == ("clerk-2026", "fp")
        assert said.choices[0].message.tool_calls
        assert said.choices[0].message.tool_calls[0].to_dict() == call
        assert said.choices[0].message.model_extra == {"reasoning_content": "Hm."}
        assert said.choices[0].logprobs
        assert said.choices[0].logprobs.to_dict() == logprobs
        assert (said.choices[1].message.content, said.choices[1].message.refusal) == (None, "No.")
        assert said.usage
        assert said.usage.completion_tokens_details
        assert (said.usage.total_tokens, said.usage.completion_tokens_details.reasoning_tokens) == (11, 4)
    (body,) = server.bodies
    assert body["messages"] == messages
    assert {name: value for name, value in body.items() if name not in ("model", "messages", "tools")} == {
        **{name: value for name, value in options.items() if name != "tools"},
        "my_field": 1,
    }
    assert body["tools"][0]["function"]["strict"] is True
    assert gateway.ledger.snapshot().total.calls == 1


async def test_streams_of_text_and_tools(server: LoopbackServer) -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "search", "arguments": '{"q":"y"}'}}
    message = {"role": "assistant", "content": "Let me look. " * 50, "tool_calls": [call]}
    server.fields = lambda _: {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    async with (
        run_sdk(build_gateway(server)) as (session, client),
        client.chat.completions.stream(
            model=MODEL, messages=HELLO, tools=[SEARCH], stream_options={"include_usage": True}
        ) as stream,
    ):
        kinds = {event.type async for event in stream}
        said = await stream.get_final_completion()
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    assert said.choices[0].message.content == message["content"]
    assert said.choices[0].message.tool_calls
    assert said.choices[0].message.tool_calls[0].function.parsed_arguments == {"q": "y"}
    assert said.usage
    assert said.usage.prompt_tokens == 1
    assert "stream" not in server.bodies[0]
    assert len(session.calls) == 1


class Route(BaseModel):
    department: str


async def test_structured_output_is_parsed(server: LoopbackServer) -> None:
    server.answer = lambda _: '{"department": "billing"}'
    async with run_sdk(build_gateway(server)) as (_, client):
        said = await client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Route)
    assert said.choices[0].message.parsed == Route(department="billing")
    assert server.bodies[0]["response_format"]["json_schema"]["name"] == "Route"


async def test_faults_of_the_server_are_retried_by_the_gateway_and_not_by_the_client(server: LoopbackServer) -> None:
    server.fault_rate = 1.0
    retries = Retries(attempts=2, first_delay_s=0.001)
    gateway = build_gateway(server, retries=retries)
    async with run_sdk(gateway) as (session, client):
        with pytest.raises(openai.APIStatusError) as failed:
            await client.with_options(max_retries=5).chat.completions.create(model=MODEL, messages=HELLO)
    assert len(server.bodies) == 2
    assert session.outages
    assert failed.value.status_code in (429, 502)


@pytest.mark.parametrize(("status", "kind"), [(400, openai.BadRequestError), (422, openai.UnprocessableEntityError)])
async def test_a_refusal_of_the_server_keeps_its_status_and_message(
    server: LoopbackServer, status: int, kind: type[openai.APIStatusError]
) -> None:
    server.refusal = (status, "no such field, sk-upstream-secret")
    async with run_sdk(build_gateway(server)) as (session, client):
        with pytest.raises(kind, match="no such field") as refused:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert "sk-upstream-secret" not in str(refused.value)
    assert not session.outages
