"""Many watch one run, and the store is read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from promptiter.manager.news import LOOK_S
from promptiter.manager.run_feeds import KEPT, RunFeeds
from promptiter.runlog.events import Event
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.store import RunView
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_event, make_header
from tests.manager.test_manager import GatedRun, managing


class CountedView:
    """The view of a run whose reads are counted."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.header = view.header
        self.starts: list[int] = []

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        self.starts.append(start)
        async for event in self._view.read(start):
            yield event

    async def last(self) -> Event | None:
        return await self._view.last()


async def test_new_events_are_read_once_for_all_who_watch() -> None:
    store, is_over, due = MemoryStore(), False, asyncio.Event()
    await store.create(make_header("run"))

    async def is_in_progress(_: RunView) -> bool:
        return not is_over

    async def wait_for_news(_: str) -> None:
        await due.wait()
        due.clear()

    feeds = RunFeeds(is_in_progress, wait_for_news)
    async with store.open("run") as run:
        for number in range(3):
            await run.journal.append(make_event(number))
        view = CountedView(await store.view("run"))
        watching = [asyncio.create_task(collect(feeds, view, after)) for after in (-1, -1, 1, 2, 100)]
        await asyncio.sleep(0.01)
        before = len(view.starts)
        for number in range(3, 3 + KEPT):
            await run.journal.append(make_event(number))
        due.set()
        await asyncio.sleep(0.01)
        assert view.starts[before:] == [3], "one reads for all five"
        is_over = True
        due.set()
        end = 3 + KEPT
        assert await asyncio.gather(*watching) == [
            [*range(end)],
            [*range(end)],
            [*range(2, end)],
            [*range(3, end)],
            [],
        ]


async def test_who_is_far_behind_reads_the_store() -> None:
    store, due = MemoryStore(), asyncio.Event()
    is_over = False
    await store.create(make_header("run"))

    async def is_in_progress(_: RunView) -> bool:
        return not is_over

    async def wait_for_news(_: str) -> None:
        await due.wait()
        due.clear()

    feeds = RunFeeds(is_in_progress, wait_for_news)
    async with store.open("run") as run:
        await run.journal.append(make_event(0))
        view = await store.view("run")
        async with aclosing(feeds.watch(view, after=-1)) as slow:
            assert (await anext(slow)).seq == 0
            count = 3 * KEPT
            for number in range(1, count):
                await run.journal.append(make_event(number))
            is_over = True
            due.set()
            assert [event.seq async for event in slow] == [*range(1, count)]


async def test_an_error_of_the_store_reaches_all_who_watch() -> None:
    store = MemoryStore()
    await store.create(make_header("run"))

    async def fail(_: RunView) -> bool:
        raise OSError("the database is gone")

    async def wait_for_news(_: str) -> None:
        raise AssertionError("there is nothing to wait for")

    feeds = RunFeeds(fail, wait_for_news)
    view = await store.view("run")
    found = await asyncio.gather(*(collect(feeds, view, -1) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["the database is gone"] * 3


async def test_nothing_reads_when_nobody_watches() -> None:
    gated = GatedRun(free=3)
    async with managing(gated.engine) as manager:
        run = await manager.start(gated.request)
        async with aclosing(manager.watch(run.run_id)) as events:
            await anext(events)
            assert count_readers() == 1
        await asyncio.sleep(0)
        assert count_readers() == 0
        gated.gate.set()
        await manager.wait(run.run_id)


@pytest.mark.slow
async def test_runs_of_another_manager_are_watched_with_few_looks() -> None:
    """Fifty watch a run of another process for a while: the store is asked as if there were one."""
    store, gated = MemoryStore(), GatedRun(free=3)
    async with managing(gated.engine, store) as working, managing(SmallRun().engine, store) as other:
        run = await working.start(gated.request)
        await gated.waits.wait()
        looks = 0
        [managed] = other._apps.values()
        look = managed.is_in_progress

        async def count_looks(view: RunView) -> bool:
            nonlocal looks
            looks += 1
            return await look(view)

        managed.feeds._is_in_progress = count_looks
        watching = [asyncio.create_task(collect_ids(other, run.run_id)) for _ in range(50)]
        await asyncio.sleep(2.2 * LOOK_S)
        assert looks <= 4
        gated.gate.set()
        [first, *others] = await asyncio.gather(*watching)
        assert all(each == first == [*range(len(first))] for each in others)


def count_readers() -> int:
    return sum(task.get_name().startswith("feed of") and not task.cancelling() for task in asyncio.all_tasks())


async def collect(feeds: RunFeeds, view: object, after: int) -> list[int]:
    return [event.seq async for event in feeds.watch(view, after=after)]  # type: ignore[arg-type]


async def collect_ids(manager: object, run_id: str) -> list[int]:
    return [event.seq async for event in manager.watch(run_id)]  # type: ignore[attr-defined]
