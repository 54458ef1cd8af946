"""RunDirectory: a run in a folder. Everything is stored there before it is used, so a run survives being killed.

run = RunDirectory.begin("runs", engine, request)
result = run.run_sync()
…and after a crash: RunDirectory.resume("runs/2026-…", engine, request).run_sync()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from promptiter.concurrency import run_in_thread
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.run import RunOutcome
from promptiter.errors import RunLockedError, SetupError
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Observer
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.results import RunResult
from promptiter.runs.artifacts import KeepTraces, drop_all_but_best
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.folder_store import CANCEL, FolderStore, create_run_folder
from promptiter.runs.header import Configuration, read_header
from promptiter.runs.lock import find_holder
from promptiter.runs.store import OpenRun
from promptiter.runs.stored_run import ResumableRun, check_inputs, new_header
from traces.model import Json

TEST_NOW = "optimize.stop"
"""Touch this file in the folder of a run to end its search after the current round. The final test follows."""


class RunDirectory(ResumableRun):
    """One run in its folder, ready to start or to resume. It is created and opened by synchronous code."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: Engine,
        checked: CheckedRequest,
        *,
        keep_traces: KeepTraces = "all",
        keep_best_only: bool = False,
        notes: Sequence[str] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self.path = Path(path)
        named = self.path if self.path.name not in ("", "..") else self.path.resolve()
        super().__init__(
            FolderStore(named.parent),
            named.name,
            engine,
            checked,
            keep_traces=keep_traces,
            notes=notes,
            observers=observers,
            folder=self.path,
        )
        self._keep_best_only = keep_best_only

    @classmethod
    def begin(
        cls,
        runs: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        overlay: Mapping[str, Json] | None = None,
        keep_traces: KeepTraces = "all",
        keep_best_only: bool = False,
        observers: Sequence[Observer] = (),
    ) -> RunDirectory:
        """Create a new run in its own folder below `runs`; SetupError if the request is invalid or it cannot start.

        With `keep_best_only`, the folder of the finished run is thinned: see `drop_all_but_best`.

        `notes` of the run lists parts without a name: with these, `promptiter resume` cannot continue it.
        """
        checked = engine.check(request)
        run_blocking(lambda: engine.check_setup(checked), Interrupt())
        header = new_header(
            engine,
            checked,
            configuration=configuration,
            observers=observers,
            keep_traces=keep_traces,
            overlay=overlay,
        )
        path = create_run_folder(runs, header)
        checked = checked.with_run_id(path.name)
        return cls(
            path,
            engine,
            checked,
            keep_traces=keep_traces,
            keep_best_only=keep_best_only,
            notes=header.notes,
            observers=observers,
        )

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        engine: Engine,
        request: RunRequest | CheckedRequest,
        *,
        configuration: Configuration | None = None,
        keep_traces: KeepTraces = "all",
        keep_best_only: bool = False,
        observers: Sequence[Observer] = (),
    ) -> RunDirectory:
        """Open a run to continue where it ended; ChangedInputsError lists the inputs that changed since it began.

        If it was cancelled, that is withdrawn.
        """
        header, checked = read_header(path), engine.check(request)
        notes = check_inputs(header, engine, checked, configuration=configuration, where=os.fspath(path))
        if find_holder(Path(path)) is None:
            (Path(path) / CANCEL).unlink(missing_ok=True)
        checked = checked.with_run_id(header.run_id)
        return cls(
            path,
            engine,
            checked,
            keep_traces=keep_traces,
            keep_best_only=keep_best_only,
            notes=notes,
            observers=observers,
        )

    async def execute(
        self,
        *,
        observers: Sequence[Observer],
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
        only_waiting: bool = False,
    ) -> RunOutcome:
        """`run`, but the outcome holds the error instead of raising it. The file TEST_NOW ends the search."""
        interrupt.end_search_when((self.path / TEST_NOW).exists)
        return await super().execute(
            observers=observers, interrupt=interrupt, reviewer=reviewer, only_waiting=only_waiting
        )

    async def _write_result(self, run: OpenRun, outcome: RunOutcome) -> None:
        """Store the result and the report. The report comes first: it shows traces that may not be kept."""
        if isinstance(outcome.error, RunLockedError):  # the run belongs to another process
            return
        result = outcome.result
        with suppress(asyncio.CancelledError):
            await run_in_thread(lambda: self._write_report(result))
        await super()._write_result(run, outcome)
        if self._keep_best_only and result.is_final:
            with suppress(OSError):  # what is left over does no harm
                drop_all_but_best(self.path, result)

    def _write_report(self, result: RunResult) -> None:
        from promptiter.runs.report.files import write_report

        try:
            write_report(self.path, result)
        except Exception as error:  # noqa: BLE001 - the run is paid for, and its report can be written again
            self.notes.append(
                f"the report could not be written ({type(error).__name__}: {error}); `promptiter report` tries it again"
            )

    @property
    def journal(self) -> EventFile:
        """The journal, for reading."""
        return EventFile(self.path / JOURNAL)


def read_finished_run(folder: str | os.PathLike[str]) -> RunResult | None:
    """The result of a run that cannot be continued, from its folder alone; None if it can."""
    journal = EventFile(Path(folder) / JOURNAL)
    return fold_lazily(journal) if is_finished(journal.last()) else None


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Check that runs can be written there before anything is spent; SetupError if not."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable" if there.is_dir() else "is a file"
        raise SetupError(f"runs: {str(path)!r} cannot be used: {str(there)!r} {why}; choose another folder")
