"""Answers that are large or have no end: results that many clients poll, and streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from promptiter.concurrency import run_in_thread
from promptiter.manager.encoded_results import EncodedResult
from promptiter.runlog.results import RunResult

CHUNK = 65_536
"""Large bodies are sent in parts, so that a client that does not read them takes no more memory than this."""
_PREFIX, _SUFFIX = b'{"result":', b"}"


class ResultResponse(Response):
    """`{"result": ...}`, from a result that other answers share. A client that knows it already gets 304."""

    def __init__(
        self, result: EncodedResult, status: int = 200, *, known: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        tag = f'"{result.tag}"'
        is_known = status == 200 and matches_tag(known, tag)
        super().__init__(None, 304 if is_known else status, headers=headers)
        self.headers["ETag"] = tag
        self.headers["Cache-Control"] = "no-cache"
        self._content = None if is_known else memoryview(result.body)
        if self._content is not None:
            self.headers["Content-Type"] = "application/json"
            self.headers["Content-Length"] = str(len(_PREFIX) + len(self._content) + len(_SUFFIX))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._content is not None:
            await _send_part(send, _PREFIX)
            for start in range(0, len(self._content), CHUNK):
                await _send_part(send, bytes(self._content[start : start + CHUNK]))
            await _send_part(send, _SUFFIX)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class StreamResponse(Response):
    """Server-sent events. It ends when the client leaves, and the events are closed. Then `on_end` is called."""

    def __init__(self, events: AsyncGenerator[bytes], *, on_end: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}
        super().__init__(None, headers=headers)
        del self.headers["Content-Length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        tasks = [asyncio.create_task(self._send_all(send)), asyncio.create_task(_wait_for_end(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:
                self._on_end()
        with suppress(asyncio.CancelledError):
            tasks[0].result()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await _send_part(send, event)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def encode_result(result: RunResult) -> EncodedResult:
    """Encode the result of a change, which nobody else has asked for."""
    body = await run_in_thread(lambda: result.to_json().rstrip())
    return EncodedResult.of(result.status, body)


def matches_tag(header: str, tag: str) -> bool:
    """Whether an If-None-Match header names a tag."""
    given = {each.strip().removeprefix("W/") for each in header.split(",")}
    return tag in given or "*" in given


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
