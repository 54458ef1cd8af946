from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from promptiter.concurrency import HomeLoop, Slots, call_any, run_in_thread


async def test_slots_are_given_in_the_order_of_arrival() -> None:
    slots, order = Slots(1), []

    async def hold(number: int) -> None:
        async with slots:
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*map(hold, range(20)))
    assert order == list(range(20))


def test_slots_limit_the_event_loops_of_all_threads_together() -> None:
    slots, holders, most = Slots(3), [0], [0]

    async def hold() -> None:
        async with slots:
            holders.append(1)
            most.append(sum(holders))
            await asyncio.sleep(0.0001)
            holders.append(-1)

    async def hold_many() -> None:
        await asyncio.gather(*(hold() for _ in range(50)))

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(asyncio.run, hold_many()) for _ in range(6)]:
            done.result(timeout=60)
    assert max(most) <= 3
    assert sum(holders) == 0


async def test_a_waiter_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    slots = Slots(1)

    async def hold() -> None:
        async with slots:
            await asyncio.sleep(0)

    async with slots:
        waiters = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        await asyncio.sleep(0)
    waiters[1].cancel()  # after it was given the slot, before it knows
    await asyncio.wait_for(waiters[2], timeout=10)
    assert [waiter.cancelled() for waiter in waiters] == [True, True, False]
    await asyncio.wait_for(hold(), timeout=10)


def test_the_slot_of_an_event_loop_that_ended_is_given_to_another() -> None:
    slots = Slots(1)

    async def leave_while_waiting() -> None:
        waiting = asyncio.ensure_future(slots.__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()  # asyncio.run cancels it

    async def hold() -> None:
        async with slots:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, leave_while_waiting()).result(timeout=60)
        async with slots:
            pass

    asyncio.run(asyncio.wait_for(hold(), timeout=60))


async def test_calls_of_other_threads_are_made_on_the_home_loop_while_it_runs() -> None:
    home = HomeLoop()
    home.bind()

    async def find_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def ask() -> asyncio.AbstractEventLoop:
        return await home.run(find_loop())

    assert await asyncio.to_thread(asyncio.run, ask()) is asyncio.get_running_loop()
    other = HomeLoop()
    first = await asyncio.to_thread(lambda: asyncio.run(other.run(find_loop())))
    assert first.is_closed()
    assert await other.run(find_loop()) is asyncio.get_running_loop()


async def test_blocking_work_is_done_while_the_threads_of_asyncio_hang() -> None:
    loop, release = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hanging = loop.run_in_executor(None, release.wait)
    assert await run_in_thread(lambda: 7) == 7
    with pytest.raises(SystemExit):
        await run_in_thread(lambda: sys.exit(3))
    release.set()
    await hanging


async def test_blocking_work_ends_before_its_caller_is_cancelled() -> None:
    release, done = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(30)
        done.set()

    caller = asyncio.create_task(run_in_thread(work))
    for _ in range(2):
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


class Doubles:
    async def __call__(self, number: int) -> int:
        return 2 * number


async def test_call_any_awaits_functions_and_objects_however_they_are_async() -> None:
    double = Doubles()
    assert await call_any(double, 1) == 2
    assert await call_any(double.__call__, number=2) == 4
    assert await call_any(partial(double), number=3) == 6
    assert await call_any(lambda function: threading.current_thread().name + function, function="!") == (
        "promptiter-call!"
    )


async def test_stop_iteration_of_a_function_in_a_thread_is_raised_as_another_error() -> None:
    with pytest.raises(RuntimeError, match="the function raised StopIteration"):
        await call_any(lambda: next(iter(())))
