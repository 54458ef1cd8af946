"""GatewayModel: calls of an agent elsewhere arrive at the gateway as they were made."""

from __future__ import annotations

import pytest

from promptiter.agents.base import RunContext
from promptiter.agents.remote.gateway_model import build_gateway
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest
from promptiter.endpoint.http_server import HttpServer
from promptiter.endpoint.sessions import open_session
from promptiter.errors import BadAnswerError, BadRequestError, ModelError, ModelNotFoundError, RateLimitedError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest, ToolRequest, ToolSpec
from promptiter.llm.models import ScriptedModel
from traces import Usage

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
REQUEST = ModelRequest(
    model="clerk",
    messages=(
        Message("system", "Be brief."),
        Message("assistant", "", tool_requests=(ToolRequest("1", "menu", {"day": 1}),)),
        Message("tool", "none", tool_request_id="1"),
    ),
    tools=(ToolSpec("menu", "The menu.", {"type": "object", "properties": {"day": {"type": "integer"}}}),),
    options={"temperature": 0.5, "extra_body": {"guided": True}},
    schema=SCHEMA,
)


async def test_a_request_and_its_reply_arrive_unchanged() -> None:
    reply = ModelReply(
        text="yes",
        tool_requests=(ToolRequest("2", "menu", {"day": 2}),),
        usage=Usage(input_tokens=5, output_tokens=2, cached_input_tokens=1),
        finish_reason="tool_calls",
    )
    model = ScriptedModel([reply])
    with Gateway(models={"clerk": model}).active():
        async with open_session(RunContext(case_id="tea")) as session:
            found = await build_gateway(session.base_url, session.key).ask(REQUEST, CallSite())
    assert found == reply
    [asked] = model.requests
    assert (asked.messages, asked.tools, asked.answer_schema) == (REQUEST.messages, REQUEST.tools, SCHEMA)
    assert asked.options["temperature"] == 0.5
    assert asked.options["extra_body"] == {"guided": True}
    assert asked.options["max_tokens"] == Gateway().max_output_tokens  # the sender's default, not that of the agent


async def test_a_limit_of_the_request_is_kept() -> None:
    model = ScriptedModel(["yes"])
    with Gateway(models={"clerk": model}).active():
        async with open_session(RunContext(case_id="tea")) as session:
            request = ModelRequest(model="clerk", messages=(Message("user", "hi"),), options={"max_tokens": 7})
            await build_gateway(session.base_url, session.key).ask(request, CallSite())
    assert model.requests[0].options["max_tokens"] == 7


@pytest.mark.parametrize(
    ("status", "text", "kind", "message"),
    [
        (400, '{"error": {"message": "too long"}}', BadRequestError, "^too long$"),
        (404, '{"error": {"message": "no such model"}}', ModelNotFoundError, "no such model"),
        (429, "slow down", RateLimitedError, "status 429: 'slow down'"),
        (200, "<html>", BadAnswerError, "what is not a completion: '<html>'"),
        (200, '{"choices": []}', BadAnswerError, "what is not a completion"),
    ],
)
async def test_errors_are_those_of_a_model_and_are_not_retried(
    status: int, text: str, kind: type[ModelError], message: str
) -> None:
    calls = []

    async def answer(request: HttpRequest) -> HttpAnswer:
        calls.append(request.path)
        return HttpAnswer(status=status, chunks=(text.encode(),))

    server = HttpServer(answer)
    port = await server.start()
    try:
        with pytest.raises(kind, match=message):
            await build_gateway(f"http://127.0.0.1:{port}/v1", "key").ask(REQUEST, CallSite())
    finally:
        await server.close()
    assert calls == ["/v1/chat/completions"]
