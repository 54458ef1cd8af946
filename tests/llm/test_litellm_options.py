"""What models and servers take: known from litellm's list, or learned from a refusal of a real HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel, ConfigDict, TypeAdapter

from promptiter.errors import BadRequestError
from promptiter.evaluation.metrics.judge_replies import VALID_SHAPE, make_rubric_shape
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import (
    THINKING_TOKENS,
    LiteLLMModel,
    find_unsupported_options,
    most_output_tokens,
    price_per_token_usd,
    thinking_tokens,
)
from promptiter.llm.litellm_options import is_strict
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.retries import Retries
from promptiter.llm.structured import ask_for
from tests.worlds.model_server import LoopbackServer, run_server
from traces.model import Json

litellm_is_imported = pytest.mark.slow


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    score: float


SHAPE = TypeAdapter(Verdict)
ANSWER = '{"score": 0.5}'


@dataclass
class PickyServer(LoopbackServer):
    """A server that refuses requests with some options, and keeps all requests. `finish` is its finish_reason."""

    refused: Mapping[str, str] = field(default_factory=dict)
    """Options that it refuses, each with its message."""
    status: int = 400
    message: Mapping[str, Json] = field(default_factory=dict)
    finish: str = "stop"
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        for name, problem in self.refused.items():
            if name in body:
                return web.json_response({"error": {"message": problem}}, status=self.status)
        content = {"role": "assistant", "content": self.answer(body), **self.message}
        choice = {"index": 0, "message": content, "finish_reason": self.finish}
        usage = self.usage or {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


def picky(**settings: Any) -> PickyServer:
    return PickyServer(lambda _: ANSWER, **settings)


def door_to(server: LoopbackServer, name: str, **options: Any) -> Gateway:
    model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
    return Gateway(models={name: model}, retries=Retries(attempts=1), **options)


async def ask(door: Gateway, name: str, text: str = "How good?", **options: Json) -> float:
    messages = (Message("system", "Judge it."), Message("user", text))
    request = ModelRequest(model=name, messages=messages, options=options)
    return (await ask_for(SHAPE, request, CallSite(role="judge"), door)).score


@litellm_is_imported
async def test_a_model_that_is_not_listed_is_sent_the_schema_strictly() -> None:
    with run_server(picky()) as server:
        assert isinstance(server, PickyServer)
        assert await ask(door_to(server, "openai/own"), "openai/own") == 0.5
        [body] = server.bodies
        assert body["response_format"]["type"] == "json_schema"
        assert body["response_format"]["json_schema"]["strict"] is True
        assert [each["content"] for each in body["messages"]] == ["Judge it.", "How good?"]


@litellm_is_imported
@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (400, "response_format is not supported by this server"),
        (400, "bad request"),
        (422, "Extra inputs are not permitted"),
        (500, "failed to parse grammar"),
    ],
)
async def test_a_server_that_refuses_schemas_is_asked_without_from_then_on(status: int, problem: str) -> None:
    with run_server(picky(refused={"response_format": problem}, status=status)) as server:
        assert isinstance(server, PickyServer)
        door = door_to(server, "openai/own")
        assert [await ask(door, "openai/own", text) for text in ("one", "two", "three")] == [0.5] * 3
        assert ["response_format" in body for body in server.bodies] == [True, False, False, False]
        rule = server.bodies[-1]["messages"][0]["content"]
        assert rule.startswith("Judge it.\n\nAnswer with JSON of this schema, and nothing else:\n{")
        assert "score" in rule
        assert door.ledger.snapshot().total.calls == 3


@litellm_is_imported
async def test_a_refused_call_that_fails_without_the_schema_too_has_its_first_error() -> None:
    with run_server(picky(refused={"messages": "no such model here"})) as server:
        assert isinstance(server, PickyServer)
        door = door_to(server, "openai/own")
        for _ in range(2):
            with pytest.raises(BadRequestError, match="no such model here"):
                await ask(door, "openai/own")
        assert ["response_format" in body for body in server.bodies] == [True, False] * 2


@litellm_is_imported
async def test_a_format_that_the_user_asks_for_is_not_dropped() -> None:
    with run_server(picky(refused={"response_format": "response_format is not supported"})) as server:
        assert isinstance(server, PickyServer)
        options = {"response_format": {"type": "json_object"}}
        request = ModelRequest(model="openai/own", messages=(Message("user", "hi"),), options=options)
        with pytest.raises(BadRequestError, match="response_format is not supported"):
            await door_to(server, "openai/own").ask(request, CallSite())
        assert len(server.bodies) == 1


@litellm_is_imported
async def test_options_that_a_server_refuses_are_dropped_and_a_limit_is_renamed() -> None:
    refused = {
        "max_tokens": "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
        "temperature": "Unsupported value: 'temperature' does not support 0.2 with this model.",
    }
    with run_server(picky(refused=refused)) as server:
        assert isinstance(server, PickyServer)
        door = door_to(server, "openai/own", max_output_tokens=300)
        assert [await ask(door, "openai/own", text, temperature=0.2) for text in ("one", "two")] == [0.5, 0.5]
        assert len(server.bodies) == 4
        for body in server.bodies[2:]:
            assert body["max_completion_tokens"] == 300
            assert "response_format" in body
            assert not refused.keys() & body.keys()


@litellm_is_imported
@pytest.mark.parametrize("name", ["openai/o3", "openai/gpt-5"])
async def test_a_reasoning_model_gets_no_temperature_and_room_to_think_within_the_budget(name: str) -> None:
    budget = Budget(max_tokens=100_000)
    with run_server(picky()) as server:
        assert isinstance(server, PickyServer)
        door = door_to(server, name, max_output_tokens=1_000, budget=budget)
        assert await ask(door, name, temperature=0.2, reasoning_effort="low") == 0.5
        [body] = server.bodies
        assert body["max_completion_tokens"] == 1_000 + THINKING_TOKENS
        assert body["reasoning_effort"] == "low"
        assert not {"temperature", "max_tokens"} & body.keys()
        assert budget.largest_call.tokens > 1_000 + THINKING_TOKENS


@litellm_is_imported
async def test_a_claude_that_thinks_gets_no_temperature_a_native_schema_and_a_larger_limit_once_it_is_cut_off() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        is_cut = len(bodies) == 1
        content = [{"type": "text", "text": ANSWER[:5] if is_cut else ANSWER}]
        rest = {"stop_reason": "max_tokens" if is_cut else "end_turn", "usage": {"input_tokens": 9, "output_tokens": 5}}
        return web.json_response(
            {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": content, **rest}
        )

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    name = "anthropic/claude-sonnet-4-5"
    async with TestServer(app) as server:
        model = LiteLLMModel(api_base=str(server.make_url("")).rstrip("/"), api_key="sk-loopback")
        door = Gateway(models={name: model}, max_output_tokens=1_000)
        assert await ask(door, name, temperature=0.2, reasoning_effort="low") == 0.5
    limit = 1_000 + THINKING_TOKENS
    assert [body["max_tokens"] for body in bodies] == [limit, 2 * limit]
    for body in bodies:
        assert "temperature" not in body
        assert body["output_format"]["type"] == "json_schema"
        assert 0 < body["thinking"]["budget_tokens"] < limit


@litellm_is_imported
async def test_a_limit_of_the_user_is_not_raised_for_thinking() -> None:
    with run_server(picky()) as server:
        assert isinstance(server, PickyServer)
        assert await ask(door_to(server, "openai/o3"), "openai/o3", max_tokens=500) == 0.5
        assert server.bodies[0]["max_completion_tokens"] == 500


@litellm_is_imported
async def test_a_cut_answer_gets_no_higher_limit_than_the_model_can_write() -> None:
    answers = iter(['{"sco', '{"sco', '{"sco', ANSWER])
    with run_server(PickyServer(lambda _: next(answers), finish="length")) as server:
        assert isinstance(server, PickyServer)
        assert most_output_tokens("openai/gpt-4o-mini") == 16_384
        door = door_to(server, "openai/gpt-4o-mini", max_output_tokens=5_000)
        assert await ask(door, "openai/gpt-4o-mini") == 0.5
        assert [body["max_tokens"] for body in server.bodies] == [5_000, 10_000, 16_384, 16_384]


@litellm_is_imported
async def test_a_refusal_in_a_field_of_its_own_is_read() -> None:
    with run_server(picky(message={"content": None, "refusal": "I cannot help with that."})) as server:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback")
        request = ModelRequest(model="openai/own", messages=(Message("user", "hi"),))
        assert (await model(request, repeat=0)).text == "I cannot help with that."


@litellm_is_imported
async def test_thinking_that_only_the_total_counts_is_paid() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}
    with run_server(picky(usage=usage)) as server:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback")
        reply = await model(ModelRequest(model="openai/own", messages=(Message("user", "hi"),)), repeat=0)
        assert isinstance(reply, ModelReply)
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 105)


@litellm_is_imported
@pytest.mark.parametrize(
    ("name", "options", "thinks"),
    [
        ("o3", {}, True),
        ("openai/gpt-5", {}, True),
        ("gpt-5.1", {}, False),
        ("gpt-5.1", {"reasoning_effort": "high"}, True),
        ("gemini/gemini-2.5-flash", {}, True),
        ("gemini/gemini-2.5-flash", {"reasoning_effort": "disable"}, False),
        ("anthropic/claude-sonnet-4-5", {}, False),
        ("anthropic/claude-sonnet-4-5", {"reasoning_effort": "low"}, True),
        ("gpt-4o-mini", {"reasoning_effort": "low"}, False),
        ("openai/own", {}, False),
        ("openai/own", {"reasoning_effort": "low"}, True),
        ("judge-0a1b/o3", {}, True),
    ],
)
def test_which_models_think_is_known_from_the_list_and_the_options(
    name: str, options: Mapping[str, Json], thinks: bool
) -> None:
    assert thinking_tokens(name, options) == (THINKING_TOKENS if thinks else 0)


@litellm_is_imported
def test_a_budget_for_thinking_is_what_a_model_may_think() -> None:
    asked = {"thinking": {"type": "enabled", "budget_tokens": 3_000}}
    assert thinking_tokens("anthropic/claude-sonnet-4-5", asked) == 3_000
    assert thinking_tokens("anthropic/claude-sonnet-4-5", {"thinking": {"type": "disabled"}}) == 0


@litellm_is_imported
def test_what_a_model_does_not_take_is_known_from_the_list() -> None:
    assert find_unsupported_options("gpt-4o-mini", {}) == set()
    assert find_unsupported_options("openai/own", {"temperature": 0}) == set()
    assert find_unsupported_options("gpt-3.5-turbo", {}) == find_unsupported_options("gpt-4", {}) == {"response_format"}
    claude = "anthropic/claude-sonnet-4-5"
    assert find_unsupported_options(claude, {"temperature": 0}) == set()
    assert "temperature" in find_unsupported_options(claude, {"temperature": 0, "reasoning_effort": "low"})


@litellm_is_imported
def test_a_listed_model_is_found_with_the_name_of_its_provider() -> None:
    assert price_per_token_usd("anthropic/claude-sonnet-4-5") == price_per_token_usd("claude-sonnet-4-5") is not None
    assert price_per_token_usd("vertex_ai/gemini-2.5-flash") == price_per_token_usd("gemini-2.5-flash") is not None
    assert price_per_token_usd("ollama/gpt-4o-mini") is None


def closed(**properties: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (SHAPE.json_schema(), True),
        (closed(a={"type": "array", "items": closed(b={"type": "string", "enum": ["x"]})}), True),
        (closed(a={"anyOf": [{"type": "string"}, {"type": "null"}]}), True),
        (closed(a={"enum": ["x"]}), False),
        (closed(a={"type": "string", "maxLength": 3}), False),
        (closed(a={"type": "array"}), False),
        (closed(a={"type": "array", "items": {"type": "object"}}), False),
        (closed(a={"type": "string"}) | {"required": []}, False),
        (closed(a={"type": "string"}) | {"additionalProperties": True}, False),
        (closed(a={"type": "string", "enum": [str(number) for number in range(1_000)]}), False),
        ({}, False),
    ],
)
def test_a_schema_is_strict_if_it_leaves_nothing_open(schema: Json, expected: bool) -> None:
    assert is_strict(schema) is expected


def test_the_schemas_of_the_stages_are_strict() -> None:
    from promptiter.backprop.llm.optimizer import build_value_adapter
    from promptiter.backprop.llm.replies import build_answer_adapter
    from promptiter.stages.contracts import AggregateResult
    from promptiter.stages.optimizer import OptimizeRequest
    from promptiter.structure import Limits, Surface

    assert is_strict(build_answer_adapter(("S1", "S2"), ("P1",)).json_schema())
    text = Surface(node_id="a", type="instruction", value="Answer.", limits=Limits(max_chars=100))
    model = Surface(node_id="a", type="model", value="small", limits=Limits(choices=("small", "large")))
    for surface in (text, model):
        request = OptimizeRequest(surface=surface, signal=AggregateResult(surface_id=surface.id, text="shorter"))
        assert is_strict(build_value_adapter(request).json_schema())
    assert is_strict(VALID_SHAPE.json_schema())
    assert is_strict(make_rubric_shape(("polite", "short")).json_schema())
