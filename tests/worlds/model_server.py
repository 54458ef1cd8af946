"""An HTTP server on loopback that speaks the OpenAI protocol and fails on purpose, with seeded faults.

It runs in a thread with an event loop of its own. Its answer is a function of the messages. The same request fails at
most `max_in_a_row` times, so that a client that retries always gets its answer. It keeps an account of its own: the
usage of every request that it did not refuse, whether the client got the answer or not.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from promptiter.llm.messages import ModelReply

HTTP_FAULTS = ("rate_limited", "server_error", "cut", "slow", "malformed_body")
REFUSALS = ("rate_limited", "server_error")
CONTENT_FAULTS = ("fenced", "truncated", "wrong")


@dataclass
class LoopbackServer:
    """Settings of the server, and what it received. `answer` turns a request's JSON into the text of a reply."""

    answer: Callable[[dict[str, Any]], str]
    fault_rate: float = 0.0
    seed: int = 0
    max_in_a_row: int = 3
    retry_after_s: float = 0.02
    slow_s: float = 0.05
    reports_usage: bool = True
    usage: dict[str, Any] | None = None
    """What is reported as the usage of each answer, if not its tokens."""
    excess_tokens: int = 0
    fields: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Fields of an answer that replace its own, as a function of the request's JSON."""
    refusal: tuple[int, str] | None = None
    """Status and message of an error that answers every request."""
    message_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the answer to a request of Anthropic's protocol."""
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """The JSON of each request."""
    arrivals: list[float] = field(default_factory=list)
    billed: list[tuple[int, int]] = field(default_factory=list)
    """Input and output tokens of each request that was not refused."""
    faults: list[str] = field(default_factory=list)
    _failed: dict[str, int] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.arrivals.append(time.monotonic())
        body = await request.json()
        self.bodies.append(body)
        if self.refusal is not None:
            return web.json_response({"error": {"message": self.refusal[1]}}, status=self.refusal[0])
        text = self.answer(body)
        fault = self._choose_fault(body)
        words = sum(len(str(message.get("content") or "").split()) for message in body["messages"])
        tokens = (words, len(text.split()) + self.excess_tokens)
        if fault not in REFUSALS:
            self.billed.append(tokens)
        match fault:
            case "rate_limited":
                headers = {"Retry-After": str(self.retry_after_s)}
                return web.json_response({"error": {"message": "slow down", "code": 429}}, status=429, headers=headers)
            case "server_error":
                return web.json_response({"error": {"message": "oops"}}, status=500)
            case "cut":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            case "malformed_body":
                return web.Response(text='{"id": "x", "choices": [{"mess', content_type="application/json")
            case "slow":
                await asyncio.sleep(self.slow_s)
            case "fenced":
                text = f"Sure, here it is:\n```json\n{text}\n```\nAnything else?"
            case "truncated":
                text = text[: len(text) // 2]
            case "wrong":
                text = json.dumps({"unexpected": True})
            case _:
                pass
        usage = self.usage or {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                **({"usage": usage} if self.reports_usage else {}),
                **(self.fields(body) if self.fields else {}),
            }
        )

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for embeddings: a quarter and half of the length of each input."""
        body = await request.json()
        self.bodies.append(body)
        words = sum(len(each.split()) if isinstance(each, str) else len(each) for each in body["input"])
        self.billed.append((words, 0))
        data = [
            {"object": "embedding", "index": index, "embedding": [len(each) / 4, len(each) / 2]}
            for index, each in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": words, "total_tokens": words}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def answer_message(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of Anthropic's protocol."""
        body = await request.json()
        self.bodies.append(body)
        return web.json_response(
            {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], **self.message_fields}
        )

    def _choose_fault(self, body: dict[str, Any]) -> str | None:
        key = json.dumps(body, sort_keys=True)
        failed = self._failed.get(key, 0)
        rng = random.Random(f"{self.seed} {failed} {key}")
        if failed >= self.max_in_a_row or rng.random() >= self.fault_rate:
            return None
        self._failed[key] = failed + 1
        fault = rng.choice(HTTP_FAULTS + (CONTENT_FAULTS if body.get("response_format") else ()))
        self.faults.append(fault)
        return fault


@contextmanager
def run_server(server: LoopbackServer) -> Iterator[LoopbackServer]:
    """Run a server; its `url` is the api_base to give to litellm."""
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.handle)
        app.router.add_post("/v1/embeddings", server.embed)
        app.router.add_post("/v1/messages", server.answer_message)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"http://127.0.0.1:{port}/v1"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.call_soon(started.set)  # only once it runs, or a quick stop would be lost
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def reply_at_once(answer: Any) -> ModelReply:
    """The reply of a coroutine that never waits."""
    try:
        answer.send(None)
    except StopIteration as done:
        reply: ModelReply = done.value
        return reply
    raise AssertionError("the model waited for something")
