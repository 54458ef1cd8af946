from __future__ import annotations

import asyncio
import threading

import pytest

from promptiter.search.task_portal import TaskPortal, ThreadEnded


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> int:
    raise LookupError("no such thing")


async def test_calls_of_the_thread_are_made_in_the_task_that_serves_it() -> None:
    portal, tasks = TaskPortal(), []

    async def remember() -> None:
        tasks.append((asyncio.current_task(), threading.current_thread()))

    def work() -> int:
        assert threading.current_thread() is not main
        portal.call(remember)
        return portal.call(lambda: double(3)) + portal.call(lambda: double(4))

    main = threading.current_thread()
    assert await portal.serve(work) == 14
    assert tasks == [(asyncio.current_task(), main)]


async def test_an_error_of_a_call_is_raised_by_serve_and_ends_the_thread() -> None:
    portal, ends = TaskPortal(), []

    def work() -> None:
        try:
            portal.call(fail)
        except Exception:  # noqa: BLE001 - as a library does
            ends.append("caught")
        except ThreadEnded:
            ends.append("ended")
            raise

    with pytest.raises(LookupError, match="no such thing"):
        await portal.serve(work)
    assert ends == ["ended"]


async def test_a_thread_that_goes_on_after_an_error_ends_at_its_next_call() -> None:
    portal, made = TaskPortal(), []

    def work() -> None:
        for number in range(5):
            try:
                portal.call(fail)
            except ThreadEnded:
                made.append(number)

    with pytest.raises(LookupError):
        await portal.serve(work)
    assert made == [0, 1, 2, 3, 4]


async def test_an_error_of_the_thread_is_raised() -> None:
    portal = TaskPortal()

    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await portal.serve(work)


async def test_a_cancellation_ends_the_thread() -> None:
    portal, ended = TaskPortal(), threading.Event()

    async def wait() -> None:
        await asyncio.sleep(60)

    def work() -> None:
        try:
            portal.call(wait)
        finally:
            ended.set()

    task = asyncio.create_task(portal.serve(work))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
