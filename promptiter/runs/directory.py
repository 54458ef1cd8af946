"""RunDirectory: a run that survives. All it does is in its folder before it is used, so it can be killed anywhere.

runs/<run-id>/
  run.json          what was asked for; written once
  journal.jsonl     the events; they alone are the state
  calls.jsonl       the answers of models and tools
  traces/           the traces of all runs, by digest
  forecast.json     its forecast
  result.json, …    what came of it (see artifacts)
  stop              touch it, and the run stops after the round in flight
  lock              who works on it, as long as somebody does

    run = RunDirectory.begin("runs", engine, request)
    result = run.run_sync()
    …and after a crash: RunDirectory.resume("runs/2026-…", engine, request).run_sync()
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from promptiter.engine.engine import Engine, new_run_id
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.request_checks import check_request
from promptiter.engine.review import Reviewer
from promptiter.engine.run import RunOutcome
from promptiter.errors import ChangedInputsError, RunLockedError, SetupError
from promptiter.evaluation.trace_store import TraceStore
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import CallLog
from promptiter.runlog.event_log import finish_before_cancel
from promptiter.runlog.events import Event, Observer
from promptiter.runlog.results import RunRequest, RunResult
from promptiter.runs.artifacts import KeepTraces, write_artifacts
from promptiter.runs.file_journal import DECISIONS, FileJournal
from promptiter.runs.file_journal import FILE_NAME as JOURNAL
from promptiter.runs.header import Configuration, changed_code, differences, header_of, read_header, write_header
from promptiter.runs.lock import RunLock
from traces import TraceError

TRACES, STOP = "traces", "stop"

logger = logging.getLogger(__name__)


class RunDirectory:
    """One run, ready to start or to go on. `notes` are what a person should know of how it was kept.

    An engine's cache is shared with other runs, unless it is one in memory: answers are copied into this run's own.
    """

    def __init__(
        self, path: str | os.PathLike[str], engine: Engine, request: RunRequest, *, keep_traces: KeepTraces = "all"
    ) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._engine = engine
        self._request = request
        self._keep_traces = keep_traces

    @classmethod
    def begin(
        cls,
        runs: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> RunDirectory:
        """A new run in a folder of its own below `runs`; RequestError if it cannot be served."""
        checked = check_request(request, engine.describe(), engine.evaluator)
        created = now()
        path = _own_folder(Path(runs), request.run_id or new_run_id(created, request, checked))
        if configuration is not None:
            file = os.path.relpath(Path(configuration.file).resolve(), path.resolve())
            configuration = configuration.model_copy(update={"file": file})
        header = header_of(engine, request, run_id=path.name, created_at=created, configuration=configuration)
        write_header(path, header)  # last: from here on the folder is a run
        return cls(path, engine, replace(request, run_id=header.run_id), keep_traces=keep_traces)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
    ) -> RunDirectory:
        """A run that goes on where it was; ChangedInputsError says what is not as it was when it began."""
        header = read_header(path)
        now = header_of(
            engine,
            request,
            run_id=header.run_id,
            created_at=datetime.fromisoformat(header.created_at),
            configuration=configuration,
        )
        if changes := differences(header, now):
            raise ChangedInputsError(os.fspath(path), changes)
        run = cls(path, engine, replace(request, run_id=header.run_id), keep_traces=keep_traces)
        run.notes += [note for note in (changed_code(header, now), _lost_answers(run.path)) if note]
        return run

    @property
    def journal(self) -> FileJournal:
        """The journal, to read in."""
        return FileJournal(self.path / JOURNAL)

    async def run(
        self,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
    ) -> RunResult:
        """Run to the end, from wherever it is; see Engine.run. RunLockedError: another process works on it."""
        ended = await self.execute(observers=observers, interrupt=interrupt or Interrupt(), reviewer=reviewer)
        return ended.result_or_error()

    def run_sync(
        self,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> RunResult:
        """The same from synchronous code; see Engine.run_sync."""
        stopping = interrupt or Interrupt()
        return run_blocking(
            lambda: self.execute(observers=observers, interrupt=stopping, reviewer=reviewer), stopping, notify=notify
        ).result_or_failure()

    async def execute(
        self, *, observers: Sequence[Observer], interrupt: Interrupt, reviewer: Reviewer | None = None
    ) -> RunOutcome:
        """The same, with its error instead of an exception."""
        with RunLock(self.path) as lock, self._kept(lock) as kept:
            interrupt.watch(self.path / STOP)
            spent_before = kept.calls.ledger()
            if (budget := self._engine.evaluator.gateway.budget) is not None:
                budget.charge(spent_before.of_models, of=str(self.path.absolute()))
            ended = await self._engine.execute(
                self._request,
                observers=observers,
                journal=kept,
                interrupt=interrupt,
                reviewer=reviewer,
                spent_before=spent_before,
            )
            if not isinstance(ended.error, RunLockedError):  # the files are another process's then
                await _to_its_end(lambda: self._write(ended.result))
        return ended

    @contextmanager
    def _kept(self, lock: RunLock) -> Iterator[_Kept]:
        """The files of the run, open, with the engine writing into them."""
        self._tidy()
        gateway, evaluator = self._engine.evaluator.gateway, self._engine.evaluator
        cache, trace_store = gateway.cache, evaluator.trace_store
        if isinstance(cache, CallLog):
            raise SetupError(
                "another run of this engine is under way; give each run an engine and a gateway of its own"
            )
        shared = None if isinstance(cache, MemoryCache) else cache
        with (
            closing(CallLog(self.path / CALLS, shared=shared)) as calls,
            FileJournal(self.path / JOURNAL, lock=lock) as journal,
        ):
            kept = _Kept(journal, calls, TraceStore(self.path / TRACES, durable=True))
            gateway.cache, evaluator.trace_store = calls, kept.traces
            try:
                yield kept
            finally:
                gateway.cache, evaluator.trace_store = cache, trace_store
                if journal.dropped:
                    self.notes.append(journal.dropped)

    def _tidy(self) -> None:
        """Remove what a killed process left half written, and a wish to stop that has been fulfilled."""
        for file in self.path.rglob(".*.part"):
            file.unlink()
        with suppress(IsADirectoryError):
            (self.path / STOP).unlink(missing_ok=True)

    def _write(self, result: RunResult) -> None:
        """The run was paid for and its journal has it all: files that cannot be written do not make it fail."""
        try:
            write_artifacts(self.path, result, keep_traces=self._keep_traces)
        except (OSError, TraceError) as error:
            self.notes.append(f"the result could not be written to {str(self.path)!r}: {error}; resume writes it again")


@dataclass(frozen=True, slots=True)
class _Kept:
    """The journal of a run, before whose decisions all that they rest on is made to survive a loss of power."""

    journal: FileJournal
    calls: CallLog
    traces: TraceStore

    async def append(self, event: Event) -> None:
        if event.type in DECISIONS:
            await self.calls.sync()
            await asyncio.to_thread(self.traces.sync)
        await self.journal.append(event)

    def read(self, start: int = 0) -> Iterator[Event]:
        return self.journal.read(start)

    def last(self) -> Event | None:
        return self.journal.last()


def _lost_answers(path: Path) -> str | None:
    if (path / CALLS).exists() or not (path / JOURNAL).exists():
        return None
    return f"{str(path / CALLS)!r} is gone: answers that the journal does not hold are paid again"


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Make sure that runs can be written there, before anything is spent on one; SetupError if not."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise SetupError(f"runs: {str(path)!r} cannot be used: {str(there)!r} {why}; choose another folder")


def _own_folder(folder: Path, run_id: str) -> Path:
    """A new folder with the run's name; a second run of that name, which began in the same second, gets a number."""
    path, number = folder / run_id, 1
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = folder / f"{run_id}~{number}"
        except OSError as error:
            raise SetupError(f"runs: {str(path)!r} cannot be made: {error.strerror or error}") from error
        else:
            return path


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do something in a thread that nobody may cut short; the run has ended, so a cancellation changes nothing."""
    with suppress(asyncio.CancelledError):
        await finish_before_cancel(asyncio.to_thread(work))
