"""ManagedApp: an app, its store, and the runs of it that this process works on."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from promptiter.concurrency import run_in_thread
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.run import RunOutcome
from promptiter.errors import (
    PromptiterError,
    RunLockedError,
    SetupError,
    UnknownRunError,
    is_outage_of_store,
)
from promptiter.manager.app import App
from promptiter.manager.descriptions import describe_queued, describe_refusal, describe_refused
from promptiter.manager.encoded_results import EncodedResult, EncodedResults, SharedCalls, Version
from promptiter.manager.news import News
from promptiter.manager.run_feeds import RunFeeds
from promptiter.manager.run_folds import RunFolds
from promptiter.manager.store_outage import WAITS, StoreOutage
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import RunResult
from promptiter.runs.run_list import MAX_PAGE, WAITING, ListedRun, ListedStatus, RunPage, RunQuery
from promptiter.runs.store import RunView, Store
from promptiter.runs.stored_run import StoredRun
from promptiter.runs.stores import iterate_runs

logger = logging.getLogger(__name__)

KEPT = 64
"""The most runs that have not begun whose description is kept."""


@dataclass(eq=False)
class Work:
    """What this process does for a run. `has_begun` says whether it is the run's turn. `view` is read when needed."""

    task: asyncio.Task[None]
    interrupt: Interrupt = field(default_factory=Interrupt)
    has_begun: bool = False
    view: RunView | None = None


@dataclass(eq=False)
class ManagedApp:
    """An app with its store. This process works on the runs `works`; the `refused` ones it cannot continue, and why."""

    app: App
    store: Store
    works: dict[str, Work] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    folds: RunFolds = field(default_factory=RunFolds)
    news: News = field(default_factory=News)
    encoded: EncodedResults = field(default_factory=EncodedResults)
    reads: SharedCalls[EncodedResult] = field(default_factory=SharedCalls)
    is_closed: bool = False
    pause_s: float = 1.0
    _queued: OrderedDict[str, RunResult] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.outage = StoreOutage(self.app.name, first_pause_s=self.pause_s)
        self.feeds = RunFeeds(self.is_worth_waiting, self.news.wait)

    async def read_result(self, view: RunView) -> RunResult:
        """The state of a run, from its events. A run without events is queued, or cancelled."""
        result, _ = await self._read(view)
        return result

    async def read_encoded(self, run_id: str) -> EncodedResult:
        """The state of a run as JSON. Many may ask for it at the same time."""

        async def read() -> EncodedResult:
            result, version = await self._read(await self._find_view(run_id))
            known = self.encoded.find(run_id, result.status, version)
            return known or await self.encoded.encode(result, version)

        return await self.reads.call(run_id, read)

    async def _find_view(self, run_id: str) -> RunView:
        """The view of a run. As long as this process works on it, it stays where it is."""
        work = self.works.get(run_id)
        if work is None:
            return await self.store.view(run_id)
        if work.view is None:
            work.view = await self.store.view(run_id)
        return work.view

    async def _read(self, view: RunView) -> tuple[RunResult, Version]:
        """The state of a run, and what it depends on."""
        run_id = view.header.run_id
        found = await self.folds.read(run_id, view.reader(), count=self.news.count_events(run_id))
        result = found.result
        if result is None:
            result = self._queued.get(run_id) or await self._describe_queued(view)
        try:
            status = await self._find_status(view)
        except UnknownRunError:
            self.forget(run_id)
            raise
        if status in WAITING and self._is_refused(run_id):
            result = replace(result, status="failed", error=self.refused[run_id])
        elif (status == "queued" or status == "running") and not result.is_final:
            result = replace(result, status=status, error=None)  # it may have ended before, and is continued
        elif status == "cancelled":
            result = replace(result, status=status)
        is_waiting = run_id in self.outage.runs and run_id not in self.works  # its lease may not have been released
        if is_waiting and result.status in ("queued", "running"):
            result = replace(result, error=WAITS)
        return result, (found.events, result.status, result.error)

    async def list_runs(self, query: RunQuery) -> RunPage:
        """A page of runs. One that this process cannot continue, or not now, says why."""
        if not self.refused and not self.outage.runs:
            return await self.store.list_runs(query)
        # Runs that are refused are failed ones here, which the store does not know.
        wanted = replace(query, statuses=(*query.statuses, *WAITING)) if "failed" in query.statuses else query
        page = await self.store.list_runs(wanted)
        shown = tuple(map(self._explain, page.runs))
        return replace(page, runs=tuple(each for each in shown if query.matches(each)))

    def _explain(self, run: ListedRun) -> ListedRun:
        if run.status in WAITING and run.run_id in self.refused:
            return run._replace(status="failed", error=self.refused[run.run_id], can_resume=False)
        if run.status in (*WAITING, "running") and run.run_id in self.outage.runs and run.run_id not in self.works:
            return run._replace(error=WAITS)
        return run

    async def find_lost(self) -> list[ListedRun]:
        """The runs that no process works on, without those that this one cannot continue.

        During an outage of the store it is one, or none if it is too early for another try.
        """
        if self.outage.is_pause:
            return []
        try:
            lost = await self._list_lost()
            if self.outage.error is not None:
                await self._check_waiting()
        except PromptiterError as error:  # the next sweep tries it again
            if is_outage_of_store(error):
                self.outage.begin(error)
            else:
                logger.warning("the runs of app %r could not be read: %s", self.app.name, error)
            return []
        return lost if self.outage.error is None else lost[:1]

    async def _check_waiting(self) -> None:
        """The outage of a store that can be read ends if no run waits for its end any more."""
        for run_id in list(self.outage.runs):
            try:
                view = await self.store.view(run_id)
                holder = await view.find_holder()
                is_waiting = await self.is_in_progress(view) and (holder is None or holder.pid == os.getpid())
            except UnknownRunError:
                is_waiting = False
            if not is_waiting:
                self.outage.runs.discard(run_id)
        if not self.outage.runs:
            self.outage.end()

    async def _list_lost(self) -> list[ListedRun]:
        found = [run async for run in iterate_runs(self.store, RunQuery(statuses=WAITING, limit=MAX_PAGE))]
        ids = {run.run_id for run in found}
        self.refused = {run_id: why for run_id, why in self.refused.items() if run_id in ids}  # others were deleted
        return [run for run in found if run.run_id not in self.works and run.run_id not in self.refused]

    def keep_queued(self, result: RunResult) -> RunResult:
        """Remember the description of a run that has not begun: it takes a while to build."""
        self._queued[result.run_id] = result
        while len(self._queued) > KEPT:
            self._queued.popitem(last=False)
        return result

    def forget(self, run_id: str) -> None:
        """Forget a run that was deleted."""
        self.folds.forget(run_id)
        self.encoded.forget(run_id)
        self.refused.pop(run_id, None)
        self.outage.runs.discard(run_id)
        self._queued.pop(run_id, None)

    async def view_own(self, run_id: str) -> RunView:
        """A run to continue. SetupError if it is not one of this app."""
        view = await self.store.view(run_id)
        if view.header.app != self.app.name:
            raise SetupError(f"it was not started by the app {self.app.name!r}, which leaves it as it is")
        return view

    async def rebuild(self, view: RunView) -> StoredRun:
        """Build a run again, to continue it. SetupError if that is not possible any more."""
        prepared = await run_in_thread(lambda: self.app.rebuild(view.header))
        return await StoredRun.resume(
            self.store,
            view.header.run_id,
            prepared.engine,
            prepared.checked,
            configuration=prepared.configuration,
            keep_traces=prepared.keep_traces,
            observers=prepared.observers,
        )

    async def check_end(self, run_id: str, outcome: RunOutcome) -> None:
        """Raise the error of a run whose end is not stored: it would be continued again and again."""
        if isinstance(outcome.error, RunLockedError):
            logger.warning("%s", outcome.error)
        elif isinstance(outcome.error, Exception):
            last = await (await self.store.view(run_id)).last()
            if last is None or not isinstance(last.payload, RunCompleted):
                raise outcome.error

    def note_failure(self, run_id: str, error: Exception) -> None:
        """Log why work on a run ended before the run did. It is refused from now on, unless a next try may succeed."""
        if isinstance(error, RunLockedError | UnknownRunError):
            logger.info("the run %r is left to another process: %s", run_id, error)
        elif is_outage_of_store(error):
            self.outage.begin(error, run_id)
        else:
            is_expected = isinstance(error, PromptiterError)
            self.refused[run_id] = "; ".join(describe_refusal(error))
            logger.warning("the run %r cannot be continued: %s", run_id, error, exc_info=None if is_expected else error)

    async def _describe_queued(self, view: RunView) -> RunResult:
        run_id = view.header.run_id
        error = self.refused.get(run_id)
        if error is None:
            try:
                prepared = await run_in_thread(lambda: self.app.rebuild(view.header))
            except SetupError as problem:
                error = "; ".join(describe_refusal(problem))
            else:
                return self.keep_queued(describe_queued(run_id, prepared))
        return describe_refused(run_id, await run_in_thread(self.app.describe), error)

    async def is_worth_waiting(self, view: RunView) -> bool:
        """Whether this process may still see events of a run."""
        return not self.is_closed and await self.is_in_progress(view)

    async def is_in_progress(self, view: RunView) -> bool:
        """Whether more events of a run are to be expected, from this process or from another. Not if it was deleted."""
        run_id = view.header.run_id
        try:
            status = await self._find_status(view)
        except UnknownRunError:
            return False
        return status == "running" or (status in WAITING and not self._is_refused(run_id))

    def _is_refused(self, run_id: str) -> bool:
        return run_id in self.refused and run_id not in self.works

    async def _find_status(self, view: RunView) -> ListedStatus:
        """The status of a run. The store knows it, also if another process has taken a run that waits here."""
        work = self.works.get(view.header.run_id)
        return "running" if work is not None and work.has_begun else await view.find_status()
