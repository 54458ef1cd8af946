"""Clients wait for a server that is away, and do not repeat what may have had an effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from promptiter.server.client import AsyncClient
from promptiter.server.client_errors import ServerError
from promptiter.server.patience import FIRST_PATIENCE_S, PATIENCE_S, Patience, describe_wait

pytestmark = pytest.mark.slow

AWAY = ServerError("away")


@dataclass
class Clock:
    """Time that passes while one sleeps."""

    time: float = 0.0
    pauses: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


def make_patience(clock: Clock, messages: list[str], patience_s: float = 120.0) -> Patience:
    return Patience(
        patience_s,
        on_wait=lambda each: messages.append(describe_wait(each)),
        now=lambda: clock.time,
        sleep=clock.sleep,
    )


async def wait_often(patience: Patience, error: ServerError) -> None:
    for _ in range(1000):
        await patience.wait(error)


async def test_a_server_that_is_away_is_waited_for_and_that_is_said_once() -> None:
    clock, messages = Clock(), list[str]()
    with pytest.raises(ServerError, match="away"):
        await wait_often(make_patience(clock, messages), AWAY)
    assert (clock.time, clock.pauses[:5], messages) == (
        120.0,
        [0.5, 1.0, 2.0, 4.0, 5.0],
        ["the server cannot be reached; waiting for it"],
    )


async def test_a_server_that_was_never_reached_is_waited_for_a_few_seconds() -> None:
    clock = Clock()
    patience = Patience(was_reached=False, now=lambda: clock.time, sleep=clock.sleep)
    with pytest.raises(ServerError, match="away"):
        await wait_often(patience, AWAY)
    assert clock.time == FIRST_PATIENCE_S


async def test_an_answer_of_any_kind_gives_a_server_all_the_patience() -> None:
    clock = Clock()
    patience = Patience(was_reached=False, now=lambda: clock.time, sleep=clock.sleep)
    await patience.wait(ServerError("busy", status=503))
    with pytest.raises(ServerError, match="away"):
        await wait_often(patience, AWAY)
    assert clock.time == PATIENCE_S


async def test_an_answer_renews_the_patience() -> None:
    clock, messages = Clock(), list[str]()
    patience = make_patience(clock, messages, 4.0)
    await patience.wait(AWAY)
    patience.reached()
    clock.time = 1000.0
    await patience.wait(ServerError("busy", status=503))
    assert messages == ["the server cannot be reached; waiting for it", "the server answered 503; waiting for it"]


async def test_the_server_says_when_to_ask_again() -> None:
    clock = Clock()
    patience = make_patience(clock, [])
    await patience.wait(ServerError("busy", status=429, retry_after_s=7.0))
    assert clock.pauses == [7.0]
    with pytest.raises(ServerError, match="busy"):
        await patience.wait(ServerError("busy", status=429, retry_after_s=3600.0))
    assert clock.pauses == [7.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
async def test_other_errors_are_not_waited_for(status: int) -> None:
    with pytest.raises(ServerError, match="wrong"):
        await Patience().wait(ServerError("wrong", status=status))


async def test_without_patience_the_first_error_is_raised() -> None:
    clock, messages = Clock(), list[str]()
    with pytest.raises(ServerError, match="away"):
        await make_patience(clock, messages, 0.0).wait(AWAY)
    assert (clock.pauses, messages) == ([], [])


def scripted(answers: Sequence[httpx.Response | Exception]) -> tuple[httpx.AsyncBaseTransport, list[str]]:
    """A server that gives these answers and no others, and the methods that it was asked with."""
    left, asked = list(answers), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return httpx.MockTransport(answer), asked


def connect(transport: httpx.AsyncBaseTransport, patience_s: float = 120.0) -> AsyncClient:
    return AsyncClient("http://server", app="desk", transport=transport, on_wait=lambda _: None, patience_s=patience_s)


END = b'event: end\ndata: {"status":"succeeded"}\n\n'
LIST: dict[str, object] = {"runs": [], "next_cursor": None}


@pytest.mark.parametrize(
    "problem",
    [
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.ReadError("reset"),
        lambda: httpx.Response(429, headers={"Retry-After": "0"}),
        lambda: httpx.Response(502, text="<h1>Bad gateway</h1>"),
        lambda: httpx.Response(503, json={"error": "the server is stopping"}),
    ],
    ids=["refused", "reset", "429", "502", "503"],
)
async def test_reads_and_watches_are_made_again(problem: Callable[[], httpx.Response | Exception]) -> None:
    async def watch() -> None:
        transport, asked = scripted([problem(), httpx.Response(200, content=END)])
        async with connect(transport) as client:
            assert [event async for event in client.watch("x")] == []
        assert asked == ["GET"] * 2

    async def read() -> None:
        transport, _ = scripted([problem(), httpx.Response(200, json=LIST)])
        async with connect(transport) as client:
            assert (await client.list()).runs == []

    await asyncio.gather(watch(), read())


@pytest.mark.parametrize("problem", [httpx.ReadError("reset"), httpx.Response(503), httpx.ReadTimeout("late")])
async def test_a_run_is_never_started_twice(problem: httpx.Response | Exception) -> None:
    transport, asked = scripted([problem])
    async with connect(transport) as client:
        with pytest.raises(ServerError):
            await client.start()
    assert asked == ["POST"]


async def test_a_run_is_started_once_a_connection_can_be_made() -> None:
    transport, asked = scripted([httpx.ConnectError("refused"), httpx.Response(409, json={"error": "it was sent"})])
    async with connect(transport) as client:
        with pytest.raises(ServerError, match="it was sent"):
            await client.start()
    assert asked == ["POST"] * 2


async def test_a_client_without_patience_asks_once() -> None:
    transport, asked = scripted([httpx.ConnectError("refused")] * 2)
    async with connect(transport, patience_s=0.0) as client:
        with pytest.raises(ServerError, match="is it running"):
            await client.list()
        with pytest.raises(ServerError, match="is it running"):
            [event async for event in client.watch("x")]
    assert asked == ["GET"] * 2


async def test_a_server_of_something_else_is_recognized() -> None:
    transport, _ = scripted(
        [httpx.Response(404, text="<!DOCTYPE HTML>"), httpx.Response(404, json={"error": "no run"})]
    )
    async with connect(transport) as client:
        with pytest.raises(ServerError, match="answered 404: it is not a promptiter server"):
            await client.list()
        with pytest.raises(ServerError, match="answered 404: no run"):
            await client.list()


async def test_redirects_are_not_followed_and_named() -> None:
    """A proxy leads http to https, and a token must not be sent anywhere else."""
    transport, asked = scripted([httpx.Response(301, text="<h1>Moved</h1>", headers={"Location": "https://server/"})])
    async with connect(transport) as client:
        with pytest.raises(
            ServerError, match="answered 301: it leads to 'https://server/'; give the URL of the server"
        ):
            await client.list()
    assert asked == ["GET"]


PAGE = httpx.Response(200, text="<!doctype html><title>My shop</title>", headers={"Content-Type": "text/html"})


@pytest.mark.parametrize("answer", [PAGE, httpx.Response(200, json={"status": "fine"}), httpx.Response(200, json=[1])])
async def test_success_of_another_server_is_an_error_in_words(answer: httpx.Response, tmp_path: Path) -> None:
    asked: list[Callable[[AsyncClient], Awaitable[object]]] = [
        *(AsyncClient.describe, AsyncClient.start, AsyncClient.list, AsyncClient.list_apps),
        *(lambda client: client.get("x"), lambda client: client.cancel("x"), lambda client: client.delete("x")),
        *(lambda client: client.refine("x"), lambda client: client.list_refinements("x")),
        lambda client: client.export("x", tmp_path / "copy"),
        lambda client: anext(client.watch("x"), None),
    ]
    async with connect(httpx.MockTransport(lambda _: answer)) as client:
        for ask in asked:
            with pytest.raises(ServerError, match=r"answered with .*: it is not a promptiter server, or") as refused:
                await ask(client)
            assert refused.value.status == 200
    assert not (tmp_path / "copy").exists()
