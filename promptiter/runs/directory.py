"""RunDirectory: a durable run. Everything is stored in its folder before it is used, so a run survives being killed.

runs/<run-id>/
  run.json          its inputs; written once
  journal.jsonl     its events, from which all of its state follows
  calls.jsonl       the answers of models and tools
  traces/           the traces of all case runs, by digest
  forecast.json     its forecast
  result.json, …    its result (see artifacts)
  stop              touch it to stop the run after the current round
  lock              the process that is working on it

    run = RunDirectory.begin("runs", engine, request)
    result = run.run_sync()
    …and after a crash: RunDirectory.resume("runs/2026-…", engine, request).run_sync()
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from promptiter.concurrency import finish_before_cancel, run_in_thread
from promptiter.engine.engine import Engine, new_run_id
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.run import RunOutcome
from promptiter.engine.services import RunServices, make_services
from promptiter.errors import ChangedInputsError, RunLockedError, SetupError
from promptiter.evaluation.trace_store import FolderTraceStore
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import CallLog
from promptiter.llm.cache.layered import LayeredCache
from promptiter.runlog.events import Event, Observer
from promptiter.runlog.journal import DECISIONS, EventReader
from promptiter.runlog.results import RunRequest, RunResult
from promptiter.runs.artifacts import KeepTraces, write_artifacts
from promptiter.runs.changed_inputs import describe_changed_code, find_changed_inputs
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.header import Configuration, build_header, read_header, write_header
from promptiter.runs.lock import RunLock
from traces import TraceError

TRACES, STOP = "traces", "stop"

logger = logging.getLogger(__name__)


class RunDirectory:
    """One run, ready to start or to resume. `notes` are messages about its files that the user should see.

    A cache on disk is shared with other runs; answers from it are copied into the run's own.
    """

    def __init__(
        self, path: str | os.PathLike[str], engine: Engine, checked: CheckedRequest, *, keep_traces: KeepTraces = "all"
    ) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._engine = engine
        self._checked = checked
        self._keep_traces = keep_traces

    @classmethod
    def begin(
        cls,
        runs: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> RunDirectory:
        """Create a new run in its own folder below `runs`; RequestError if the request is invalid."""
        checked, created = engine.check(request), now()
        path = _create_folder(Path(runs), checked.request.run_id or new_run_id(created, checked))
        if configuration is not None:
            file = os.path.relpath(Path(configuration.file).resolve(), path.resolve())
            configuration = configuration.model_copy(update={"file": file})
        header = build_header(engine, checked, run_id=path.name, created_at=created, configuration=configuration)
        write_header(path, header)  # last: this makes the folder a run
        return cls(path, engine, checked.with_run_id(header.run_id), keep_traces=keep_traces)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
    ) -> RunDirectory:
        """Load a run to continue where it ended; ChangedInputsError lists the inputs that changed since it began."""
        header, checked = read_header(path), engine.check(request)
        current = build_header(
            engine,
            checked,
            run_id=header.run_id,
            created_at=datetime.fromisoformat(header.created_at),
            configuration=configuration,
        )
        if changes := find_changed_inputs(header, current):
            raise ChangedInputsError(os.fspath(path), changes)
        run = cls(path, engine, checked.with_run_id(header.run_id), keep_traces=keep_traces)
        run.notes += [
            note for note in (describe_changed_code(header, current), _describe_lost_answers(run.path)) if note
        ]
        return run

    @property
    def journal(self) -> EventFile:
        """The journal, for reading."""
        return EventFile(self.path / JOURNAL)

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
        self, *, observers: Sequence[Observer], interrupt: Interrupt, reviewer: Reviewer | None = None
    ) -> RunOutcome:
        """`run`, but the outcome holds the error instead of raising it."""
        with RunLock(self.path) as lock:
            async with self._open_services(lock) as services:
                interrupt.watch(self.path / STOP)
                outcome = await self._engine.execute(
                    self._checked, services, observers=observers, interrupt=interrupt, reviewer=reviewer
                )
                if not isinstance(outcome.error, RunLockedError):  # otherwise the files belong to another process
                    await _finish_in_thread(lambda: self._write(outcome.result))
        return outcome

    @asynccontextmanager
    async def _open_services(self, lock: RunLock) -> AsyncIterator[RunServices]:
        """Open the files of the run."""
        self._clean_up()
        shared = self._engine.evaluator.gateway.shared_cache
        with (
            closing(CallLog(self.path / CALLS)) as calls,
            FileJournal(self.path / JOURNAL, lock=lock) as journal,
        ):
            traces = FolderTraceStore(self.path / TRACES, durable=True)
            try:
                yield make_services(
                    self._checked.evaluator,
                    journal=_DurableJournal(journal, calls, traces),
                    cache=calls if shared is None else LayeredCache(calls, shared),
                    trace_store=traces,
                    spent_before=await calls.ledger(),
                    run_name=str(self.path.absolute()),
                )
            finally:
                if journal.dropped:
                    self.notes.append(journal.dropped)

    def _clean_up(self) -> None:
        """Remove partial files of a killed process, and the stop request that ended it."""
        for file in self.path.rglob(".*.part"):
            file.unlink()
        with suppress(IsADirectoryError):
            (self.path / STOP).unlink(missing_ok=True)

    def _write(self, result: RunResult) -> None:
        """Write the result. A failure is only noted: the run is paid for, and its journal holds everything."""
        try:
            write_artifacts(self.path, result, keep_traces=self._keep_traces)
        except (OSError, TraceError) as error:
            self.notes.append(f"the result could not be written to {str(self.path)!r}: {error}; resume writes it again")


@dataclass(frozen=True, slots=True)
class _DurableJournal:
    """The journal of a run. Before a decision is written, the answers and traces behind it are synced to disk."""

    journal: FileJournal
    calls: CallLog
    traces: FolderTraceStore

    async def append(self, event: Event) -> None:
        if event.type in DECISIONS:
            await self.calls.sync()
            await self.traces.sync()
        await self.journal.append(event)

    def read(self, start: int = 0) -> AsyncIterator[Event]:
        return self.journal.read(start)

    async def last(self) -> Event | None:
        return await self.journal.last()

    def reader(self) -> EventReader:
        return self.journal.reader()


def _describe_lost_answers(path: Path) -> str | None:
    if (path / CALLS).exists() or not (path / JOURNAL).exists():
        return None
    return f"{str(path / CALLS)!r} is missing: answers that are not in the journal are paid for again"


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Check that runs can be written there before anything is spent; SetupError if not."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable" if there.is_dir() else "is a file"
        raise SetupError(f"runs: {str(path)!r} cannot be used: {str(there)!r} {why}; choose another folder")


def _create_folder(folder: Path, run_id: str) -> Path:
    """Create a folder named after the run; a second run that began in the same second gets a number."""
    path, number = folder / run_id, 1
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = folder / f"{run_id}~{number}"
        except OSError as error:
            raise SetupError(f"runs: {str(path)!r} cannot be created: {error.strerror or error}") from error
        else:
            return path


async def _finish_in_thread(work: Callable[[], None]) -> None:
    """Do the work in a thread, to its end: the run has finished, so cancelling it has no effect."""
    with suppress(asyncio.CancelledError):
        await finish_before_cancel(run_in_thread(work))
