"""The SDKs of OpenAI and Anthropic against the endpoint, which calls a server of OpenAI's protocol through litellm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from promptiter import instrument
from promptiter.endpoint import EndpointSession, open_session
from promptiter.errors import SetupError
from promptiter.llm import Budget, Gateway
from promptiter.llm.litellm import LiteLLMModel, load
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
                model=MODEL, messages=messages, extra_body={"my_field": 1, "top_k": 5}, **options
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
        "top_k": 5,
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


TOOL_CALL = {"id": "c9", "type": "function", "function": {"name": "search", "arguments": '{"q":"y"}'}}
FLAT_SEARCH: Any = {"type": "function", **SEARCH["function"]}


def ask_for_tool(body: dict[str, Any]) -> dict[str, Any]:
    """Asks for a tool once, and then answers with its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {}
    message = {"role": "assistant", "content": "Let me look.", "reasoning_content": "Hm.", "tool_calls": [TOOL_CALL]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


async def test_responses_with_instructions_tools_and_previous_response_id(server: LoopbackServer) -> None:
    server.fields = ask_for_tool
    async with run_sdk(build_gateway(server)) as (session, client):
        first = await client.responses.create(
            model=MODEL, input="Find y", instructions="Be brief.", tools=[FLAT_SEARCH], max_output_tokens=50
        )
        call = first.output[-1]
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        assert call.type == "function_call"
        assert (call.call_id, call.arguments, first.output_text) == ("c9", '{"q":"y"}', "Let me look.")
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
        second = await client.responses.create(model=MODEL, input=[result], previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError, match="is not one of this run"):
            await client.responses.create(model=MODEL, input="x", previous_response_id="resp_other")
    assert second.output_text == "You said: found"
    assert second.usage
    assert second.usage.input_tokens > 0
    assert len(session.calls) == 2
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user"]
    assert server.bodies[0]["tools"][0]["function"]["name"] == "search"
    assert server.bodies[0]["max_tokens"] == 50
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert server.bodies[1]["messages"][1]["tool_calls"] == [TOOL_CALL]


async def test_a_response_is_streamed_and_parsed(server: LoopbackServer) -> None:
    server.answer = lambda _: '{"department": "billing"}'
    async with run_sdk(build_gateway(server)) as (_, client):
        parsed = await client.responses.parse(model=MODEL, input="Route", text_format=Route)
        assert parsed.output_parsed == Route(department="billing")
        server.fields = ask_for_tool
        async with client.responses.stream(model=MODEL, input="Find y", tools=[FLAT_SEARCH]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= set(kinds)
    assert final.output_text == "Let me look."
    assert server.bodies[0]["response_format"]["json_schema"]["strict"] is True


async def test_built_in_tools_are_refused(server: LoopbackServer) -> None:
    async with run_sdk(build_gateway(server)) as (_, client):
        with pytest.raises(openai.BadRequestError, match="'web_search': the endpoint serves functions"):
            await client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.create(model=MODEL, input="x", background=True)
        with pytest.raises(openai.BadRequestError, match="item_reference"):
            await client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": "x"}])
    assert not server.bodies


@pytest.mark.parametrize("form", ["float", openai.omit])  # the SDK asks for base64 and decodes it
async def test_embeddings_are_passed_through_cached_and_counted(server: LoopbackServer, form: Any) -> None:
    gateway = build_gateway(server)
    for _ in range(2):
        async with run_sdk(gateway) as (_, client):
            made = await client.embeddings.create(model=MODEL, input=["four", "eightyes"], encoding_format=form)
            tokens = await client.embeddings.create(model=MODEL, input=[[1, 2]], dimensions=2)
        assert [each.embedding for each in made.data] == [[1.0, 2.0], [2.0, 4.0]]
        assert tokens.data[0].embedding == [0.5, 1.0]
        assert made.usage.prompt_tokens == 2
    assert [body["input"] for body in server.bodies] == [["four", "eightyes"], [[1, 2]]]
    assert server.bodies[1]["dimensions"] == 2
    total = gateway.ledger.snapshot().total
    assert (total.calls, total.cache_hits, total.input_tokens, total.output_tokens) == (2, 2, 4, 0)


@asynccontextmanager
async def run_anthropic(gateway: Gateway) -> AsyncIterator[tuple[EndpointSession, anthropic.AsyncAnthropic]]:
    with gateway.active():
        async with open_session(CASE) as session, open_anthropic(session) as client:
            yield session, client


def open_anthropic(session: EndpointSession) -> anthropic.AsyncAnthropic:
    given = session.environment
    return anthropic.AsyncAnthropic(base_url=given["ANTHROPIC_BASE_URL"], api_key=given["ANTHROPIC_API_KEY"])


CLAUDE_SEARCH: Any = {
    "name": "search",
    "description": "Find",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
}


async def test_anthropic_messages_with_tools_and_images(server: LoopbackServer) -> None:
    server.fields = ask_for_tool
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    question: Any = {"role": "user", "content": [{"type": "text", "text": "Find y"}, image]}
    async with run_anthropic(build_gateway(server)) as (session, client):
        first = await client.messages.create(
            model=MODEL,
            max_tokens=50,
            system="Be brief.",
            messages=[question],
            tools=[CLAUDE_SEARCH],
            tool_choice={"type": "any"},
            stop_sequences=["END"],
            metadata={"user_id": "u1"},
        )
        kinds = [block.type for block in first.content]
        use = first.content[-1]
        assert kinds == ["thinking", "text", "tool_use"]
        assert use.type == "tool_use"
        assert (use.input, first.stop_reason) == ({"q": "y"}, "tool_use")
        result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "found"}]}
        answer: Any = [
            {"role": "assistant", "content": [block.to_dict() for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        second = await client.messages.create(model=MODEL, max_tokens=50, messages=[question, *answer])
    assert second.content[0].type == "text"
    assert second.content[0].text == "You said: found"
    assert (second.stop_reason, second.usage.output_tokens) == ("end_turn", 3)
    body = server.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert (body["tool_choice"], body["stop"], body["user"], body["max_tokens"]) == ("required", ["END"], "u1", 50)
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert len(session.calls) == 2


async def test_thinking_tools_and_marks_of_the_cache_reach_claude_and_back(server: LoopbackServer) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
    rules: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    server.message_fields = {
        "content": [thought, {"type": "text", "text": "Let me look."}, use],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 5,
            "output_tokens": 7,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
        },
    }
    claude = "anthropic/claude-sonnet-4-5"
    model = LiteLLMModel(api_base=server.url.removesuffix("/v1"), api_key="sk-x")
    messages: Any = [
        {"role": "user", "content": "Find x"},
        {"role": "assistant", "content": [thought, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]},
    ]
    async with run_anthropic(Gateway(models={claude: model})) as (_, client):
        said = await client.messages.create(
            model=claude,
            max_tokens=2000,
            system=rules,
            messages=messages,
            tools=[CLAUDE_SEARCH],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
    assert [block.to_dict() for block in said.content] == server.message_fields["content"]
    assert (said.stop_reason, said.usage.input_tokens, said.usage.cache_read_input_tokens) == ("tool_use", 5, 2)
    (body,) = server.bodies
    assert body["system"] == rules
    assert body["messages"][1:] == messages[1:]
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert body["tools"][0]["input_schema"] == CLAUDE_SEARCH["input_schema"]
    assert "extra_body" not in body


async def test_claude_gets_the_fields_that_it_knows_and_no_others(server: LoopbackServer) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    server.message_fields = {"content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn", "usage": usage}
    claude = "anthropic/claude-sonnet-4-5"
    model = LiteLLMModel(api_base=server.url.removesuffix("/v1"), api_key="sk-x")
    extra = {
        "container": "c1",
        "chat_template_kwargs": {"think": True},
        "store": True,
        "mock_response": "no",
        "top_k": 5,
    }
    async with run_sdk(Gateway(models={claude: model})) as (_, client):
        said = await client.chat.completions.create(model=claude, messages=HELLO, extra_body=extra)
    assert said.choices[0].message.content == "Hi."
    (body,) = server.bodies
    assert body.keys() == {"model", "messages", "max_tokens", "container", "top_k"}


async def test_anthropic_messages_are_streamed(server: LoopbackServer) -> None:
    server.fields = ask_for_tool
    async with (
        run_anthropic(build_gateway(server)) as (_, client),
        client.messages.stream(
            model=MODEL, max_tokens=50, messages=[{"role": "user", "content": "Find y"}], tools=[CLAUDE_SEARCH]
        ) as stream,
    ):
        text = "".join([part async for part in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "Let me look."
    assert final.content[-1].type == "tool_use"
    assert final.content[-1].input == {"q": "y"}


async def test_errors_have_the_shape_of_anthropic(server: LoopbackServer) -> None:
    async with run_anthropic(build_gateway(server, budget=Budget(max_calls=0))) as (session, client):
        tool: Any = {"type": "web_search_20250305", "name": "web_search"}
        with pytest.raises(anthropic.BadRequestError, match="not built-in tools"):
            await client.messages.create(model=MODEL, max_tokens=5, messages=HELLO, tools=[tool])
        with pytest.raises(anthropic.PermissionDeniedError) as refused:
            await client.messages.create(model=MODEL, max_tokens=5, messages=HELLO)
        assert isinstance(refused.value.body, dict)
        assert refused.value.body["error"]["type"] == "budget_ended"
        assert session.fatal is not None
        session.fatal = None


async def run_both_sdks(text: str, clients: tuple[Any, Any]) -> None:
    """A call of each client that was instrumented once, before any case."""
    of_openai, of_anthropic = clients
    said = await of_openai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
    assert said.choices[0].message.content == f"You said: {text}"
    message = {"role": "user", "content": f"{text}!"}
    also = await of_anthropic.messages.create(model=MODEL, max_tokens=9, messages=[message])
    assert also.content[0].text == f"You said: {text}!"


@asynccontextmanager
async def open_both() -> AsyncIterator[tuple[Any, Any]]:
    url = "http://127.0.0.1:9"  # where there is no server
    first = instrument(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-of-the-agent", max_retries=0))
    second = instrument(anthropic.AsyncAnthropic(base_url=url, api_key="sk-of-the-agent", max_retries=0))
    async with first, second:
        yield first, second


async def test_instrumented_clients_call_for_the_case_that_they_run_in(server: LoopbackServer) -> None:
    gateway = build_gateway(server)

    async def run(number: int, clients: tuple[Any, Any]) -> list[str]:
        async with open_session(replace(CASE, case_id=str(number))) as session:
            await run_both_sdks(f"case {number}", clients)
        return [call.request.text for call in session.calls]

    async with open_both() as clients:
        assert [type(client) for client in clients] == [openai.AsyncOpenAI, anthropic.AsyncAnthropic]
        with gateway.active():
            found = await asyncio.gather(*(run(number, clients) for number in range(6)))
            assert found == [[f"case {number}", f"case {number}!"] for number in range(6)]
            await run_both_sdks("no case", clients)
        assert gateway.ledger.snapshot().total.calls == 14
        with pytest.raises(openai.APIConnectionError):  # as before: there is no server
            await clients[0].chat.completions.create(model=MODEL, messages=HELLO)


async def test_synchronous_clients_are_instrumented_in_threads(server: LoopbackServer) -> None:
    gateway = build_gateway(server)
    with (
        instrument(openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)) as client,
        gateway.active(),
    ):

        def ask(text: str) -> str | None:
            said = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
            return said.choices[0].message.content

        assert await asyncio.to_thread(ask, "no case") == "You said: no case"
        async with open_session(CASE) as session:
            assert await asyncio.to_thread(ask, "a") == "You said: a"
        assert [call.request.text for call in session.calls] == ["a"]
        with pytest.raises(SetupError, match="use the async client"):  # noqa: PT012 - of the end of the block
            async with open_session(CASE) as session:
                with pytest.raises(openai.BadRequestError, match="use the async client"):
                    ask("in the event loop")


async def test_a_stream_of_an_instrumented_client_and_a_client_for_litellm(server: LoopbackServer) -> None:
    gateway = build_gateway(server)
    async with open_both() as (client, _):
        with gateway.active():
            async with open_session(CASE) as session:
                stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
                said = await load().acompletion(model=f"openai/{MODEL}", messages=HELLO, client=client)
    assert "".join(parts) == said.choices[0].message.content == "You said: Hello"
    assert len(session.calls) == 2


async def test_a_model_that_is_made_of_an_instrumented_client_does_not_call_itself(server: LoopbackServer) -> None:
    async with instrument(openai.AsyncOpenAI(base_url=server.url, api_key="x")) as client:

        async def answer(messages: Any) -> str:
            said = await client.chat.completions.create(model="inner", messages=messages)
            return said.choices[0].message.content or ""

        with Gateway(models={"outer": answer}).active():
            said = await client.chat.completions.create(model="outer", messages=HELLO)
    assert said.choices[0].message.content == "You said: Hello"
    assert [body["model"] for body in server.bodies] == ["inner"]


def test_what_is_not_a_client_cannot_be_instrumented() -> None:
    with pytest.raises(SetupError, match="give a client of openai or anthropic"):
        instrument("openai")
