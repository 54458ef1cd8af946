"""What the tests of a store share: how a store is opened, and what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from promptiter.llm.cache.keys import CacheKey
from promptiter.llm.ledger import LedgerEntry, Spending
from promptiter.llm.messages import ModelReply, Role
from promptiter.runlog.events import Event
from promptiter.runlog.journal import EventReader
from promptiter.runlog.results import RunResult
from promptiter.runs.header import RunHeader
from promptiter.runs.store import OpenRun, Store
from promptiter.runs.stored_run import new_header
from promptiter.testing.small_run import SmallRun
from traces import ExecutionTrace, Step, Usage
from traces.model import Json, Snapshot

P = ParamSpec("P")

EXPIRED_S = 86_400.0
"""Longer than any lease."""

LARGE = 5_000_000
"""Characters of the largest text that is stored."""

STRANGE_TEXTS = (
    "",
    "é ✓ 漢 🙂",
    "half a pair: \ud83d",
    "line\nbreak\r\u2028\x00 end",
    "\"quoted\" \\ 'text' % ?",
    "x" * 70_000,
)
USAGE = Usage(input_tokens=100, output_tokens=10, cost_usd=0.1)
REPLY = ModelReply(text="yes", usage=USAGE)


class Clock:
    """The time that leases are measured in. Tests move it."""

    def __init__(self) -> None:
        self.time = time.time()

    def __call__(self) -> float:
        return self.time


def in_event_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Turn a coroutine into a test that runs without a plugin."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def call() -> None:
            await test(*args, **kwargs)

        asyncio.run(call())

    return run


class StoreHooks:
    """How the tests open a store. `make_store` is required; the other hooks are for stores that need them."""

    def make_store(self, place: Path, now: Callable[[], float]) -> Store:
        """Connect to the store at a place, an empty folder at first. `now` is the clock of its leases.

        Each call is another client of the same store, as of another process.
        """
        raise NotImplementedError

    def suspend_holder(self, place: Path, run_id: str) -> None:
        """Make the store believe that the holder of a run was suspended: it renews its lease no more.

        The clock has been moved past the end of the lease. Most stores need nothing else.
        """

    def tear_next_event(self, place: Path, run_id: str) -> None:
        """Leave what a crash in the middle of an append leaves. Nothing, for stores whose appends are atomic."""

    @asynccontextmanager
    async def open_new_run(self, place: Path, clock: Clock | None = None) -> AsyncIterator[OpenRun]:
        store = self.make_store(place, clock or Clock())
        await store.create(make_header("a"))
        async with store.open("a") as run:
            yield run

    async def check_ledger(self, place: Path, *, calls: int, lost: int) -> None:
        async with self.make_store(place, Clock()).open("a") as run:
            total = (await run.answers.ledger()).total
            assert (total.calls, total.lost_calls) == (calls, lost)


@contextmanager
def expect_error(kind: type[BaseException]) -> Iterator[None]:
    """Check that an error is raised."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


async def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for something that a store may do in the background."""
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - a store has no event to wait for
            await asyncio.sleep(0.01)


class Killed(BaseException):
    """The process has died."""


def make_header(run_id: str) -> RunHeader:
    run = SmallRun()
    header = new_header(run.engine, run.engine.check(run.request), now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    return header.model_copy(update={"run_id": run_id})


def make_result() -> RunResult:
    run = SmallRun()
    return run.engine.run_sync(run.request)


def make_event(seq: int, value: Json = "x", *, kind: str = "note") -> Event:
    return Event(seq=seq, run_id="a", round=1, phase="train", type=kind, data={"value": value})


def make_key(number: int = 0) -> CacheKey:
    return CacheKey(role="agent", request_digest=f"request {number}", case_id="c ü", step_id="clerk")


def make_receipt(role: Role = "agent") -> LedgerEntry:
    return LedgerEntry(role=role, model="m", node_id="clerk", spent=Spending.of_call(USAGE, seconds=0.25))


LOST = LedgerEntry(role="agent", model="m", node_id="clerk", spent=Spending.of_lost_call(tokens=500, usd=0.25))
"""What a call of the tests counts as if it is lost."""


def make_trace(text: str, *, start_ns: int | None = None) -> ExecutionTrace:
    end_ns = None if start_ns is None else start_ns + 1
    step = Step(id="clerk", node_id="clerk", kind="llm", output=Snapshot(text), start_ns=start_ns, end_ns=end_ns)
    return ExecutionTrace(id="trace", steps=(step,))


async def ask(run: OpenRun, number: int) -> None:
    """Make a call as the gateway does."""
    async with run.answers.asking(make_key(number), lost=LOST):
        pass
    await run.answers.put(make_key(number), REPLY, paid=make_receipt())


async def list_events(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def read_blocking(reader: EventReader, start: int = 0) -> list[Event]:
    return await asyncio.to_thread(lambda: list(reader.read(start)))
