"""Clients that are slow, that do not read, and that leave: on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from promptiter.manager import Manager
from promptiter.runs.memory_store import MemoryStore
from promptiter.server.connections import LimitedProtocol
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_event, make_header
from tests.manager.test_manager import GatedRun
from tests.server.conftest import DESK, SmallApp
from tests.server.test_client import listening

pytestmark = pytest.mark.slow


@contextmanager
def short_times(monkeypatch: pytest.MonkeyPatch, **times: float) -> Iterator[None]:
    for name, value in times.items():
        monkeypatch.setattr(LimitedProtocol, name, value)
    yield


@asynccontextmanager
async def connecting(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends or is reset."""
    parts: list[bytes] = []
    with suppress(ConnectionError):
        while part := await reader.read(1_000_000):
            parts.append(part)
    return b"".join(parts)


async def read_status(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])


@pytest.mark.parametrize(
    "slow",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
    ],
    ids=["nothing", "headers", "a body that nobody reads"],
)
async def test_a_slow_request_is_given_up(slow: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with short_times(monkeypatch, request_timeout_s=0.3):
        async with listening(Manager([SmallApp(SmallRun())])) as url, connecting(url) as (reader, writer):
            writer.write(slow)

            async def drip() -> None:
                while True:
                    await asyncio.sleep(0.02)
                    writer.write(b"x")

            dripping = asyncio.create_task(drip())
            try:
                async with asyncio.timeout(10):
                    await read_rest(reader)
            finally:
                dripping.cancel()


async def test_a_client_that_does_not_read_delays_nobody_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream stops, and neither the run nor another client waits for it."""
    store = MemoryStore()
    desk = store.for_app("desk")
    await desk.create(make_header("big"))
    async with desk.open("big") as run:
        large = make_event(0).model_copy(update={"data": {"text": "x" * 1_000_000}})
        for number in range(30):
            await run.journal.append(large.model_copy(update={"seq": number}))
    gated = GatedRun()
    with short_times(monkeypatch, stall_timeout_s=1.0):
        async with (
            listening(Manager([SmallApp(gated)], store=store, sweep_s=1000)) as url,
            connecting(url) as (reader, writer),
            connecting(url) as (other, to_other),
        ):
            writer.write(f"GET {DESK}/async-runs/big/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert await read_status(reader) == 200
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            gated.gate.set()
            to_other.write(f"POST {DESK}/runs HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert await read_status(other) == 200
            await asyncio.sleep(1.5)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await read_rest(reader)) < 15_000_000, "it was cut off in the middle"


async def test_a_client_that_leaves_ends_its_stream() -> None:
    gated = GatedRun()
    manager = Manager([SmallApp(gated)])
    async with listening(manager) as url:
        run_id = (await manager.start(app="desk")).run_id
        await gated.waits.wait()
        for _ in range(3):
            async with connecting(url) as (reader, writer):
                request = f"GET {DESK}/async-runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
                writer.write(request.encode())
                await reader.readuntil(b"run_started")
        async with asyncio.timeout(10):
            while any(task.get_name().startswith("feed of") for task in asyncio.all_tasks()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        gated.gate.set()


async def test_names_of_other_machines_and_forwarded_addresses_are_not_believed() -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url:
        for header, status in (("Host: evil.example", 403), ("Host: localhost\r\nX-Forwarded-Host: evil.example", 200)):
            async with connecting(url) as (reader, writer):
                writer.write(f"GET /health HTTP/1.1\r\n{header}\r\n\r\n".encode())
                assert await read_status(reader) == status


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_request_is_hidden_in_another_one(method: str) -> None:
    """By its length, the second request is the body of the first; by its encoding, it is not."""
    hidden = b"DELETE /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    request = (
        f"{method} {DESK}/async-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hidden) + 5}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    async with listening(Manager([SmallApp(SmallRun())])) as url, connecting(url) as (reader, writer):
        writer.write(request.encode() + hidden)
        answers = await read_rest(reader)
        assert answers.startswith(b"HTTP/1.1 400")
        assert answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "request_text",
    [
        "POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 200_000 + "\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\n folded\x00: y\r\n\r\n",
    ],
    ids=["two lengths", "negative length", "unknown encoding", "no host", "huge header", "nul in a header"],
)
async def test_ambiguous_requests_are_refused(request_text: str) -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url, connecting(url) as (reader, writer):
        writer.write(request_text.encode())
        assert 400 <= await read_status(reader) < 600
        assert b"Traceback" not in await read_rest(reader)
