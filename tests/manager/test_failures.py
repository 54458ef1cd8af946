"""Failures around runs: none is lost silently, none is tried again for ever, and outages end no run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from promptiter.errors import ManagerClosedError, RunEndedError, RunLockedError, SetupError, StoreError
from promptiter.manager import EngineApp, Manager
from promptiter.manager.app import PreparedRun
from promptiter.manager.dispatcher import MAX_WAITING
from promptiter.manager.store_outage import WAITS, StoreOutage
from promptiter.runlog.events import Event
from promptiter.runs.header import RunHeader
from promptiter.runs.memory_store import MemoryRun, MemoryStore
from promptiter.runs.run_list import RunPage, RunQuery
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_contract import make_killing_store
from promptiter.testing.store_hooks import Killed, expect_error, wait_until
from tests.manager.test_manager import GatedRun, _count_calls, expected_result, managing

pytestmark = pytest.mark.slow

OUTAGE = StoreError("the database cannot be used: it is down")


class HookedStore(MemoryStore):
    """A store that calls a hook before each operation, with its name, and before each event, with its type."""

    def __init__(self, hook: Callable[[str, Event | None], Awaitable[None]]) -> None:
        super().__init__()
        self._hook = hook

    async def list_runs(self, query: RunQuery) -> RunPage:
        await self._hook("list", None)
        return await super().list_runs(query)

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator[MemoryRun]:
        await self._hook("open", None)
        async with super().open(run_id) as run:
            write = run.journal.append

            async def append(event: Event) -> None:
                await self._hook(event.type, event)
                await write(event)

            run.journal.append = append  # type: ignore[method-assign]
            yield run


class CancellingStore(HookedStore):
    """A store in which a run is cancelled right before one of its events is written."""

    def __init__(self, seq: int) -> None:
        super().__init__(self.cancel)
        self._seq = seq

    async def cancel(self, _: str, event: Event | None) -> None:
        if event is not None and event.seq == self._seq:
            await self.request_stop(event.run_id, cancel=True)


class BrokenApp(EngineApp):
    """An app whose runs cannot be built again, as long as it is broken."""

    def __init__(self, small: SmallRun, error: Exception) -> None:
        super().__init__(small.engine, "desk")
        self.error: Exception | None = error
        self.rebuilt = 0

    def rebuild(self, header: RunHeader) -> PreparedRun:
        self.rebuilt += 1
        if self.error is not None:
            raise self.error
        return super().rebuild(header)


async def begin_killed_run(store: MemoryStore, at: int) -> str:
    """A run of the app desk whose process was killed at an event."""
    small = SmallRun()
    run = await StoredRun.begin(make_killing_store(store, at, is_written=True), small.engine, small.request, app="desk")
    with expect_error(Killed):
        await run.run()
    return run.run_id


@pytest.mark.parametrize("error", [ValueError("no such thing"), SetupError("the file is gone")], ids=type)
async def test_a_run_that_cannot_be_continued_says_why_and_is_not_tried_again_until_someone_resumes_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store, small = MemoryStore(), SmallRun()
    run_id = await begin_killed_run(store.for_app("desk"), 9)
    app = BrokenApp(small, error)
    async with asyncio.timeout(30), Manager([app], store=store, sweep_s=0.02) as manager:
        failed = await manager.wait(run_id)
        assert failed.status == "failed"
        assert failed.error in ("ValueError: no such thing", "the file is gone")
        await asyncio.sleep(0.2)  # several sweeps
        assert app.rebuilt == 1
        for statuses in ((), ("failed",)):
            [listed] = (await manager.list(RunQuery(statuses=statuses))).runs
            assert (listed.status, listed.error, listed.can_resume) == ("failed", failed.error, False)
        assert (await manager.list(RunQuery(statuses=("interrupted",)))).runs == ()
        [record] = [each for each in caplog.records if "cannot be continued" in each.message]
        assert (record.exc_info is not None) is isinstance(error, ValueError), "a bug is logged with its traceback"
        with pytest.raises(type(error)):
            await manager.resume(run_id)
        app.error = None
        await manager.resume(run_id)
        assert await manager.wait(run_id) == await expected_result()


async def test_a_queued_run_that_cannot_begin_any_more_says_why() -> None:
    store, small = MemoryStore(), SmallRun()
    queued = await StoredRun.begin(store.for_app("desk"), small.engine, small.request, app="desk")
    app = BrokenApp(small, SetupError("the file is gone"))
    async with asyncio.timeout(30), Manager([app], store=store, sweep_s=0.02) as manager:
        result = await manager.wait(queued.run_id)
        assert (result.status, result.error) == ("failed", "the file is gone")


async def test_a_failure_before_the_first_event_ends_in_words(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(name: str, _: Event | None) -> None:
        if name == "open":
            raise ZeroDivisionError("a bug of the store")

    small = SmallRun()
    async with managing(small.engine, HookedStore(fail)) as manager:
        run_id = (await manager.start(small.request)).run_id
        failed = await manager.wait(run_id)
        assert (failed.status, failed.error) == ("failed", "ZeroDivisionError: a bug of the store")
        assert "Traceback" in caplog.text


@pytest.mark.parametrize("at", ["open", "run_started", "case", "run_completed"])
async def test_a_store_that_is_down_for_a_while_ends_no_run(at: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    is_down = asyncio.Event()
    was_down = False

    async def hook(name: str, _: Event | None) -> None:
        nonlocal was_down
        if name == at and not was_down:
            was_down = True
            is_down.set()
        if is_down.is_set():
            raise OUTAGE

    small = SmallRun()
    async with managing(small.engine, HookedStore(hook)) as manager:
        run_id = (await manager.start(small.request)).run_id
        await wait_until(is_down.is_set)
        await wait_until(lambda: bool(manager.problems))
        assert manager.problems == {"default": str(OUTAGE)} or at == "run_completed"
        await asyncio.sleep(0.2)  # several sweeps
        result = await manager.get(run_id)
        assert (result.status in ("queued", "running"), result.error) == (True, WAITS)
        is_down.clear()
        assert await manager.wait(run_id) == await expected_result()
        assert small.asked == _count_calls()
        assert caplog.text.count("the store cannot be used, so runs wait until it is back") == 1
        assert caplog.text.count("the store is back") == 1
        assert "failed: StoreError" not in caplog.text
        assert manager.problems == {}


async def test_a_sweep_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    sweeps = 0

    async def fail_twice(name: str, _: Event | None) -> None:
        nonlocal sweeps
        sweeps += name == "list"
        if name == "list" and sweeps < 3:
            raise ZeroDivisionError("a bug of the store")

    small = SmallRun()
    store = HookedStore(fail_twice)
    run = await StoredRun.begin(store, small.engine, small.request, app="default")
    async with managing(small.engine, store) as manager:
        assert await manager.wait(run.run_id) == await expected_result()
        assert caplog.text.count("a bug of the store") >= 2


@pytest.mark.long
async def test_cancel_wins_over_success_at_every_event() -> None:
    small = SmallRun()
    types: list[str] = []

    async def note(name: str, event: Event | None) -> None:
        if event is not None:
            types.append(name)

    async with managing(small.engine, HookedStore(note)) as manager:
        await manager.wait((await manager.start(small.request)).run_id)
    for seq in range(len(types)):
        store, small = CancellingStore(seq), SmallRun()
        async with managing(small.engine, store) as manager:
            run_id = (await manager.start(small.request)).run_id
            assert (await manager.wait(run_id)).status == "cancelled", types[seq]
            assert [each.status for each in (await manager.list()).runs] == ["cancelled"]


async def test_a_run_that_has_succeeded_cannot_be_cancelled_any_more() -> None:
    small = SmallRun()
    refused: list[str] = []

    async def cancel_after_success(_: str, event: Event | None) -> None:
        if event is not None and event.type == "run_completed":
            asyncio.get_running_loop().call_soon(lambda: cancelling.append(asyncio.ensure_future(cancel(event.run_id))))

    async def cancel(run_id: str) -> None:
        await asyncio.sleep(0)
        with pytest.raises(RunEndedError) as error:
            await manager.cancel(run_id)
        refused.append(str(error.value))

    cancelling: list[asyncio.Future[None]] = []
    async with managing(small.engine, HookedStore(cancel_after_success)) as manager:
        run_id = (await manager.start(small.request)).run_id
        assert (await manager.wait(run_id)).status == "succeeded"
        await asyncio.gather(*cancelling)
        assert refused == [str(RunEndedError(run_id))]


async def test_runs_of_another_app_or_program_are_left_alone() -> None:
    store, small = MemoryStore(), SmallRun()
    ids = [(await StoredRun.begin(store, small.engine, small.request, app=app)).run_id for app in ("", "shop")]
    for on_lost in ("resume", "mark"):
        async with managing(small.engine, store, on_lost=on_lost) as manager:
            for run_id in ids:
                result = await manager.wait(run_id)
                assert result.error == "it was not started by the app 'default', which leaves it as it is"
            assert small.asked == 0
            assert {each.status for each in (await store.list_runs(RunQuery())).runs} == {"queued", "interrupted"}


async def test_a_start_that_is_in_progress_at_the_end_stays_queued_for_the_next_manager() -> None:
    store, small, other = MemoryStore(), SmallRun(), SmallRun()
    async with managing(small.engine, store) as manager:
        starting = asyncio.create_task(manager.start(small.request))
        await asyncio.sleep(0)
        await manager.close()
        run_id = (await starting).run_id
        with pytest.raises(ManagerClosedError):
            await manager.start(small.request)
    assert small.asked == 0
    async with managing(other.engine, store) as manager:
        assert await manager.wait(run_id) == await expected_result()


async def test_closing_ends_those_who_wait_and_a_second_close_hurries() -> None:
    store, gated, other = MemoryStore(), GatedRun(free=4), SmallRun()
    async with managing(gated.engine, store) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()

        async def watch() -> list[int]:
            return [event.seq async for event in manager.watch(run_id)]

        watching, waiting = asyncio.create_task(watch()), asyncio.create_task(manager.wait(run_id))
        closing = asyncio.create_task(manager.close(timeout_s=60))
        await asyncio.sleep(0.05)
        assert manager.is_closing
        assert not closing.done()
        assert not watching.done(), "events of the work in progress are still shown"
        await manager.close(timeout_s=0)
        await closing
        seen = await watching
        assert seen == list(range(len(seen)))
        assert (await waiting).status == "running"
    async with managing(other.engine, store) as manager:
        assert await manager.wait(run_id) == await expected_result()


@pytest.mark.long
async def test_runs_that_wait_for_long_are_in_the_store_alone() -> None:
    gated = GatedRun()
    app = EngineApp(gated.engine, "desk", request=gated.request)
    count = MAX_WAITING + 8
    async with asyncio.timeout(60), Manager([app], max_runs=2, sweep_s=0.05) as manager:
        ids = [(await manager.start({})).run_id for _ in range(count)]
        numbers: Any = {state: number for _, state, number in manager.count_works()}
        assert numbers == {"running": 2, "queued": MAX_WAITING}
        assert (await manager.get(ids[-1])).status == "queued"
        with pytest.raises(RunLockedError, match="cancel it first"):
            await manager.delete(ids[1])
        await manager.cancel(ids[-1])
        gated.gate.set()
        results = [await manager.wait(run_id) for run_id in ids]
        assert results[:-1] == [await expected_result()] * (count - 1)
        assert results[-1].status == "cancelled"
        assert not list(filter(None, (number for *_, number in manager.count_works())))


def test_the_pause_of_an_outage_grows_to_a_minute_and_begins_anew_after_a_quiet_time() -> None:
    now = 1000.0
    outage = StoreOutage("desk", first_pause_s=5.0, now=lambda: now)
    pauses = []
    for _ in range(6):
        outage.begin(OUTAGE, "a")
        begun = now
        while outage.is_pause:
            now += 1.0
        pauses.append(now - begun)
    assert pauses == [5, 10, 20, 40, 60, 60]
    outage.end()
    outage.begin(OUTAGE)
    assert outage.runs == set()
    now += 59
    assert outage.is_pause, "one write between two failures is not the end of the trouble"
    outage.end()
    now += 200
    outage.begin(OUTAGE)
    now += 6
    assert not outage.is_pause


async def test_a_full_store_is_not_tried_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tries = 0

    async def fail(name: str, _: Event | None) -> None:
        nonlocal tries
        if name == "open":
            tries += 1
            raise OUTAGE

    small = SmallRun()
    async with managing(small.engine, HookedStore(fail)) as manager:
        ids = [(await manager.start(small.request)).run_id for _ in range(5)]
        await wait_until(lambda: tries > 7)
        await asyncio.sleep(0.1)
        assert tries < 12, "each once, then one of them after growing pauses"
        assert [each.error for each in (await manager.list()).runs] == [WAITS] * 5
        assert (await manager.get(ids[0])).error == WAITS
        assert len([each for each in caplog.records if each.name.startswith("promptiter")]) == 1
        for run_id in ids:
            await manager.cancel(run_id)
        await wait_until(lambda: not manager.problems)


async def test_a_read_only_database_is_an_outage_until_it_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small, store = SmallRun(), SqlStore(f"sqlite:///{tmp_path}/runs.db")
    run_id = (await StoredRun.begin(store, small.engine, small.request, app="default")).run_id
    event.listen(store._database._engine, "begin", _forbid_writes)
    async with managing(small.engine, store) as manager:
        await wait_until(lambda: bool(manager.problems))
        assert "attempt to write a readonly database" in manager.problems["default"]
        assert (await manager.get(run_id)).error == WAITS
        with pytest.raises(StoreError, match="readonly"):
            await manager.start(small.request)
        event.remove(store._database._engine, "begin", _forbid_writes)
        event.listen(store._database._engine, "begin", _allow_writes)
        assert await manager.wait(run_id) == await expected_result()
        assert manager.problems == {}
    await store.close()
    assert caplog.text.count("readonly database") == 1


def _forbid_writes(connection: Connection) -> None:
    connection.exec_driver_sql("PRAGMA query_only = 1")


def _allow_writes(connection: Connection) -> None:
    connection.exec_driver_sql("PRAGMA query_only = 0")


async def test_the_log_tells_a_start_from_a_continuation(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store, small, gated = MemoryStore(), SmallRun(), GatedRun(free=4)
    run_id = await begin_killed_run(store.for_app("desk"), 9)
    async with asyncio.timeout(30), Manager([EngineApp(small.engine, "desk")], store=store, sweep_s=0.02) as manager:
        await manager.wait(run_id)
    assert f"run {run_id} continued" in caplog.text
    assert f"run {run_id} started" not in caplog.text
    async with managing(gated.engine, store, close_timeout_s=0) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
    assert f"run {run_id} started" in caplog.text
    assert f"run {run_id} was interrupted; the next server continues it" in caplog.text
