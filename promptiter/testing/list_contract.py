"""The tests of what a store promises about lists of runs, apps, cancelled and deleted runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import cast

from promptiter.errors import (
    PromptiterError,
    RunCancelledError,
    RunEndedError,
    RunLockedError,
    SetupError,
    UnknownRunError,
)
from promptiter.evaluation.trace_store import encode_trace
from promptiter.runlog.case_uses import CaseUse
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import Status
from promptiter.runs.run_list import LISTED_STATUSES, ListedStatus, RunQuery
from promptiter.runs.store import Store
from promptiter.testing.store_hooks import (
    EXPIRED_S,
    REPLY,
    Clock,
    StoreHooks,
    ask,
    expect_error,
    in_event_loop,
    list_events,
    make_event,
    make_header,
    make_key,
    make_receipt,
    make_trace,
    wait_until,
)


class ListContract(StoreHooks):
    """Runs are listed page by page, and those of an app are its own."""

    @in_event_loop
    async def test_runs_are_listed_with_how_they_ended_and_what_they_cost(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        for name in ("a", "b", "c", "d"):
            app = "" if name == "b" else "shop"
            await store.create(make_header(name).model_copy(update={"app": app}))
        async with store.open("a") as run:
            await ask(run, 0)
            await run.journal.append(make_event(0))
            [first, *_] = (await store.list_runs(RunQuery(text="a"))).runs
            assert (first.status, first.holder is not None, first.can_resume) == ("running", True, False)
        await end_run(store, "d", "failed", error="no luck")
        for client in (store, self.make_store(tmp_path, Clock())):
            page = await client.list_runs(RunQuery())
            assert page.next_cursor is None
            assert [(each.run_id, each.status) for each in page.runs] == [
                ("d", "failed"),
                ("c", "queued"),
                ("b", "interrupted"),
                ("a", "interrupted"),
            ]
            assert [(each.rounds, each.calls, each.holder, each.can_resume) for each in page.runs] == [
                (1, 0, None, True),
                (0, 0, None, False),
                (0, 0, None, True),
                (1, 1, None, True),
            ]
            assert (page.runs[0].error, page.runs[0].verdict) == ("no luck", "no_evidence")
            assert {each.created_at for each in page.runs} == {make_header("a").created_at}

    @in_event_loop
    async def test_a_list_has_pages_and_filters(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        names = [f"run-{number}" for number in range(7)]
        for number, name in enumerate(names):
            created = f"2026-11-{10 + number}T00:00:00+00:00"
            await store.create(make_header(name).model_copy(update={"created_at": created}))
        await end_run(store, "run-2", "succeeded", is_final=True)
        found, query = [], RunQuery(limit=3)
        while True:
            page = await store.list_runs(query)
            assert len(page.runs) <= 3
            found += [each.run_id for each in page.runs]
            if page.next_cursor is None:
                break
            query = RunQuery(limit=3, cursor=page.next_cursor)
        assert found == names[::-1]
        for query, expected in (
            (RunQuery(statuses=("succeeded",)), ["run-2"]),
            (RunQuery(statuses=("interrupted",), limit=2), ["run-6", "run-5"]),
            (RunQuery(statuses=("interrupted",), cursor="run-3"), ["run-1", "run-0"]),
            (RunQuery(verdicts=("improved",)), []),
            (RunQuery(verdicts=("no_evidence",)), ["run-2"]),
            (RunQuery(created_from="2026-11-12T00:00:00+00:00", created_before="2026-11-14"), ["run-3", "run-2"]),
            (RunQuery(text="n-4"), ["run-4"]),
            (RunQuery(text="%"), []),
            (RunQuery(text="_"), []),
        ):
            assert [each.run_id for each in (await store.list_runs(query)).runs] == expected, query

    @in_event_loop
    async def test_runs_with_one_id_are_listed_in_the_order_in_which_they_began(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        made = [(await store.create(make_header("run"))).run_id for _ in range(12)]
        assert made[:2] == ["run", "run~2"]
        assert await store.list_ids() == made
        first = await store.list_runs(RunQuery(limit=8))
        second = await store.list_runs(RunQuery(limit=8, cursor=first.next_cursor))
        assert [each.run_id for each in (*first.runs, *second.runs)] == made[::-1]

    @in_event_loop
    async def test_the_runs_of_an_app_are_its_own(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, Clock())
        shop, desk = store.for_app("shop"), store.for_app("desk")
        use = CaseUse(id="u1", run_id="a", kind="search", place="a", train=("c1",))
        await shop.create(make_header("a"))
        await shop.case_uses.add(use)
        for other in (store, desk, self.make_store(tmp_path, Clock()).for_app("Shop")):
            assert await other.list_ids() == []
            assert (await other.list_runs(RunQuery())).runs == ()
            for refused in (other.view("a"), other.delete("a"), other.request_stop("a")):
                with expect_error(SetupError):
                    await refused
        assert (await desk.create(make_header("a"))).run_id == "a"
        async with shop.open("a") as one, desk.open("a") as another:
            await ask(one, 0)
            await one.journal.append(make_event(0))
            assert await another.journal.last() is None
            assert (await another.answers.ledger()).total.calls == 0
        known = await desk.case_uses.add(CaseUse(id="u2", run_id="a", kind="search", place="a"))
        assert [each.id for each in known] == ["u2"]
        again = self.make_store(tmp_path, Clock()).for_app("shop")
        assert await again.list_ids() == ["a"]
        for name in ("", "../shop", "a/b", "a b", ".hidden", "x" * 64):
            with expect_error(SetupError):
                store.for_app(name)


class CancelContract(StoreHooks):
    """Runs are cancelled by any process, and deleted."""

    @in_event_loop
    async def test_a_cancelled_run_is_known_to_its_process_and_stays_cancelled(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        await store.create(make_header("a"))
        async with store.open("a") as run:
            await run.journal.append(make_event(0))
            assert not run.is_cancel_requested()
            await other.request_stop("a", cancel=True)
            await wait_until(run.is_cancel_requested)
            assert await (await store.view("a")).is_cancel_requested()
            with expect_error(RunCancelledError):
                await run.journal.append(make_end(1, "succeeded", is_final=True))
            await run.journal.append(make_end(1, "cancelled"))
        async with other.open("a") as run:
            assert run.is_cancel_requested()
        assert [each.status for each in (await other.list_runs(RunQuery())).runs] == ["cancelled"]
        await other.request_resume("a")
        async with store.open("a") as run:
            assert not run.is_cancel_requested()
            await run.journal.append(make_end(2, "succeeded", is_final=True))
        assert [each.status for each in (await other.list_runs(RunQuery())).runs] == ["succeeded"]

    @in_event_loop
    async def test_a_run_that_has_not_begun_can_be_cancelled_and_one_that_has_ended_cannot(
        self, tmp_path: Path
    ) -> None:
        store = self.make_store(tmp_path, Clock())
        await store.create(make_header("a"))
        await store.request_stop("a", cancel=True)
        [listed] = (await store.list_runs(RunQuery())).runs
        assert listed.status == "cancelled"
        await store.create(make_header("b"))
        await end_run(store, "b", "succeeded", is_final=True)
        with expect_error(RunEndedError):
            await store.request_stop("b", cancel=True)
        with expect_error(SetupError):
            await store.request_stop("gone", cancel=True)

    @in_event_loop
    async def test_a_run_to_resume_is_queued_until_a_process_works_on_it(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        ends: tuple[Status, ...] = ("failed", "cancelled", "succeeded")
        for name in (*ends, "interrupted"):
            await store.create(make_header(name))
            async with store.open(name) as run:
                await run.journal.append(make_event(0))
                if name != "interrupted":
                    await run.journal.append(make_end(1, cast("Status", name)))
            await store.request_stop(name, cancel=True)
            await check_status(other, name, "cancelled")
            await other.request_resume(name)
            await check_status(store, name, "queued")
            await store.request_stop(name, cancel=True)
            await check_status(other, name, "cancelled")
            await other.request_resume(name)
            async with store.open(name) as run:
                await check_status(other, name, "running")
                last = await run.journal.last()
                assert last is not None
            await check_status(other, name, "queued")  # nothing was done
            async with store.open(name) as run:
                await run.journal.append(make_event(last.seq + 1))
            await check_status(other, name, "interrupted")
        await end_run(store, (await store.create(make_header("final"))).run_id, "succeeded", is_final=True)
        with expect_error(RunEndedError):
            await store.request_resume("final")
        with expect_error(UnknownRunError):
            await store.request_resume("gone")

    @in_event_loop
    async def test_who_opens_a_run_learns_whether_it_was_waiting_for_that(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        await store.create(make_header("a"))
        async with store.open("a") as run:
            assert run.was_waiting
            await run.journal.append(make_event(0))
        async with other.open("a") as run:
            assert run.was_waiting, "it was interrupted"
            await run.journal.append(make_end(1, "succeeded"))
            assert run.was_waiting, "that does not change"
        async with store.open("a") as run:
            assert not run.was_waiting, "it was stopped"
        await store.request_resume("a")
        async with other.open("a") as run:
            assert run.was_waiting
        await store.request_stop("a", cancel=True)
        async with other.open("a") as run:
            assert not run.was_waiting

    @in_event_loop
    async def test_a_view_of_a_deleted_run_says_so(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        for name in ("queued", "ended"):
            await store.create(make_header(name))
        await end_run(store, "ended", "failed")
        for name in ("queued", "ended"):
            view = await store.view(name)
            await other.delete(name)
            with expect_error(UnknownRunError):
                await view.find_status()

    @in_event_loop
    async def test_a_deleted_run_is_gone_but_its_uses_of_cases_stay(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        for name in ("a", "b"):
            await store.create(make_header(name))
            await end_run(store, name, "failed")
        await store.case_uses.add(CaseUse(id="u1", run_id="a", kind="search", place="a"))
        async with store.open("a"):
            with expect_error(RunLockedError):
                await other.delete("a")
        await other.delete("a")
        assert await store.list_ids() == ["b"]
        with expect_error(SetupError):
            await store.view("a")
        with expect_error(SetupError):
            await store.delete("a")
        uses = await store.case_uses.add(CaseUse(id="u2", run_id="b", kind="search", place="b"))
        assert [each.id for each in uses] == ["u1", "u2"]
        await store.create(make_header("a"))
        view = await store.view("a")
        assert await list_events(view.read()) == []
        assert (await view.read_ledger()).total.calls == 0

    @in_event_loop
    async def test_a_run_that_waits_is_not_deleted_with_those_that_have_ended(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path, Clock()), self.make_store(tmp_path, Clock())
        for name in ("new", "failed", "resumed", "cancelled"):
            await store.create(make_header(name).model_copy(update={"app": "shop"}))
        for name in ("failed", "resumed"):
            await end_run(store, name, "failed")
        await store.request_resume("resumed")
        await store.request_stop("cancelled", cancel=True)
        for name in ("new", "resumed"):
            with expect_error(RunLockedError):
                await other.delete(name, only_ended=True)
        for name in ("failed", "cancelled"):
            await other.delete(name, only_ended=True)
        assert await store.list_ids() == ["new", "resumed"]
        with expect_error(UnknownRunError):
            await store.delete("gone", only_ended=True)

    @in_event_loop
    async def test_a_new_run_shares_nothing_with_one_that_was_deleted(self, tmp_path: Path) -> None:
        clock = Clock()
        store = self.make_store(tmp_path, clock)
        async with self.open_new_run(tmp_path, clock) as former:
            view = await store.view("a")
            clock.time += EXPIRED_S
            self.suspend_holder(tmp_path, "a")
            other = self.make_store(tmp_path, clock)
            await other.delete("a")
            shop = other.for_app("shop")
            await shop.create(make_header("b"))
            async with shop.open("b") as run:
                await run.journal.append(make_event(0))
                assert await list_events(view.read()) == [], "who watched the deleted run sees nothing of the new one"
                with expect_error(RunLockedError):
                    await former.journal.append(make_event(1, "of the former holder"))
                with suppress(PromptiterError):
                    await former.traces.put(make_trace("of the former holder"))
                with suppress(PromptiterError):
                    await former.answers.put(make_key(), REPLY, paid=make_receipt())
                assert await list_events(run.journal.read()) == [make_event(0)]
                trace_digest, _ = encode_trace(make_trace("of the former holder"))
                assert not await run.traces.has(trace_digest)
                assert await run.answers.get(make_key()) is None
                assert (await run.answers.ledger()).total.calls == 0


async def check_status(store: Store, run_id: str, status: ListedStatus) -> None:
    """Check the status of a run, in its view and in lists."""
    assert await (await store.view(run_id)).find_status() == status
    assert [(each.run_id, each.status) for each in (await store.list_runs(RunQuery(text=run_id))).runs] == [
        (run_id, status)
    ]
    for wanted in LISTED_STATUSES:
        found = (await store.list_runs(RunQuery(text=run_id, statuses=(wanted,)))).runs
        assert len(found) == (wanted == status), wanted


def make_end(seq: int, status: Status, *, is_final: bool = False, error: str | None = None) -> Event:
    """The last event of a run."""
    end = RunCompleted(status=status, verdict="no_evidence", is_final=is_final, error=error)
    data = to_plain(end)
    return Event(seq=seq, run_id="a", round=1, phase="end", type=RunCompleted.event_type, data=data)


async def end_run(
    store: Store, run_id: str, status: Status, *, is_final: bool = False, error: str | None = None
) -> None:
    async with store.open(run_id) as run:
        await run.journal.append(make_event(0))
        await run.journal.append(make_end(1, status, is_final=is_final, error=error))
