"""A remote agent for tests: it answers as its script says, and keeps what it was sent."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx
import orjson

from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest
from promptiter.endpoint.http_server import HttpServer

STRUCTURE: dict[str, Any] = {
    "name": "desk",
    "nodes": [{"id": "note", "kind": "llm"}, {"id": "answer", "kind": "llm"}],
    "edges": [{"source": "note", "target": "answer"}],
    "entry": "note",
    "surfaces": [
        {"node_id": "note", "type": "instruction", "value": "Take notes."},
        {"node_id": "answer", "type": "instruction", "value": "Answer."},
        {"node_id": "answer", "type": "parameter", "part": "top_k", "value": 3},
    ],
}

Answer: TypeAlias = "dict[str, Any] | HttpAnswer"


@dataclass
class ScriptedAgent:
    """Answers `POST /runs` with what `answer` makes of the request."""

    answer: Callable[[dict[str, Any]], Answer | Awaitable[Answer]] = lambda _: {"run": {"output": "done"}}
    structure: Any = field(default_factory=lambda: {"protocol": 1, "structure": STRUCTURE})
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0
    """How often its structure was asked for."""

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        self.headers.append(dict(request.headers))
        match request.method, request.path:
            case "GET", "/structure":
                self.asked += 1
                found: Answer = self.structure
            case "POST", "/runs":
                self.requests.append(orjson.loads(await request.read_body()))
                answer = self.answer(self.requests[-1])
                found = await answer if inspect.isawaitable(answer) else answer
            case _:
                raise AssertionError(f"unexpected request: {request}")
        return found if isinstance(found, HttpAnswer) else HttpAnswer.of_json(found)

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        server = HttpServer(self.handle)
        port = await server.start(port=port)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await server.close()


async def ask(sent: dict[str, Any], *, instruction: str = "") -> str:
    """Ask the model `clerk` as a request says."""
    system = [{"role": "system", "content": instruction}] if instruction else []
    async with httpx.AsyncClient() as client:
        reply = await client.post(
            f"{sent['models']['base_url']}/chat/completions",
            json={"model": "clerk", "messages": [*system, {"role": "user", "content": "x"}]},
            headers={"Authorization": f"Bearer {sent['models']['api_key']}"},
        )
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def fail(status: int, text: str = "it broke") -> HttpAnswer:
    return HttpAnswer(status=status, chunks=(text.encode(),))
