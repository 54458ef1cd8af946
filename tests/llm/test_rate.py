from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.llm.rate import RateLimit

T = TypeVar("T")


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: InstantLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and no timer is set")
        self._loop.now += timeout
        return super().select(0)


def in_instant_time(work: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=InstantLoop) as runner:
        return runner.run(work)


def now() -> float:
    return asyncio.get_running_loop().time()


def limit(
    requests: int | None = None, tokens: int | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> RateLimit:
    return RateLimit(requests_per_minute=requests, tokens_per_minute=tokens, clock=now, sleep=sleep)


async def starts_of(
    rate: RateLimit, arrivals: list[tuple[int, int]], *, settle_first: tuple[int, int] | None = None
) -> list[tuple[int, float]]:
    """The number and the time of each start, in order of starting, for (time, tokens) of each arrival.

    `settle_first` is when the first call is settled, and with how many tokens.
    """
    started: list[tuple[int, float]] = []

    async def call(number: int, tokens: int) -> None:
        grant = await rate.acquire(tokens)
        started.append((number, now()))
        if settle_first is not None and number == 0:
            asyncio.get_running_loop().call_at(settle_first[0], rate.settle, grant, settle_first[1])

    async with asyncio.TaskGroup() as group:
        for number, (at, tokens) in enumerate(arrivals):
            await asyncio.sleep(at - now())
            group.create_task(call(number, tokens))
            await asyncio.sleep(0)
    return started


def earliest_starts(arrivals: list[tuple[int, int]], requests: int, tokens: int) -> list[float]:
    """The oracle: each call starts, after the one before it, at the first moment at which its window has room."""
    starts: list[tuple[float, int]] = []
    for at, wanted in arrivals:
        counted = min(wanted, tokens)
        ready = max([float(at), *(start for start, _ in starts)])
        for moment in sorted({ready, *(start + 60 for start, _ in starts if start + 60 > ready)}):
            inside = [used for start, used in starts if start > moment - 60]
            if len(inside) < requests and sum(inside) + counted <= tokens:
                starts.append((moment, counted))
                break
    return [start for start, _ in starts]


arrivals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=25).map(
    lambda gaps: [(sum(gap for gap, _ in gaps[: index + 1]), tokens) for index, (_, tokens) in enumerate(gaps)]
)


@pytest.mark.slow
@given(arrivals, st.integers(1, 5), st.integers(20, 120))
def test_no_minute_has_more_calls_than_the_limit_and_no_call_waits_longer(
    many: list[tuple[int, int]], requests: int, tokens: int
) -> None:
    async def run() -> list[tuple[int, float]]:
        return await starts_of(limit(requests, tokens), many)

    started = in_instant_time(run())
    assert [number for number, _ in started] == list(range(len(many)))
    assert [at for _, at in started] == earliest_starts(many, requests, tokens)
    for _, opening in started:
        inside = [min(many[number][1], tokens) for number, at in started if opening <= at < opening + 60]
        assert len(inside) <= requests
        assert sum(inside) <= tokens


def test_without_limits_no_call_waits() -> None:
    assert in_instant_time(starts_of(RateLimit(), [(0, 10**9)] * 5)) == [(number, 0) for number in range(5)]


def test_a_call_larger_than_the_limit_has_a_minute_to_itself() -> None:
    async def run() -> list[tuple[int, float]]:
        return await starts_of(limit(tokens=100), [(0, 1), (0, 5000), (0, 1)])

    assert in_instant_time(run()) == [(0, 0), (1, 60), (2, 120)]


def test_no_call_starts_during_a_pause_and_the_longest_pause_counts() -> None:
    async def run() -> list[tuple[int, float]]:
        rate = limit(requests=1)
        asyncio.get_running_loop().call_later(30, rate.pause, 50)
        asyncio.get_running_loop().call_later(31, rate.pause, 1)
        return await starts_of(rate, [(0, 1), (10, 1), (79, 1)])

    assert in_instant_time(run()) == [(0, 0), (1, 80), (2, 140)]


def test_returned_tokens_let_the_next_call_start_at_once() -> None:
    async def run() -> list[tuple[int, float]]:
        return await starts_of(limit(tokens=100), [(0, 90), (1, 80), (2, 1)], settle_first=(7, 20))

    assert in_instant_time(run()) == [(0, 0), (1, 7), (2, 60)]


def test_a_call_that_used_more_than_its_estimate_counts_with_what_it_used() -> None:
    async def run() -> list[tuple[int, float]]:
        return await starts_of(limit(tokens=100), [(0, 10), (2, 50)], settle_first=(1, 60))

    assert in_instant_time(run()) == [(0, 0), (1, 60)]


def test_a_call_that_took_longer_than_a_minute_returns_nothing() -> None:
    async def run() -> list[tuple[int, float]]:
        return await starts_of(limit(tokens=100), [(0, 60), (61, 60), (66, 60)], settle_first=(65, 0))

    assert in_instant_time(run()) == [(0, 0), (1, 61), (2, 121)]


def test_calls_of_the_same_estimate_are_settled_each_for_itself() -> None:
    async def run() -> list[float]:
        rate = limit(tokens=100)
        await rate.acquire(50)
        await asyncio.sleep(30)
        rate.settle(await rate.acquire(50), 10)
        times = []
        for tokens in (40, 50):
            await rate.acquire(tokens)
            times.append(now())
        return times

    assert in_instant_time(run()) == [30, 60]


def test_calls_that_are_never_settled_are_forgotten() -> None:
    async def run() -> int:
        rate = limit(requests=1)
        await starts_of(rate, [(60 * number, number) for number in range(200)])
        return len(rate._window)

    assert in_instant_time(run()) == 1


def test_a_cancelled_waiter_leaves_its_place_to_the_next() -> None:
    async def run() -> list[float]:
        rate = limit(requests=1)
        await rate.acquire(1)
        waiters = [asyncio.ensure_future(rate.acquire(1)) for _ in range(4)]
        await asyncio.sleep(5)
        waiters[0].cancel()  # it sleeps
        waiters[2].cancel()  # it waits in the queue
        await waiters[1]
        second = now()
        await waiters[3]
        return [second, now()]

    assert in_instant_time(run()) == [60, 120]


def test_an_error_of_the_sleep_is_raised() -> None:
    async def broken(_: float) -> None:
        raise OSError("no clock")

    async def run() -> None:
        rate = limit(requests=1, sleep=broken)
        await rate.acquire(1)
        await rate.acquire(1)

    with pytest.raises(OSError, match="no clock"):
        in_instant_time(run())


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_zero_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match=f"{name} is 0; give 1 or more"):
        RateLimit(**{name: 0})  # type: ignore[arg-type]
