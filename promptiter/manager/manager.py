"""Manager: runs in flight. It starts them in the background, and watches, cancels and resumes them.

    async with Manager(engine, store=FolderStore("runs")) as manager:
        run = await manager.start(RunRequest(train=train, validation=validation))
        async for event in manager.watch(run.run_id):
            print(event.type)
        result = await manager.get(run.run_id)

Everything about a run is in the store. If a process dies, the leases of its runs expire, and a manager with the same
store and app continues them, in this process or in another. Several managers share the work of one store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Self

from promptiter.concurrency import run_in_thread
from promptiter.engine.engine import Engine
from promptiter.engine.execution import find_rest_of_second
from promptiter.engine.request import RunRequest
from promptiter.errors import (
    ManagerClosedError,
    RunEndedError,
    RunLockedError,
    RunRefusedError,
    SetupError,
    StoreError,
    UnknownAppError,
    UnknownRunError,
    is_outage_of_store,
    nearest,
)
from promptiter.manager.app import App, Overlay, list_apps
from promptiter.manager.descriptions import describe_queued, describe_refusal
from promptiter.manager.dispatcher import Dispatcher, OnLost
from promptiter.manager.encoded_results import EncodedResult
from promptiter.manager.managed_app import ManagedApp
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunPage, RunQuery
from promptiter.runs.store import RunView, Store
from promptiter.runs.stored_run import StoredRun
from promptiter.runs.stores import prune_runs
from promptiter.wording import join_names
from traces import ExecutionTrace

logger = logging.getLogger(__name__)


class Manager:
    """Runs of one engine, or of several apps by name; at most `max_runs` at a time, the others wait in a queue.

    With one app, its name need not be given. Every `sweep_s` seconds, it looks for runs that no process works on.
    When it is closed, runs have `close_timeout_s` seconds to finish the work in progress.
    """

    def __init__(
        self,
        apps: Engine | App | Mapping[str, Engine | App] | Sequence[App],
        *,
        store: Store | None = None,
        max_runs: int = 4,
        on_lost: OnLost = "resume",
        sweep_s: float = 5.0,
        close_timeout_s: float = 30.0,
    ) -> None:
        place = MemoryStore() if store is None else store
        self._apps = {
            name: ManagedApp(app, place if isinstance(apps, Engine) else place.for_app(name), pause_s=sweep_s)
            for name, app in list_apps(apps).items()
        }
        self._dispatcher = Dispatcher(self._apps.values(), max_runs=max_runs, on_lost=on_lost, sweep_s=sweep_s)
        self._close_timeout_s = close_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def apps(self) -> Mapping[str, App]:
        """The apps by name."""
        return {name: managed.app for name, managed in self._apps.items()}

    @property
    def is_closing(self) -> bool:
        """Whether it starts no more runs."""
        return self._dispatcher.is_closing

    @property
    def problems(self) -> Mapping[str, str]:
        """Why the stores of apps cannot be used for now, by app. Their runs wait. Empty if all is well."""
        found = {name: managed.outage.error for name, managed in self._apps.items()}
        return {name: error for name, error in found.items() if error is not None}

    async def start(self, request: RunRequest | Overlay | None = None, *, app: str | None = None) -> RunResult:
        """Start a run in the background, and return its state: queued. Raises RequestError with every problem.

        The run of an engine is asked for by a RunRequest, that of a promptiter.yaml by what it changes about the file.
        """
        self._begin()
        managed = self._find(app)
        prepared = await run_in_thread(lambda: managed.app.prepare(request))
        try:
            run = await StoredRun.begin(
                managed.store,
                prepared.engine,
                prepared.checked,
                configuration=prepared.configuration,
                keep_traces=prepared.keep_traces,
                observers=prepared.observers,
                app=managed.app.name,
                overlay=prepared.overlay,
            )
        except StoreError as error:
            managed.outage.begin(error)
            raise
        if prepared.overlay is None or self._dispatcher.can_wait_here:
            self._dispatcher.launch(managed, run)
        return managed.keep_queued(describe_queued(run.run_id, prepared))

    async def get(self, run_id: str, *, app: str | None = None) -> RunResult:
        """Return the state of a run, finished or in progress. SetupError if it does not exist."""
        managed = self._find(app)
        return await managed.read_result(await managed.store.view(run_id))

    async def get_encoded(self, run_id: str, *, app: str | None = None) -> EncodedResult:
        """Return the state of a run as JSON, for many who poll it: while it is in progress, up to a second old."""
        return await self._find(app).read_encoded(run_id)

    async def find_run(self, run_id: str, *, app: str | None = None) -> None:
        """Raise UnknownRunError if a run does not exist."""
        await self._find(app).store.view(run_id)

    async def list(self, query: RunQuery | None = None, *, app: str | None = None) -> RunPage:
        """List the runs of an app, newest first, page by page."""
        return await self._find(app).list_runs(query or RunQuery())

    async def cancel(self, run_id: str, *, app: str | None = None) -> RunResult:
        """Cancel a run, whichever process works on it. Its finished rounds stay. RunEndedError if it has ended.

        From then on it cannot succeed. Another process may take a moment until it stops working on it.
        """
        managed = self._find(app)
        await managed.store.request_stop(run_id, cancel=True)
        work = managed.works.get(run_id)
        if work is None or not work.has_begun:  # otherwise its end is logged
            logger.info("%s: run %s cancelled", managed.app.name, run_id)
        if work is not None:
            work.task.cancel()
            await asyncio.wait([work.task], timeout=self._close_timeout_s)
        return await self.get(run_id, app=app)

    async def stop(self, run_id: str, *, app: str | None = None) -> RunResult:
        """Stop a run after the work in progress, whichever process works on it. RunEndedError if it has ended.

        A run that has not begun, or that no process works on, is cancelled. Either can be resumed.
        """
        managed = self._find(app)
        view = await managed.store.view(run_id)
        work = managed.works.get(run_id)
        has_begun = work is not None and work.has_begun
        if not has_begun and await view.find_holder() is None:
            return await self.cancel(run_id, app=app)
        await managed.store.request_stop(run_id)
        return await managed.read_result(view)

    async def view(self, run_id: str, *, app: str | None = None) -> RunView:
        """Return a view of a run: its header, its events and its traces."""
        return await self._find(app).store.view(run_id)

    async def prune(
        self,
        *,
        keep_days: float | None = None,
        keep_last: int | None = None,
        is_in_use: Callable[[str, str], bool] = lambda *_: False,
    ) -> tuple[str, ...]:
        """Delete runs of all apps that have ended, and return their ids; see `prune_runs`.

        Runs that are in use, by app and id, are kept.
        """
        deleted: tuple[str, ...] = ()
        for app, managed in self._apps.items():
            in_use = partial(is_in_use, app)
            ids = await prune_runs(managed.store, older_than_days=keep_days, keep_last=keep_last, is_in_use=in_use)
            for run_id in ids:
                managed.forget(run_id)
            deleted += tuple(ids)
        return deleted

    async def resume(self, run_id: str, *, app: str | None = None) -> RunResult:
        """Continue a run that was interrupted, stopped or cancelled, or that failed. RunEndedError if it succeeded.

        It is queued until it is its turn, here or in another process.

        RunRefusedError says why a run cannot be continued, such as inputs that have changed.
        """
        self._begin()
        managed = self._find(app)
        view = await managed.store.view(run_id)
        if is_finished(await view.last()):
            raise RunEndedError(run_id)
        if run_id not in managed.works:
            try:
                run = await managed.rebuild(view)
            except SetupError as error:
                if is_outage_of_store(error) or isinstance(error, RunLockedError | UnknownRunError):
                    raise
                raise RunRefusedError(run_id, describe_refusal(error)) from error
            await managed.store.request_resume(run_id)
            managed.refused.pop(run_id, None)
            self._dispatcher.launch(managed, run)
        return await managed.read_result(view)

    async def delete(self, run_id: str, *, app: str | None = None) -> None:
        """Delete a run. RunLockedError if it is in progress: cancel it first.

        No later run gets its id: a run that was created a moment ago is deleted when the second in its id is over.
        """
        managed = self._find(app)
        await asyncio.sleep(find_rest_of_second(run_id, datetime.now(UTC)))
        if run_id in managed.works:
            raise RunLockedError(f"the run {run_id!r} is in progress; cancel it first")
        await managed.store.delete(run_id)
        managed.forget(run_id)
        logger.info("%s: run %s deleted", managed.app.name, run_id)

    async def watch(self, run_id: str, *, after: int = -1, app: str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of a run as they happen, from the one after a number on, until the run ends.

        When the manager is closed, this ends, too.
        """
        managed = self._find(app)
        async with aclosing(managed.feeds.watch(await managed.store.view(run_id), after=after)) as events:
            async for event in events:
                yield event

    async def get_trace(self, run_id: str, trace_digest: str, *, app: str | None = None) -> ExecutionTrace:
        """Return a trace of a run, by the digest that its rows have. UnknownRunError if it is not kept."""
        view = await self._find(app).store.view(run_id)
        try:
            return await view.read_trace(trace_digest)
        except SetupError as error:
            raise UnknownRunError(str(error)) from error

    def count_works(self) -> Iterator[tuple[str, str, int]]:
        """The numbers of runs in this process, by app and state: running or queued."""
        for name, managed in self._apps.items():
            begun = sum(work.has_begun for work in managed.works.values())
            yield name, "running", begun
            yield name, "queued", len(managed.works) - begun

    def count_ended(self) -> Iterator[tuple[str, str, int]]:
        """The numbers of runs that ended in this process, by app and status."""
        for (name, status), count in sorted(self._dispatcher.ended.items()):
            yield name, status, count

    async def wait(self, run_id: str, *, app: str | None = None) -> RunResult:
        """Wait until a run ends, or the manager is closed, and return its result."""
        managed = self._find(app)
        view = await managed.store.view(run_id)
        while await managed.is_worth_waiting(view):
            await managed.news.wait(run_id)
        return await managed.read_result(view)

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Stop working. Runs finish the work in progress, but not for longer than this, and can be continued.

        Another call with a shorter time may end this one.
        """
        self._check_loop()
        await self._dispatcher.close(timeout_s=self._close_timeout_s if timeout_s is None else timeout_s)
        for managed in self._apps.values():
            managed.is_closed = True
            managed.news.tell_all()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self) -> None:
        """Begin to look for runs that no process works on."""
        if self.is_closing:
            raise ManagerClosedError
        self._check_loop()
        self._loop = asyncio.get_running_loop()
        self._dispatcher.begin()

    def _check_loop(self) -> None:
        """SetupError in another event loop than the one of its runs, where they would be waited for in vain."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise SetupError(
                "this manager works in another event loop, or in one that has ended; use it within one asyncio.run"
            )

    def _find(self, name: str | None) -> ManagedApp:
        self._check_loop()
        if name is None and len(self._apps) == 1:
            return next(iter(self._apps.values()))
        known = join_names(list(self._apps), limit=5)
        if name is None:
            raise SetupError(f"this manager has the apps {known}; name one: app=...")
        if name not in self._apps:
            raise UnknownAppError(f"this manager has no app {name!r}{nearest(name, self._apps) or f'; it has {known}'}")
        return self._apps[name]
