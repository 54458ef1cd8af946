"""StoreContract: the tests of what a Store promises. Implementers of a store run them with pytest.

    from promptiter.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, place, now):
            return MyStore(f"sqlite:///{place}/runs.db", now=now)

They need no plugin, and no fixture but `tmp_path`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from promptiter.errors import UnknownRunError
from promptiter.llm.ledger import Spending
from promptiter.runlog.case_uses import CaseUse
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold, fold_lazily
from promptiter.runlog.results import RunResult
from promptiter.runs.store import OpenRun, RunView, Store
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.answer_contract import AnswerContract, TraceContract
from promptiter.testing.event_contract import EventContract, LeaseContract
from promptiter.testing.list_contract import CancelContract, ListContract
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import (
    Clock,
    Killed,
    StoreHooks,
    expect_error,
    in_event_loop,
    list_events,
    make_header,
    wait_until,
)


class RunContract(StoreHooks):
    """Runs are created, found and executed."""

    @in_event_loop
    async def test_a_run_is_created_listed_and_viewed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        assert await store.list_ids() == []
        headers = [await store.create(make_header(run_id)) for run_id in ("b", "a")]
        for client in (store, self.make_store(tmp_path, Clock())):
            assert await client.list_ids() == ["a", "b"]
            for header in headers:
                view = await client.view(header.run_id)
                assert view.header == header == make_header(header.run_id)
                assert await view.last() is None
                assert await list_events(view.read()) == []
                assert (await view.read_ledger()).total == Spending()
                assert await view.find_holder() is None

    @in_event_loop
    async def test_a_second_run_with_an_id_gets_a_number(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        headers = [await client.create(make_header("a")) for client in (store, other, store)]
        assert [header.run_id for header in headers] == ["a", "a~2", "a~3"] == await store.list_ids()
        assert [(await other.view(header.run_id)).header for header in headers] == headers

    @in_event_loop
    async def test_uses_of_cases_are_kept_once_for_all_clients(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        uses = [
            CaseUse(id=name, run_id="a", kind="search", place="a", train=("c1",), validation=("c2", "c3"))
            for name in ("u1", "u2")
        ]
        assert list(await store.case_uses.add(uses[0])) == uses[:1]
        other = self.make_store(tmp_path, Clock())
        for client in (other, store):
            assert list(await client.case_uses.add(uses[1])) == uses

    @in_event_loop
    async def test_an_unknown_run_is_refused(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        for run_id in ("gone", "../gone", "", "a/b", "x" * 5000):
            with expect_error(UnknownRunError):
                await store.view(run_id)
            with expect_error(UnknownRunError):
                await store.request_stop(run_id)
            with expect_error(UnknownRunError):
                async with store.open(run_id):
                    pass

    @in_event_loop
    async def test_a_stop_request_reaches_the_process_and_is_gone_when_the_run_is_resumed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        await store.create(make_header("a"))
        for _ in range(2):
            async with store.open("a") as run:
                assert run.find_stop_request() is None
                await self.make_store(tmp_path, Clock()).request_stop("a")
                await wait_until(lambda run=run: run.find_stop_request() is not None)  # type: ignore[misc]

    @in_event_loop
    async def test_a_run_gives_the_result_of_a_run_without_a_store(self, tmp_path: Path) -> None:
        expected = await SmallRun().engine.run(SmallRun().request)
        result, asked = await execute_run(self.make_store(tmp_path, Clock()))
        assert result == expected
        view = await self.view_only_run(tmp_path)
        assert fold([event async for event in view.read()]) == expected
        assert await asyncio.to_thread(lambda: list(fold_lazily(view.reader()).rounds)) == list(expected.rounds)
        assert (await view.read_ledger()).total.calls == asked
        for row in expected.rounds[0].train.rows if expected.rounds[0].train is not None else ():
            assert (await view.read_trace(row.trace_digests[0])).steps

    @in_event_loop
    async def test_runs_of_one_engine_at_the_same_time_give_the_results_of_single_runs(self, tmp_path: Path) -> None:
        single, engine = SmallRun(), SmallRun().engine
        expected = await single.engine.run(single.request)
        store = self.make_store(tmp_path, Clock())
        runs = [await StoredRun.begin(store, engine, single.request) for _ in range(4)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.run()) for run in runs]
        for run, task in zip(runs, tasks, strict=True):
            assert task.result() == expected
            assert (await (await store.view(run.run_id)).read_ledger()).total.calls == single.asked

    @in_event_loop
    async def test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(self, tmp_path: Path) -> None:
        (tmp_path / "whole").mkdir()
        expected, asked = await execute_run(self.make_store(tmp_path / "whole", Clock()))
        view = await self.view_only_run(tmp_path / "whole")
        whole = await list_events(view.read())
        for seq in range(len(whole)):
            place = tmp_path / str(seq)
            place.mkdir()
            store = self.make_store(place, Clock())
            killed = SmallRun()
            with expect_error(Killed):
                await execute_run(make_killing_store(store, seq, is_written=seq % 2 == 1), killed)
            result, asked_again = await execute_run(self.make_store(place, Clock()))
            assert result == expected, f"killed at event {seq}"
            assert killed.asked + asked_again == asked, f"killed at event {seq}"
            events = await list_events((await self.view_only_run(place)).read())
            assert [(event.seq, event.type) for event in events] == [(event.seq, event.type) for event in whole]

    async def view_only_run(self, place: Path) -> RunView:
        store = self.make_store(place, Clock())
        [run_id] = await store.list_ids()
        return await store.view(run_id)


class StoreContract(
    RunContract, EventContract, LeaseContract, AnswerContract, TraceContract, ListContract, CancelContract
):
    """Inherit from this, and implement `make_store`. The other hooks are for stores that need them."""


async def execute_run(store: Store, process: SmallRun | None = None) -> tuple[RunResult, int]:
    """Start the only run of a store, or resume it. Returns its result, and how often its model was asked."""
    small = process or SmallRun()
    known = await store.list_ids()
    run = (
        await StoredRun.resume(store, known[0], small.engine, small.request)
        if known
        else await StoredRun.begin(store, small.engine, small.request)
    )
    return await run.run(), small.asked


def make_killing_store(store: Store, seq: int, *, is_written: bool) -> Store:
    """The same store, but the process dies at one event: before the event is written, or after it."""

    @asynccontextmanager
    async def open_run(run_id: str) -> AsyncIterator[OpenRun]:
        async with store.open(run_id) as run:

            async def append(event: Event) -> None:
                if event.seq != seq or is_written:
                    await run.journal.append(event)
                if event.seq == seq:
                    raise Killed

            yield cast("OpenRun", _Changed(run, journal=_Changed(run.journal, append=append)))

    return cast("Store", _Changed(store, open=open_run))


class _Changed:
    """An object with some attributes replaced."""

    def __init__(self, inner: object, **replaced: object) -> None:
        self._inner = inner
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
