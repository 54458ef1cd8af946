"""Overhead of the endpoint beside a direct call of the same server, with the same client, in one run.

A model server on loopback answers at once. The same client calls it directly, and through the endpoint: with the
server behind litellm, as users have it, and with a model that is a function, which shows what the endpoint itself
takes. Beside them, the gateway called in Python: what an agent of ours takes for the same call. All take turns, and the
best try of each counts. Every request is a new one, so no answer comes from the cache.

Goal: the endpoint takes at most half of what a call through the gateway and litellm takes.

    python -m benchmarks.bench_endpoint [--calls 200] [--concurrency 32]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp

from benchmarks.measure import format_goal
from promptiter import Gateway, RunContext
from promptiter.endpoint import open_session
from promptiter.llm import LiteLLMModel, Message, ModelReply, ModelRequest
from promptiter.llm.messages import CallSite
from tests.worlds.model_server import LoopbackServer, run_server
from traces import Usage

SERVED, INSTANT = "openai/clerk", "instant"
TRIES = 5

Ask = Callable[[str], Awaitable[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=32)
    chosen = parser.parse_args()
    with run_server(LoopbackServer(answer=lambda body: body["messages"][-1]["content"].upper())) as server:
        asyncio.run(report(server, calls=chosen.calls, concurrency=chosen.concurrency))


async def answer_at_once(request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG001 - a model's parameters
    return ModelReply(text=request.messages[-1].content.upper(), usage=Usage(input_tokens=3, output_tokens=3))


async def report(server: LoopbackServer, *, calls: int, concurrency: int) -> None:
    gateway = Gateway(models={SERVED: LiteLLMModel(api_base=server.url, api_key="sk-x"), INSTANT: answer_at_once})
    numbers = itertools.count()
    with gateway.active():
        async with open_session(RunContext(case_id="case")) as session, aiohttp.ClientSession() as client:
            ways: dict[str, Ask] = {
                "direct call of the server": lambda text: post(client, server.url, "clerk", text),
                "gateway in Python, litellm": lambda text: ask(gateway, text),
                "endpoint, model of litellm": lambda text: post(client, session.base_url, SERVED, text),
                "endpoint, model is a function": lambda text: post(client, session.base_url, INSTANT, text),
            }
            for way in ways.values():  # imports, connections
                await asyncio.gather(*(way(f"warm {next(numbers)}") for _ in range(concurrency)))
            for count in (1, concurrency):
                print(f"\n{calls} calls, {count} at a time (best of {TRIES} tries)\n")
                print(f"{'':34}{'ms/call':>9}{'calls/s':>9}{'ratio':>8}")
                taken = await measure(ways, calls, count, numbers)
                direct, through_python, through_endpoint, _ = taken.values()
                for name, seconds in taken.items():
                    line = f"{seconds / calls * 1e3:>9.2f}{calls / seconds:>9,.0f}{seconds / direct:>8.1f}"
                    print(f"{name:34}{line}")
                share = (through_endpoint - through_python) / through_python
                print(format_goal("of a call through the gateway and litellm is what the endpoint adds", share, 0.5))


async def measure(ways: dict[str, Ask], calls: int, concurrency: int, numbers: Iterator[int]) -> dict[str, float]:
    """The least seconds that these calls took, each way in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(TRIES):
        for name, way in ways.items():
            texts = iter([f"question {next(numbers)}" for _ in range(calls)])
            started = time.perf_counter()
            await asyncio.gather(*(call_all(way, texts) for _ in range(concurrency)))
            best[name] = min(best[name], time.perf_counter() - started)
    return best


async def call_all(way: Ask, texts: Iterator[str]) -> None:
    for text in texts:
        await way(text)


async def post(client: aiohttp.ClientSession, url: str, model: str, text: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    async with client.post(f"{url}/chat/completions", json=body) as response:
        found: dict[str, Any] = await response.json()
    said: str = found["choices"][0]["message"]["content"]
    assert said == text.upper()
    return said


async def ask(gateway: Gateway, text: str) -> ModelReply:
    return await gateway.ask(ModelRequest(model=SERVED, messages=(Message("user", text),)), CallSite(case_id="python"))


if __name__ == "__main__":
    main()
