"""Clients that send too much, too slowly, or what is not HTTP: each is refused, and does not delay others."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from promptiter.endpoint.error_bodies import render_error
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest, RefusedRequestError
from promptiter.endpoint.http_server import MAX_BODY, HttpServer
from tests.endpoint.clients import post_chat, run_case


async def count_bytes(request: HttpRequest) -> HttpAnswer:
    try:
        return HttpAnswer.of_json({"bytes": len(await request.read_body())})
    except RefusedRequestError as error:
        return render_error(error, "openai")


@asynccontextmanager
async def serve(handle: Any = count_bytes, **limits: Any) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(handle, **limits)
    port = await server.start()
    try:
        yield server, port
    finally:
        await server.close()


async def exchange(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send these bytes, and read until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        return await reader.read()
    finally:
        writer.close()


async def post(port: int, content: Any, **settings: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"http://127.0.0.1:{port}/", content=content, **settings)


async def test_a_body_over_the_limit_is_refused_unread() -> None:
    async with serve(max_body=1000) as (_, port):
        assert (await post(port, b"x" * 1000)).json() == {"bytes": 1000}
        refused = await post(port, b"x" * 1001)
    assert refused.status_code == 413
    assert "more than 1000 bytes" in refused.text


async def test_a_body_without_a_length_is_refused_at_the_limit() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 100

    async with serve(max_body=1000) as (_, port):
        assert (await post(port, parts())).status_code == 413


async def test_a_compressed_body_counts_as_what_it_becomes() -> None:
    async with serve(max_body=100_000) as (_, port):
        bomb = gzip.compress(b"x" * 10_000_000)
        assert (await post(port, bomb, headers={"Content-Encoding": "gzip"})).status_code == 413


async def test_a_body_that_cannot_be_decompressed_is_refused() -> None:
    async with serve() as (_, port):
        assert (await post(port, b"no gzip", headers={"Content-Encoding": "gzip"})).status_code == 400


async def test_a_body_of_100_mb_is_refused_by_the_endpoint_and_the_next_call_is_answered() -> None:
    async with run_case() as (session, client):
        port = int(session.base_url.split(":")[2].split("/")[0])
        path = f"/{session.key}/v1/chat/completions"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {100 * 1024 * 1024}\r\n\r\n"
        assert MAX_BODY < 100 * 1024 * 1024
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"x" * 10_000)
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        assert (await post_chat(client)).status_code == 200
        assert len(session.calls) == 1


@pytest.mark.slow
async def test_slow_senders_are_refused_and_delay_no_other() -> None:
    async with serve(body_timeout_s=0.3, head_timeout_s=0.3) as (_, port):
        slow_head = asyncio.create_task(exchange(port, b"POST / HT", pause_s=0.1))
        slow_body = asyncio.create_task(exchange(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"))
        assert (await post(port, b"quick")).json() == {"bytes": 5}
        assert not slow_head.done()
        assert not slow_body.done()
        assert (await slow_body).startswith(b"HTTP/1.1 408")
        assert await slow_head == b""


async def test_a_slow_reader_is_disconnected_and_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(chunks=(b"x" * 50_000_000,)) if request.path == "/large" else HttpAnswer.of_json("small")

    async with serve(answer, write_timeout_s=0.5) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        assert (await post(port, b"")).json() == "small"
        for _ in range(100):
            if caplog.messages:
                break
            await asyncio.sleep(0.05)
        assert caplog.messages == ["a client did not read its answer in 0.5 s and was disconnected"]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(50_000_000)
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nLarge: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(500)) + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_or_has_too_large_a_head_is_refused(sent: bytes) -> None:
    async with serve() as (_, port):
        answer = await asyncio.wait_for(exchange(port, sent), 5)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert (await post(port, b"ok")).json() == {"bytes": 2}


async def test_an_error_of_the_endpoint_itself_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: HttpRequest) -> HttpAnswer:
        raise ZeroDivisionError("oops")

    async with serve(fail) as (_, port):
        response = await post(port, b"")
    assert response.status_code == 500
    assert "the endpoint failed to answer a request" in caplog.text


async def test_a_client_that_waits_for_permission_gets_it() -> None:
    async with serve() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert await reader.readline() == b"\r\n"
        writer.write(b"abc")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
