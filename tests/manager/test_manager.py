"""A manager starts runs in the background, and loses none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from promptiter.engine.engine import Engine
from promptiter.errors import RequestError, RunEndedError, RunLockedError, SetupError, UnknownAppError, UnknownRunError
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.manager import App, Manager
from promptiter.runlog.fold import fold
from promptiter.runlog.results import RunResult
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunQuery
from promptiter.runs.store import Store
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_contract import make_killing_store
from promptiter.testing.store_hooks import EXPIRED_S, Clock, Killed, expect_error

pytestmark = pytest.mark.slow


class GatedRun(SmallRun):
    """A run whose model answers `free` calls, and then waits until the gate is opened."""

    def __init__(self, *, free: int = 0) -> None:
        super().__init__()
        self.free = free
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()
        self.engine.evaluator.gateway.add_model("scripted", self.ask)

    async def ask(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
        if self.asked >= self.free and not self.gate.is_set():
            self.waits.set()
            await self.gate.wait()
        return self._answer(request)


@asynccontextmanager
async def managing(engine: Engine | App, store: Store | None = None, **options: object) -> AsyncIterator[Manager]:
    async with asyncio.timeout(30), Manager(engine, store=store, sweep_s=0.05, **options) as manager:  # type: ignore[arg-type]
        yield manager


async def expected_result() -> RunResult:
    small = SmallRun()
    return await small.engine.run(small.request)


@pytest.fixture(params=["memory", "folder"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    memory = MemoryStore()
    return (lambda: memory) if request.param == "memory" else (lambda: FolderStore(tmp_path))


async def test_a_run_is_queued_runs_and_succeeds(make_store: Callable[[], Store]) -> None:
    small = SmallRun()
    async with managing(small.engine, make_store()) as manager:
        queued = await manager.start(small.request)
        assert (queued.status, queued.rounds, queued.targets) == ("queued", (), ("clerk#instruction",))
        result = await manager.wait(queued.run_id)
        assert result == await expected_result()
        assert [each.status for each in (await manager.list()).runs] == ["succeeded"]


async def test_events_are_watched_as_they_happen_and_from_any_number_on() -> None:
    gated = GatedRun(free=3)
    async with managing(gated.engine) as manager:
        run_id = (await manager.start(gated.request)).run_id
        seen = []
        async for event in manager.watch(run_id):
            seen.append(event)
            if event.type == "round_started":
                assert (await manager.get(run_id)).status == "running"
                gated.gate.set()
        assert fold(seen) == await expected_result()
        assert [event async for event in manager.watch(run_id, after=4)] == seen[5:]
        assert [event.seq for event in seen] == list(range(len(seen)))


async def test_a_run_in_progress_shows_its_rounds_so_far() -> None:
    gated = GatedRun(free=6)
    async with managing(gated.engine) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        first = await manager.get(run_id)
        assert (first.status, len(first.rounds)) == ("running", 2)
        gated.gate.set()
        await manager.wait(run_id)
        assert len(first.rounds) == 2
        assert first.rounds[0] == (await manager.get(run_id)).rounds[0]


async def test_runs_beyond_the_limit_wait_for_their_turn() -> None:
    gated = GatedRun()
    async with managing(gated.engine, max_runs=2) as manager:
        ids = [(await manager.start(gated.request)).run_id for _ in range(3)]
        await gated.waits.wait()
        await asyncio.sleep(0.2)  # several sweeps: they must not start the third
        assert [(await manager.get(run_id)).status for run_id in ids] == ["running", "running", "queued"]
        gated.gate.set()
        results = [await manager.wait(run_id) for run_id in ids]
        assert results == [await expected_result()] * 3


async def test_a_cancelled_run_keeps_its_rounds_and_can_be_resumed(make_store: Callable[[], Store]) -> None:
    gated = GatedRun(free=6)
    async with managing(gated.engine, make_store()) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        cancelled = await manager.cancel(run_id)
        assert (cancelled.status, len(cancelled.rounds)) == ("cancelled", 2)
        await asyncio.sleep(0.2)
        assert (await manager.get(run_id)).status == "cancelled", "a sweep must not resume it"
        gated.gate.set()
        await manager.resume(run_id)
        assert await manager.wait(run_id) == await expected_result()
        with pytest.raises(RunEndedError):
            await manager.cancel(run_id)
        with pytest.raises(RunEndedError):
            await manager.resume(run_id)


async def test_a_queued_run_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "promptiter.manager")
    gated = GatedRun()
    async with managing(gated.engine, max_runs=1) as manager:
        first, second = [(await manager.start(gated.request)).run_id for _ in range(2)]
        await gated.waits.wait()
        assert (await manager.cancel(second)).status == "cancelled"
        gated.gate.set()
        assert (await manager.wait(first)).status == "succeeded"
        assert (await manager.wait(second)).status == "cancelled"
        assert [each.status for each in (await manager.list()).runs] == ["cancelled", "succeeded"]
        await manager.delete(second)
    assert [each for each in caplog.messages if second in each] == [
        f"default: run {second} cancelled",
        f"default: run {second} deleted",
    ]


async def test_a_run_is_cancelled_by_another_manager(make_store: Callable[[], Store]) -> None:
    gated, other = GatedRun(free=6), SmallRun()
    async with managing(gated.engine, make_store()) as manager, managing(other.engine, make_store()) as elsewhere:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        await elsewhere.cancel(run_id)
        for each in (manager, elsewhere):
            result = await each.wait(run_id)
            assert (result.status, len(result.rounds)) == ("cancelled", 2)
        assert other.asked == 0


@pytest.mark.parametrize("on_lost", ["resume", "mark"])
async def test_a_closed_manager_leaves_runs_that_another_one_finishes(
    make_store: Callable[[], Store], on_lost: str
) -> None:
    gated, other = GatedRun(free=4), SmallRun()
    async with managing(gated.engine, make_store(), max_runs=1) as manager:
        ids = [(await manager.start(gated.request)).run_id for _ in range(2)]
        await gated.waits.wait()
        closing = asyncio.create_task(manager.close())
        await asyncio.sleep(0)
        gated.gate.set()
        await closing
        with pytest.raises(SetupError, match="closed"):
            await manager.start(gated.request)
    async with managing(other.engine, make_store(), on_lost=on_lost) as manager:
        assert [await manager.wait(run_id) for run_id in ids] == [await expected_result()] * 2
        assert 0 < other.asked < 2 * _count_calls(), "logged answers are not asked for again"
        assert gated.asked + other.asked == 2 * _count_calls()


async def test_a_manager_that_cannot_wait_any_longer_hands_over_too() -> None:
    store, gated, other = MemoryStore(), GatedRun(free=4), SmallRun()
    async with managing(gated.engine, store) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        await manager.close(timeout_s=0.01)
    async with managing(other.engine, store) as manager:
        assert await manager.wait(run_id) == await expected_result()


@pytest.mark.parametrize(("on_lost", "status"), [("mark", "failed"), ("resume", "succeeded")])
async def test_a_run_whose_process_died_is_resumed_or_marked(on_lost: str, status: str) -> None:
    clock = Clock()
    killed, small, store = SmallRun(), SmallRun(), MemoryStore(now=clock)
    run = await StoredRun.begin(
        make_killing_store(store, 9, is_written=True), killed.engine, killed.request, app="default"
    )
    with expect_error(Killed):
        await run.run()
    async with store.open(run.run_id):  # its process is gone, and does not leave it
        clock.time += EXPIRED_S
        async with managing(small.engine, store, on_lost=on_lost) as manager:
            result = await manager.wait(run.run_id)
            assert result.status == status
            if on_lost == "mark":
                assert result.error == "the process that worked on it ended; resume it"
                assert small.asked == 0
                await manager.resume(run.run_id)
            assert await manager.wait(run.run_id) == await expected_result()
            assert killed.asked + small.asked == _count_calls()


async def test_an_unknown_run_or_app_and_a_bad_request_are_refused() -> None:
    small = SmallRun()
    async with asyncio.timeout(30), Manager({"desk": small.engine, "shop": small.engine}) as manager:
        with pytest.raises(SetupError, match="desk, shop; name one"):
            await manager.start(small.request)
        with pytest.raises(UnknownAppError, match="did you mean 'desk'"):
            await manager.start(small.request, app="desc")
        for call in (manager.get, manager.cancel, manager.delete, manager.resume, manager.wait):
            with pytest.raises(UnknownRunError):
                await call("gone", app="desk")
        run_id = (await manager.start(small.request, app="desk")).run_id
        with pytest.raises(UnknownRunError):
            await manager.get(run_id, app="shop")
        with pytest.raises(RequestError, match="there are no cases"):
            await manager.start({}, app="desk")
        await manager.wait(run_id, app="desk")


async def test_a_finished_run_can_be_deleted_and_one_in_progress_cannot() -> None:
    gated = GatedRun()
    async with managing(gated.engine) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        with pytest.raises(RunLockedError, match="cancel it first"):
            await manager.delete(run_id)
        gated.gate.set()
        await manager.wait(run_id)
        await manager.delete(run_id)
        assert (await manager.list(RunQuery())).runs == ()


async def test_no_later_run_has_the_id_of_a_deleted_one() -> None:
    small = SmallRun()
    async with managing(small.engine) as manager:
        ids = []
        for _ in range(2):
            ids.append((await manager.start(small.request)).run_id)
            await manager.wait(ids[-1])
            await manager.delete(ids[-1])

    assert len(set(ids)) == 2


def _count_calls() -> int:
    small = SmallRun()
    small.engine.run_sync(small.request)
    return small.asked


def test_a_manager_in_a_second_event_loop_is_refused_in_words() -> None:
    small = SmallRun()
    manager = Manager(small.engine)
    run_id = asyncio.run(manager.start(small.request)).run_id
    for call in (manager.wait, manager.get, manager.resume):
        with pytest.raises(SetupError, match="works in another event loop"):
            asyncio.run(call(run_id))


async def test_a_run_that_is_resumed_is_not_in_its_old_state() -> None:
    gated = GatedRun(free=3)
    async with managing(gated.engine, max_runs=1) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        assert (await manager.cancel(run_id)).status == "cancelled"
        assert (await manager.resume(run_id)).status in ("queued", "running")
        gated.gate.set()
        assert (await manager.wait(run_id)).status == "succeeded"
