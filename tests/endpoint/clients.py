"""A plain HTTP client of the endpoint, and gateways with scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from promptiter.agents.base import RunContext
from promptiter.endpoint import EndpointSession, open_session
from promptiter.llm import Gateway, ModelReply, ModelRequest, ScriptedModel

CASE = RunContext(case_id="case-1")
HELLO: Any = [{"role": "user", "content": "Hello"}]


def echo(request: ModelRequest) -> str:
    return f"You said: {request.messages[-1].content}"


def build_gateway(script: Callable[[ModelRequest], str | ModelReply | None] = echo, **settings: Any) -> Gateway:
    return Gateway(models={"clerk": ScriptedModel(script)}, **settings)


@asynccontextmanager
async def run_case(
    gateway: Gateway | None = None, context: RunContext = CASE
) -> AsyncIterator[tuple[EndpointSession, httpx.AsyncClient]]:
    """A session of a gateway, and a client of it."""
    with (gateway or build_gateway()).active():
        async with open_session(context) as session, open_client(session) as client:
            yield session, client


def open_client(session: EndpointSession) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=session.base_url, trust_env=False, timeout=20)


async def post_chat(client: httpx.AsyncClient, text: str = "Hello", **fields: Any) -> httpx.Response:
    body = {"model": "clerk", "messages": [{"role": "user", "content": text}], **fields}
    return await client.post("/chat/completions", json=body)


def read_events(response: httpx.Response) -> list[Any]:
    """The JSON of server-sent events."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else orjson.loads(line) for line in lines]


async def wait_until(holds: Callable[[], object]) -> None:
    """Wait for something that happens in another thread."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - an event of another event loop cannot be awaited
            await asyncio.sleep(0.005)
