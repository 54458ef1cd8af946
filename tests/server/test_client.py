"""A server on a real socket, and its clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from promptiter.errors import SetupError
from promptiter.manager import Manager
from promptiter.runlog.event_json import encode_event
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold
from promptiter.runs.memory_store import MemoryStore
from promptiter.server.client import AsyncClient
from promptiter.server.client_errors import ServerError
from promptiter.server.serving import ServerOptions, serve
from promptiter.server.sync_client import Client
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_event
from tests.manager.test_manager import GatedRun, expected_result
from tests.server.conftest import SmallApp, make_tokens

pytestmark = pytest.mark.slow


@asynccontextmanager
async def listening(manager: Manager, **options: Any) -> AsyncIterator[str]:
    """A server on a free port; yields its address."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(
        serve(manager, ServerOptions(**{"port": 0, **options}), on_start=address.set_result, stop=stop)
    )
    try:
        async with asyncio.timeout(30):
            yield await address
    finally:
        stop.set()
        await serving


async def test_a_run_from_start_to_end() -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url, AsyncClient(url, app="desk") as client:
        assert "clerk#instruction" in (await client.describe()).surface_ids
        started = await client.start({"max_rounds": 2})
        events = [event async for event in client.watch(started.run_id)]
        assert fold(events) == await client.get(started.run_id) == await expected_result()
        [listed] = (await client.list(status="succeeded")).runs
        assert listed.run_id == started.run_id
        digest = events_digest(await client.get(started.run_id))
        assert (await client.get_trace(started.run_id, digest)).steps
        await client.delete(started.run_id)
        with pytest.raises(ServerError, match="answered 404") as unknown:
            await client.get(started.run_id)
        assert unknown.value.status == 404


async def test_runs_can_be_cancelled_and_resumed() -> None:
    gated = GatedRun(free=6)
    async with listening(Manager([SmallApp(gated)])) as url, AsyncClient(url, app="desk") as client:
        run_id = (await client.start()).run_id
        await gated.waits.wait()
        assert (await client.cancel(run_id)).status == "cancelled"
        gated.gate.set()
        await client.resume(run_id)
        assert await client.wait(run_id) == await expected_result()
        with pytest.raises(ServerError, match="has ended") as ended:
            await client.cancel(run_id)
        assert ended.value.status == 409


async def test_the_synchronous_client_does_the_same() -> None:
    def use(url: str) -> None:
        with Client(url, app="desk", token="key") as client:
            started = client.start()
            types = [event.type for event in client.watch(started.run_id)]
            assert (types[0], types[-1]) == ("run_started", "run_completed")
            assert client.wait(started.run_id).status == client.run().status == "succeeded"
            assert len(client.list(limit=1).runs) == 1
        with Client(url, app="desk") as client, pytest.raises(ServerError, match="a token is required"):
            client.describe()

    tokens = make_tokens(key=("admin",))
    async with listening(Manager([SmallApp(SmallRun())]), tokens=tokens) as url:
        await asyncio.to_thread(use, url)


async def test_invalid_runs_are_refused_with_every_problem() -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url, AsyncClient(url, app="desk") as client:
        with pytest.raises(ServerError) as refused:
            await client.start({"agent": "os:system", "max_rounds": -1})
        assert (refused.value.status, len(refused.value.problems)) == (400, 2)


async def test_a_token_may_come_from_a_file() -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["Authorization"])
        return httpx.Response(200, json={"runs": [], "next_cursor": None})

    transport = httpx.MockTransport(answer)
    async with AsyncClient("http://server", app="desk", token="pit_1\n", transport=transport) as client:
        await client.list()
    assert sent == ["Bearer pit_1"]


@pytest.mark.parametrize("token", ["", "\n", "pit_s3cret pit_other", "pit_s3cret\nX-Role: admin", "pit_s3crét"])
def test_what_cannot_be_sent_as_a_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(SetupError, match="the token for the server cannot be sent") as refused:
        Client("http://server", app="desk", token=token)
    assert "s3cr" not in str(refused.value)


async def test_a_body_that_is_too_large_is_refused_in_words() -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url, AsyncClient(url, app="desk") as client:
        with pytest.raises(ServerError, match="larger than 4,000,000 bytes") as refused:
            await client.start({"judge": "x" * 20_000_000})
        assert refused.value.status == 413


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_only_line_feeds_end_the_lines_of_a_stream(size: int) -> None:
    event = make_event(0, "one\u2028two\u0085three\x0b\x1c\rfour")
    sent = b": waiting\n\nid: 0\r\nevent: note\ndata: %s\n\n" % encode_event(event)
    sent += b'event: end\ndata: {"status":"succeeded"}\n\n'

    async def send() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), size):
            yield sent[start : start + size]

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=send()))
    async with AsyncClient("http://server", app="desk", transport=transport) as client:
        assert [each async for each in client.watch("a")] == [event]


async def test_a_stream_continues_on_the_next_server() -> None:
    """The first server is stopped in the middle of a run; another one on the same port and store goes on."""
    store, gated, small = MemoryStore(), GatedRun(free=4), SmallRun()
    port = find_free_port()
    seen: list[Event] = []
    async with AsyncClient(f"http://127.0.0.1:{port}", app="desk") as client:
        async with listening(Manager([SmallApp(gated)], store=store), port=port):
            run_id = (await client.start()).run_id
            watching = asyncio.create_task(collect(client, run_id, seen.append))
            await gated.waits.wait()
            closing = asyncio.get_running_loop().call_later(2.5, gated.gate.set)  # uvicorn waits a second for streams
        closing.cancel()
        assert not watching.done()
        async with listening(Manager([SmallApp(small)], store=store, sweep_s=0.05), port=port):
            await watching
            assert (await client.get(run_id)).status == "succeeded"
    assert [event.seq for event in seen] == list(range(len(seen)))
    assert fold(seen) == await expected_result()


async def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    async with AsyncClient(url, app="desk", patience_s=0.0) as client:
        with pytest.raises(ServerError, match="cannot be reached") as unreachable:
            await client.start()
    assert unreachable.value.status == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
async def test_other_machines_need_tokens(host: str) -> None:
    with pytest.raises(SetupError, match="there are no tokens"):
        await serve(Manager([SmallApp(SmallRun())]), ServerOptions(host=host))


async def test_a_port_in_use_is_refused_in_words() -> None:
    async with listening(Manager([SmallApp(SmallRun())])) as url:
        with pytest.raises(SetupError, match="choose another --port"):
            await serve(Manager([SmallApp(SmallRun())]), ServerOptions(port=int(url.rpartition(":")[2])))


async def collect(client: AsyncClient, run_id: str, take: Callable[[Event], None]) -> None:
    async for event in client.watch(run_id):
        take(event)


def events_digest(result: Any) -> str:
    found: str = result.baseline.rows[0].trace_digests[0]
    return found


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
