"""The tests of what a store promises about events, and about the lease of a run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

from promptiter.errors import JournalError, RunLockedError
from promptiter.evaluation.trace_store import encode_trace
from promptiter.llm.cache.keys import ToolAnswer
from promptiter.runlog.events import Event
from promptiter.runlog.journal import EventSource
from promptiter.runs.run_list import RunQuery
from promptiter.runs.store import Store
from promptiter.testing.store_hooks import (
    EXPIRED_S,
    LARGE,
    STRANGE_TEXTS,
    Clock,
    Killed,
    StoreHooks,
    expect_error,
    in_event_loop,
    list_events,
    make_event,
    make_header,
    make_key,
    make_receipt,
    make_result,
    make_trace,
    read_blocking,
)


class EventContract(StoreHooks):
    """Events are numbered without gaps, and are read as they were appended."""

    @in_event_loop
    async def test_events_are_read_as_they_were_appended_and_from_any_number(self, tmp_path: Path) -> None:
        events = [make_event(0), *(make_event(seq, text) for seq, text in enumerate(STRANGE_TEXTS, start=1))]
        events += [
            make_event(len(events), "x" * LARGE),
            make_event(len(events) + 1, [2**70, -1.5e-300, None, {"": {}}]),
        ]
        async with self.open_new_run(tmp_path) as run:
            for event in events:
                await run.journal.append(event)
                assert await run.journal.last() == event
            await check_events(run.journal, events)
        view = await self.make_store(tmp_path, Clock()).view("a")
        await check_events(view, events)
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            await check_events(run.journal, events)

    @in_event_loop
    async def test_many_events_stay_in_order(self, tmp_path: Path) -> None:
        count = 1_000
        async with self.open_new_run(tmp_path) as run:
            for seq in range(count):
                await run.journal.append(make_event(seq))
        view = await self.make_store(tmp_path, Clock()).view("a")
        for start in (0, 1, 499, 998, 999, 1_000, 5_000):
            assert [event.seq async for event in view.read(start)] == list(range(start, count))

    @in_event_loop
    async def test_only_the_next_event_can_be_appended(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            with expect_error(JournalError):
                await run.journal.append(make_event(1))
            await run.journal.append(make_event(0))
            for seq in (0, 2):
                with expect_error(JournalError):
                    await run.journal.append(make_event(seq))
            await run.journal.append(make_event(1))
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            for seq in (0, 1, 3):
                with expect_error(JournalError):
                    await run.journal.append(make_event(seq))
            await run.journal.append(make_event(2))
            assert await list_events(run.journal.read()) == [make_event(seq) for seq in range(3)]

    @in_event_loop
    async def test_values_that_are_not_json_are_refused_and_leave_nothing(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            for value in (math.nan, [math.inf], {1: 2}, object()):
                with expect_error(JournalError):
                    await run.journal.append(make_event(0, value))
            assert await run.journal.last() is None
            await run.journal.append(make_event(0))
            assert await list_events(run.journal.read()) == [make_event(0)]

    @in_event_loop
    async def test_events_can_be_read_while_others_are_appended(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            view = await self.make_store(tmp_path, Clock()).view("a")
            reader = view.reader()
            for seq in range(10):
                await run.journal.append(make_event(seq, kind="decision"))
                assert await view.last() == make_event(seq, kind="decision")
                assert [event.seq for event in await read_blocking(reader, seq)] == [seq]

    @in_event_loop
    async def test_a_reader_outlives_the_open_run(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            await run.journal.append(make_event(0))
            reader = run.journal.reader()
        assert await read_blocking(reader) == [make_event(0)]

    @in_event_loop
    async def test_an_append_that_a_crash_interrupted_is_dropped(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        await store.create(make_header("a"))
        for count in range(4):
            self.tear_next_event(tmp_path, "a")
            view = await self.make_store(tmp_path, Clock()).view("a")
            assert await list_events(view.read()) == [make_event(seq) for seq in range(count)]
            async with store.open("a") as run:
                assert await run.journal.last() == (make_event(count - 1) if count else None)
                await run.journal.append(make_event(count))
            assert await list_events(view.read()) == [make_event(seq) for seq in range(count + 1)]


class LeaseContract(StoreHooks):
    """One process at a time works on a run; runs share nothing."""

    @in_event_loop
    async def test_an_open_run_is_refused_to_others(self, tmp_path: Path) -> None:
        clock = Clock()
        async with self.open_new_run(tmp_path, clock) as run:
            for client in (self.make_store(tmp_path, clock), self.make_store(tmp_path, clock)):
                holder = await (await client.view("a")).find_holder()
                assert holder is not None
                assert holder.expires_at > holder.since
                with expect_error(RunLockedError):
                    async with client.open("a"):
                        pass
            await run.journal.append(make_event(0))
        assert await (await self.make_store(tmp_path, clock).view("a")).find_holder() is None

    @in_event_loop
    async def test_a_run_that_was_left_can_be_opened_again(self, tmp_path: Path) -> None:
        clock = Clock()
        store = self.make_store(tmp_path, clock)
        await store.create(make_header("a"))
        for seq, error in enumerate((ValueError, asyncio.CancelledError, Killed)):
            with expect_error(error):
                async with self.make_store(tmp_path, clock).open("a") as run:
                    await run.journal.append(make_event(seq))
                    raise error
        async with store.open("a") as run:
            assert [event.seq async for event in run.journal.read()] == [0, 1, 2]

    @in_event_loop
    async def test_an_expired_lease_is_taken_over_and_the_former_holder_writes_no_more(self, tmp_path: Path) -> None:
        clock = Clock()
        async with self.open_new_run(tmp_path, clock) as former:
            await former.journal.append(make_event(0))
            clock.time += EXPIRED_S
            self.suspend_holder(tmp_path, "a")
            async with self.make_store(tmp_path, clock).open("a") as run:
                await run.journal.append(make_event(1))
                for _ in range(2):
                    with expect_error(RunLockedError):
                        await former.journal.append(make_event(2, "of the former holder"))
                    with expect_error(RunLockedError):
                        await former.write_result(make_result(), keep_traces="all")
                await run.journal.append(make_event(2))
                assert await list_events(run.journal.read()) == [make_event(seq) for seq in range(3)]
        async with self.make_store(tmp_path, clock).open("a") as run:  # the former holder has not locked it again
            await run.journal.append(make_event(3))

    @in_event_loop
    async def test_a_run_whose_process_is_gone_is_told_from_one_that_was_left(self, tmp_path: Path) -> None:
        clock = Clock()
        clock.time -= EXPIRED_S
        store, other = self.make_store(tmp_path, clock), self.make_store(tmp_path, clock)
        for name in ("gone", "left", "new"):
            await store.create(make_header(name))
        async with store.open("left") as run:
            await run.journal.append(make_event(0))
        async with store.open("gone") as run:
            await run.journal.append(make_event(0))
            clock.time += EXPIRED_S
            runs = (await other.list_runs(RunQuery())).runs
            assert [(each.run_id, each.status, each.is_abandoned) for each in runs] == [
                ("new", "interrupted", False),
                ("left", "interrupted", False),
                ("gone", "interrupted", True),
            ]
        assert not any(each.is_abandoned for each in (await other.list_runs(RunQuery())).runs)

    @in_event_loop
    async def test_a_lease_that_expired_can_be_renewed_if_no_other_process_took_over(self, tmp_path: Path) -> None:
        clock = Clock()
        async with self.open_new_run(tmp_path, clock) as run:
            await run.journal.append(make_event(0))
            clock.time += EXPIRED_S
            await run.journal.append(make_event(1))
            with expect_error(RunLockedError):
                async with self.make_store(tmp_path, clock).open("a"):
                    pass

    @in_event_loop
    async def test_runs_of_one_store_are_open_at_the_same_time_and_share_nothing(self, tmp_path: Path) -> None:
        names = [f"run {number}" for number in range(8)]
        store = self.make_store(tmp_path, Clock())
        for name in names:
            await store.create(make_header(name))

        async def work(name: str, client: Store) -> None:
            async with client.open(name) as run:
                for seq in range(20):
                    await run.answers.put(make_key(), ToolAnswer(name), paid=make_receipt())
                    await run.traces.put(make_trace(f"{name} {seq}"))
                    await run.journal.append(make_event(seq, name, kind="decision"))

        clients = [store if number % 2 else self.make_store(tmp_path, Clock()) for number in range(len(names))]
        async with asyncio.TaskGroup() as group:
            for name, client in zip(names, clients, strict=True):
                group.create_task(work(name, client))
        known = set()
        for name in names:
            async with store.open(name) as run:
                known.add(run.name)
                assert await list_events(run.journal.read()) == [
                    make_event(seq, name, kind="decision") for seq in range(20)
                ]
                assert await run.answers.get(make_key()) == ToolAnswer(name)
                assert (await run.answers.ledger()).total.calls == 20
                for other in names:
                    trace_digest, _ = encode_trace(make_trace(f"{other} 0"))
                    assert await run.traces.has(trace_digest) is (other == name)
        assert len(known) == len(names)


async def check_events(source: EventSource, events: Sequence[Event]) -> None:
    """Check what is read from each number on."""
    assert await source.last() == events[-1]
    for start in range(len(events) + 2):
        assert await list_events(source.read(start)) == list(events[start:])
        assert await read_blocking(source.reader(), start) == list(events[start:])
