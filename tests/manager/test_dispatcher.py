"""A run is worked on once, by whom it waits for, and only as long as it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event as ThreadEvent

import pytest

from promptiter.engine.interrupts import Interrupt
from promptiter.errors import UnknownRunError
from promptiter.manager import EngineApp, Manager
from promptiter.manager.app import PreparedRun
from promptiter.runlog.results import RunResult
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.header import RunHeader
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunQuery
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import wait_until
from tests.manager.test_manager import GatedRun, _count_calls, expected_result, managing

pytestmark = pytest.mark.slow


class SlowApp(EngineApp):
    """An app that takes until `go` to build a run again for the first time."""

    def __init__(self, gated: GatedRun) -> None:
        super().__init__(gated.engine, "default")
        self.go = ThreadEvent()
        self.rebuilt = 0

    def rebuild(self, header: RunHeader) -> PreparedRun:
        self.rebuilt += 1
        if self.rebuilt == 1:
            assert self.go.wait(30)
        return super().rebuild(header)


@pytest.fixture(params=["memory", "folder", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    memory = MemoryStore()
    stores: dict[str, Callable[[], Store]] = {
        "memory": lambda: memory,
        "folder": lambda: FolderStore(tmp_path),
        "sqlite": lambda: SqlStore(f"sqlite:///{tmp_path}/runs.db"),
    }
    return stores[request.param]


async def test_a_run_that_is_resumed_twice_at_once_is_worked_on_once(make_store: Callable[[], Store]) -> None:
    gated, other = GatedRun(free=4), SmallRun()
    async with managing(gated.engine, make_store()) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        await manager.cancel(run_id)
        gated.waits.clear()
        await asyncio.gather(*(manager.resume(run_id) for _ in range(3)))
        await gated.waits.wait()
        await asyncio.sleep(0.1)  # several sweeps
        assert sum(number for *_, number in manager.count_works()) == count_tasks(run_id) == 1
        assert (await manager.get(run_id)).status == "running"
        await manager.close(timeout_s=0.01)
    async with managing(other.engine, make_store()) as manager:
        assert await manager.wait(run_id) == await expected_result()


async def test_a_run_that_is_resumed_while_a_sweep_takes_it_is_worked_on_once() -> None:
    store, gated, other = MemoryStore(), GatedRun(free=4), SmallRun()
    app = SlowApp(gated)
    run_id = (await StoredRun.begin(store.for_app("default"), gated.engine, gated.request, app="default")).run_id
    async with managing(app, store) as manager:
        await wait_until(lambda: app.rebuilt == 1)
        await manager.resume(run_id)
        await gated.waits.wait()
        app.go.set()
        await asyncio.sleep(0.2)  # the sweep continues
        assert sum(number for *_, number in manager.count_works()) == count_tasks(run_id) == 1
        await manager.close(timeout_s=0.01)
    async with managing(EngineApp(other.engine), store) as manager:
        assert await manager.wait(run_id) == await expected_result()


async def test_a_run_that_was_stopped_elsewhere_while_it_waited_here_is_left_alone(
    make_store: Callable[[], Store],
) -> None:
    gated, elsewhere, store = GatedRun(), GatedRun(free=4), make_store()
    async with managing(gated.engine, make_store(), max_runs=1) as manager:
        first, second, third = [(await manager.start(gated.request)).run_id for _ in range(3)]
        await gated.waits.wait()
        stopped = await stop_elsewhere(store, second, elsewhere)
        assert (stopped.status, stopped.stop_reason) == ("succeeded", "user_stop")
        await store.request_stop(third, cancel=True)
        assert (await manager.wait(second)).stop_reason == "user_stop", "its place in the queue does not matter"
        assert (await manager.wait(third)).status == "cancelled"
        gated.gate.set()
        await manager.wait(first)
        await wait_until(lambda: not any(number for *_, number in manager.count_works()))
        assert gated.asked == _count_calls()
        assert await manager.get(second) == stopped
        assert (await manager.get(third)).status == "cancelled"
        for run_id in (second, third):
            await manager.resume(run_id)
            assert await manager.wait(run_id) == await expected_result()


async def test_a_resumed_run_that_waits_is_queued_for_every_manager(make_store: Callable[[], Store]) -> None:
    gated, other = GatedRun(free=4), SmallRun()
    async with managing(gated.engine, make_store(), max_runs=1) as manager:
        resumed = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        await manager.cancel(resumed)
        gated.waits.clear()
        first = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        assert (await manager.resume(resumed)).status == "queued"
        assert (await manager.get(resumed)).status == "queued"
        assert [each.run_id for each in (await manager.list(RunQuery(statuses=("queued",)))).runs] == [resumed]
        assert await manager.prune(keep_last=0) == ()
        await manager.close(timeout_s=0.01)
    async with managing(other.engine, make_store()) as manager:
        assert [await manager.wait(run_id) for run_id in (first, resumed)] == [await expected_result()] * 2


async def test_waiting_for_a_run_ends_when_it_is_deleted(make_store: Callable[[], Store]) -> None:
    store, small = make_store(), SmallRun()
    async with asyncio.timeout(30), Manager(small.engine, store=store, sweep_s=60) as manager:
        await manager.list()
        await asyncio.sleep(0.1)  # the first sweep
        run_id = (await StoredRun.begin(store, small.engine, small.request, app="default")).run_id

        async def watch() -> list[int]:
            return [event.seq async for event in manager.watch(run_id)]

        watching, waiting = asyncio.create_task(watch()), asyncio.create_task(manager.wait(run_id))
        await asyncio.sleep(0.1)
        assert not watching.done()
        await manager.delete(run_id)
        assert await watching == []
        with pytest.raises(UnknownRunError):
            await waiting


async def stop_elsewhere(store: Store, run_id: str, gated: GatedRun) -> RunResult:
    """Work on a run as another process does, until the user stops it."""
    run, interrupt = await StoredRun.resume(store, run_id, gated.engine, gated.request), Interrupt()
    working = asyncio.create_task(run.run(interrupt=interrupt))
    await gated.waits.wait()
    interrupt.stop("the user stopped it")
    gated.gate.set()
    return await working


def count_tasks(run_id: str) -> int:
    return sum(task.get_name() == f"run {run_id}" for task in asyncio.all_tasks())
