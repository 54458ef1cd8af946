"""StoredRun: one run in a store, ready to start or to resume.

run = await StoredRun.begin(store, engine, request)
result = await run.run()
…and after a crash: run = await StoredRun.resume(store, run_id, engine, request)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from promptiter.engine.engine import Engine
from promptiter.engine.execution import new_run_id
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.run import RunOutcome
from promptiter.engine.services import make_services
from promptiter.errors import ChangedInputsError, PromptiterError, RunLockedError
from promptiter.llm.cache.cache import Cache
from promptiter.llm.cache.layered import LayeredCache
from promptiter.references import refuse_while_importing
from promptiter.runlog.events import Observer
from promptiter.runlog.results import RunResult
from promptiter.runs.artifacts import KeepTraces, check_keep_traces
from promptiter.runs.changed_inputs import describe_changed_code, find_changed_inputs
from promptiter.runs.header import Configuration, RunHeader, build_header
from promptiter.runs.python_parts import describe_parts, describe_request
from promptiter.runs.store import OpenRun, Store
from traces import TraceError
from traces.model import Json

LOOK_S = 0.25
"""How often a run looks whether it was cancelled."""


class ResumableRun:
    """One run, ready to start or to resume. `notes` are messages that the user should see.

    Its `observers` watch every execution of it; `run` may be given more. `folder` has its files, if the store has any.

    A cache that the gateway was given is shared with other runs; answers from it are copied into the run's own.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        engine: Engine,
        checked: CheckedRequest,
        *,
        keep_traces: KeepTraces = "all",
        notes: Sequence[str] = (),
        observers: Sequence[Observer] = (),
        folder: Path | None = None,
    ) -> None:
        check_keep_traces(keep_traces)
        self.run_id = run_id
        self.folder = folder
        self.notes = list(notes)
        self._store = store
        self._engine = engine
        self._checked = checked
        self._keep_traces = keep_traces
        self._observers = tuple(observers)

    async def run(
        self,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
    ) -> RunResult:
        """Run to the end from wherever it is; see Engine.run. RunLockedError: another process is working on it."""
        outcome = await self.execute(observers=observers, interrupt=interrupt or Interrupt(), reviewer=reviewer)
        return outcome.result_or_error()

    def run_sync(
        self,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> RunResult:
        """`run` for synchronous code; see Engine.run_sync."""
        stopping = interrupt or Interrupt()
        return run_blocking(
            lambda: self.execute(observers=observers, interrupt=stopping, reviewer=reviewer), stopping, notify=notify
        ).result_or_failure()

    async def execute(
        self,
        *,
        observers: Sequence[Observer],
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
        only_waiting: bool = False,
    ) -> RunOutcome:
        """`run`, but the outcome holds the error instead of raising it.

        With `only_waiting`, RunLockedError if the run is neither queued nor interrupted any more.
        """
        async with self._store.open(self.run_id) as run, _cancelled_by(run):
            if only_waiting and not run.was_waiting:
                raise RunLockedError(f"the run {self.run_id!r} has ended, or was cancelled, while it waited here")
            interrupt.watch(run.find_stop_request)
            services = make_services(
                self._checked.evaluator,
                journal=run.journal,
                cache=self._share_answers(run),
                trace_store=run.traces,
                spent_before=await run.answers.ledger(),
                run_name=run.name,
                case_uses=self._store.case_uses,
                place=self.run_id,
                folder=self.folder,
            )
            try:
                return await self._engine.execute(
                    self._checked,
                    services,
                    observers=(*self._observers, *observers),
                    interrupt=interrupt,
                    reviewer=reviewer,
                    finish=partial(self._write_result, run),
                )
            finally:
                self.notes += [note for note in run.notes if note not in self.notes]

    def _share_answers(self, run: OpenRun) -> Cache:
        shared = self._engine.evaluator.gateway.shared_cache
        return run.answers if shared is None else LayeredCache(run.answers, shared)

    async def _write_result(self, run: OpenRun, outcome: RunOutcome) -> None:
        """Store the result. A failure is only noted: the run is paid for, and its journal holds everything.

        The run has finished, so cancelling it has no effect.
        """
        if isinstance(outcome.error, RunLockedError):  # the run belongs to another process
            return
        try:
            with suppress(asyncio.CancelledError):
                await run.write_result(outcome.result, keep_traces=self._keep_traces)
        except (OSError, TraceError, PromptiterError) as error:
            self.notes.append(f"the result could not be written to {run.name!r}: {error}; resume writes it again")


@asynccontextmanager
async def _cancelled_by(run: OpenRun) -> AsyncIterator[None]:
    """Cancel the current task once the run is cancelled, by whatever process."""
    working = asyncio.current_task()
    assert working is not None, "an event loop runs tasks"

    async def look() -> None:
        while not run.is_cancel_requested():  # noqa: ASYNC110 - a store has no event to wait for
            await asyncio.sleep(LOOK_S)
        working.cancel()

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()


class StoredRun(ResumableRun):
    """One run in a store, ready to start or to resume."""

    @classmethod
    async def begin(
        cls,
        store: Store,
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
        observers: Sequence[Observer] = (),
        app: str = "",
        overlay: Mapping[str, Json] | None = None,
    ) -> StoredRun:
        """Create a new run; SetupError if the request is invalid, or the run cannot start.

        `app` is the one that a Manager knows its engine by, and `overlay` what a request changed about it.
        """
        checked = engine.check(request)
        await engine.check_setup(checked)
        header = new_header(
            engine,
            checked,
            configuration=configuration,
            observers=observers,
            keep_traces=keep_traces,
            app=app,
            overlay=overlay,
        )
        header = await store.create(header)
        checked = checked.with_run_id(header.run_id)
        return cls(store, header.run_id, engine, checked, keep_traces=keep_traces, observers=observers)

    @classmethod
    async def resume(
        cls,
        store: Store,
        run_id: str,
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
        observers: Sequence[Observer] = (),
    ) -> StoredRun:
        """Open a run to continue where it ended; ChangedInputsError lists the inputs that changed since it began."""
        header, checked = (await store.view(run_id)).header, engine.check(request)
        notes = check_inputs(header, engine, checked, configuration=configuration, where=run_id)
        checked = checked.with_run_id(header.run_id)
        return cls(store, run_id, engine, checked, keep_traces=keep_traces, notes=notes, observers=observers)


def new_header(
    engine: Engine,
    checked: CheckedRequest,
    *,
    configuration: Configuration | None = None,
    observers: Sequence[Observer] = (),
    keep_traces: KeepTraces = "all",
    app: str = "",
    overlay: Mapping[str, Json] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> RunHeader:
    """Build the header of a new run. Without a configuration, it has the parts that Python gave it.

    Of the run of an app, whose engine is registered, only the request is kept, or what it changed about the app.
    """
    refuse_while_importing()
    check_keep_traces(keep_traces)
    created = now()
    run_id = checked.request.run_id or new_run_id(created, checked, engine.search)
    header = build_header(engine, checked, run_id=run_id, created_at=created, configuration=configuration)
    header = header.model_copy(update={"app": app, "overlay": None if overlay is None else dict(overlay)})
    if configuration is not None or overlay is not None:
        return header
    parts = (
        describe_request(engine, checked.request)
        if app
        else describe_parts(engine, checked.request, observers=observers, keep_traces=keep_traces)
    )
    return header.model_copy(update={"parts": parts})


def check_inputs(
    header: RunHeader, engine: Engine, checked: CheckedRequest, *, configuration: Configuration | None, where: str
) -> list[str]:
    """Raise ChangedInputsError if inputs of a run have changed since it began. Returns notes about smaller changes."""
    created = datetime.fromisoformat(header.created_at)
    current = build_header(engine, checked, run_id=header.run_id, created_at=created, configuration=configuration)
    if changes := find_changed_inputs(header, current):
        raise ChangedInputsError(where, changes)
    note = describe_changed_code(header, current)
    return [note] if note else []
