"""A run is worked on once, by whom it waits for, and only as long as it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event as ThreadEvent

import pytest

from promptiter.manager import EngineApp
from promptiter.manager.app import PreparedRun
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.header import RunHeader
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import wait_until
from tests.manager.test_manager import GatedRun, expected_result, managing

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
        await asyncio.sleep(0.2)  # the sweep goes on
        assert sum(number for *_, number in manager.count_works()) == count_tasks(run_id) == 1
        await manager.close(timeout_s=0.01)
    async with managing(EngineApp(other.engine), store) as manager:
        assert await manager.wait(run_id) == await expected_result()


def count_tasks(run_id: str) -> int:
    return sum(task.get_name() == f"run {run_id}" for task in asyncio.all_tasks())
