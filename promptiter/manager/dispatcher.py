"""Dispatcher: which runs this process works on. It gives each its turn, and takes on those that no process works on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Literal, TypeAlias, get_args

from promptiter.concurrency import Slots
from promptiter.errors import SetupError, is_outage_of_store
from promptiter.manager.descriptions import describe_end
from promptiter.manager.managed_app import ManagedApp, Work
from promptiter.manager.news import Progress
from promptiter.runs.ending import mark_failed
from promptiter.runs.run_list import ListedRun
from promptiter.runs.stored_run import StoredRun
from promptiter.wording import shorten

logger = logging.getLogger(__name__)

OnLost: TypeAlias = Literal["resume", "mark"]
"""What becomes of a run whose process died: it is resumed, or marked as failed until someone resumes it.

A run that a manager left when it was closed is always resumed.
"""

MARK = "the process that worked on it ended; resume it"
MAX_WAITING = 32
"""The most runs that wait in this process for their turn. Others wait in the store alone."""


class Dispatcher:
    """At most `max_runs` runs at a time, the others wait. Every `sweep_s` seconds it looks for runs to take on."""

    def __init__(self, apps: Collection[ManagedApp], *, max_runs: int, on_lost: OnLost, sweep_s: float) -> None:
        if max_runs < 1:
            raise SetupError(f"max_runs is {max_runs}; give at least 1")
        if on_lost not in get_args(OnLost):
            raise SetupError(f"on_lost is {shorten(on_lost)}; give 'resume' or 'mark'")
        self.ended: Counter[tuple[str, str]] = Counter()
        self._apps = apps
        self._slots = Slots(max_runs)
        self._max_runs = max_runs
        self._on_lost = on_lost
        self._sweep_s = sweep_s
        self._sweeping: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self.is_closing = False

    @property
    def can_wait_here(self) -> bool:
        """Whether one more run may wait in this process."""
        return self._count_works() < self._max_runs + MAX_WAITING

    def begin(self) -> None:
        """Begin to look for runs that no process works on."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._keep_sweeping())

    def launch(self, managed: ManagedApp, run: StoredRun) -> None:
        """Work on a run in the background, when it is its turn. Not twice, if it was taken on meanwhile."""
        if self.is_closing or run.run_id in managed.works:  # when closing, it stays in the store, for the next manager
            return

        def forget(_: asyncio.Task[None]) -> None:
            del managed.works[run.run_id]
            managed.news.forget(run.run_id)
            self._has_room.set()

        task = asyncio.create_task(self._work(managed, run), name=f"run {run.run_id}")
        managed.works[run.run_id] = Work(task)
        task.add_done_callback(forget)  # also if it is cancelled before it begins

    async def close(self, *, timeout_s: float) -> None:
        """Take on no more runs. Those in progress have this long to finish their work, and can be continued."""
        self.is_closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        works = [work for managed in self._apps for work in managed.works.values()]
        for work in works:
            work.interrupt.hand_over("the manager is closing")
            if not work.has_begun:
                work.task.cancel()
        if works:
            _, late = await asyncio.wait([work.task for work in works], timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _keep_sweeping(self) -> None:
        while True:
            self._has_room.clear()
            try:
                await self._sweep()
            except Exception:
                logger.exception("looking for runs to continue failed; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_s):
                    await self._has_room.wait()

    async def _sweep(self) -> None:
        """Continue, or mark, the runs that no process works on, oldest first."""
        if self._on_lost == "resume" and self._count_works() >= self._max_runs:
            return
        lost: list[tuple[ListedRun, ManagedApp]] = []
        for managed in self._apps:
            lost += [(run, managed) for run in await managed.find_lost()]
        for run, managed in sorted(lost, key=lambda each: (each[0].created_at, each[0].run_id)):
            is_marked = self._on_lost == "mark" and run.status == "interrupted" and run.is_abandoned
            if (is_marked or self._count_works() < self._max_runs) and run.run_id not in managed.works:
                await self._take(managed, run.run_id, is_marked=is_marked)

    async def _take(self, managed: ManagedApp, run_id: str, *, is_marked: bool) -> None:
        """Continue, or mark, a run that no process works on. If that fails, it is not tried again."""
        try:
            view = await managed.view_own(run_id)
            if is_marked:
                await mark_failed(managed.store, run_id, MARK)
            else:
                self.launch(managed, await managed.rebuild(view))
        except Exception as error:  # noqa: BLE001 - it is logged there
            if run_id not in managed.works:  # otherwise someone started or resumed it meanwhile
                managed.note_failure(run_id, error)

    async def _work(self, managed: ManagedApp, run: StoredRun) -> None:
        """Work on a run when it is its turn, until it ends or is handed over. It may have ended elsewhere by then."""
        work = managed.works[run.run_id]
        try:
            async with self._slots:
                work.has_begun = True
                progress = Progress(managed.app.name, managed.outage)
                outcome = await run.execute(
                    observers=(managed.news, progress), interrupt=work.interrupt, only_waiting=True
                )
                if not is_outage_of_store(outcome.error):  # it has not ended: it waits for its store
                    logger.info("%s: run %s %s", managed.app.name, run.run_id, describe_end(outcome.result))
                if outcome.result.is_final:
                    self.ended[managed.app.name, outcome.result.status] += 1
            await managed.check_end(run.run_id, outcome)
        except Exception as error:  # noqa: BLE001 - it is logged there
            managed.note_failure(run.run_id, error)

    def _count_works(self) -> int:
        return sum(len(managed.works) for managed in self._apps)
