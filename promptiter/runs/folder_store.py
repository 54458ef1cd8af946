"""FolderStore: a store in a folder, with one folder per run.

runs/.case_uses.jsonl   the uses of cases by all runs (see case_use_file)
runs/<run-id>/
  run.json          its inputs; written once
  journal.jsonl     its events, from which all of its state follows
  calls.jsonl       the answers of models and tools
  traces/           the traces of all case runs, by digest
  result.json, …    its result (see artifacts)
  stop              touch it to stop the run after the work in progress
  cancel            touch it to cancel the run at once
  queued            the run is to be resumed, if it still has this number of events
  optimize.stop     touch it to end the search after the current round; the final test follows
  lock              the process that is working on it
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from promptiter.concurrency import run_in_thread
from promptiter.errors import PromptiterError, RunEndedError, SetupError, UnknownRunError
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import CallLog, read_account
from promptiter.llm.ledger import NOTHING, LedgerSnapshot
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import RunResult
from promptiter.runs.app_names import check_app_name
from promptiter.runs.artifacts import KeepTraces, write_artifacts
from promptiter.runs.case_use_file import CaseUseFile
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import RunHeader, read_header, write_header
from promptiter.runs.lock import FILE_NAME as LOCK
from promptiter.runs.lock import LEASE_S, Holder, RunLock, find_holder
from promptiter.runs.run_list import (
    WAITING,
    ListedRun,
    ListedStatus,
    RunPage,
    RunQuery,
    check_ended,
    describe_run,
    find_status,
    number_id,
    take_page,
)
from traces import ExecutionTrace
from traces.files import write_file

STOP, CANCEL, QUEUED = "stop", "cancel", "queued"


class FolderStore:
    """Runs in a folder, one folder each, named after the run. Several machines may share it.

    Within one machine a lease ends with its process. Other machines may take over a run once its lease has expired.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        lease_s: float = LEASE_S,
        now: Callable[[], float] = time.time,
        machine: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.case_uses = CaseUseFile(folder)
        self._lease_s = lease_s
        self._now = now
        self._machine = machine

    def for_app(self, name: str) -> FolderStore:
        return FolderStore(
            self.folder / check_app_name(name), lease_s=self._lease_s, now=self._now, machine=self._machine
        )

    async def create(self, header: RunHeader) -> RunHeader:
        path = await run_in_thread(lambda: create_run_folder(self.folder, header))
        return header.model_copy(update={"run_id": path.name})

    async def list_ids(self) -> list[str]:
        return await run_in_thread(lambda: sorted(path.parent.name for path in self.folder.glob(f"*/{HEADER}")))

    async def list_runs(self, query: RunQuery) -> RunPage:
        def read() -> RunPage:
            names = (name for name in _list_folders(self.folder) if query.cursor is None or name < query.cursor)
            paths = (self.folder / name for name in sorted(names, reverse=True) if query.text in name)
            return take_page((read_run(path) for path in paths if (path / HEADER).is_file()), query)

        return await run_in_thread(read)

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator[FolderRun]:
        path = await run_in_thread(lambda: self._find(run_id))
        lock = RunLock(path, lease_s=self._lease_s, now=self._now, machine=self._machine)
        stack = ExitStack()
        stack.callback(lock.release)
        try:
            await run_in_thread(lock.acquire)
            yield await run_in_thread(lambda: _open_files(path, lock, stack))
        finally:
            await run_in_thread(stack.close)

    async def view(self, run_id: str) -> FolderView:
        path = await run_in_thread(lambda: self._find(run_id))
        return FolderView(path, await run_in_thread(lambda: read_header(path)), TraceFile(path / TRACES))

    async def request_stop(self, run_id: str, *, cancel: bool = False) -> None:
        def touch() -> None:
            path = self._find(run_id)
            if cancel and is_finished(EventFile(path / JOURNAL).last()):
                raise RunEndedError(run_id)
            (path / (CANCEL if cancel else STOP)).touch()

        await run_in_thread(touch)

    async def request_resume(self, run_id: str) -> None:
        def queue() -> None:
            path = self._find(run_id)
            last = EventFile(path / JOURNAL).last()
            if is_finished(last):
                raise RunEndedError(run_id)
            write_file(path / QUEUED, _count_events(last))
            (path / CANCEL).unlink(missing_ok=True)

        await run_in_thread(queue)

    async def delete(self, run_id: str, *, only_ended: bool = False) -> None:
        def remove() -> None:
            path = self._find(run_id)
            with RunLock(path, lease_s=self._lease_s, now=self._now, machine=self._machine):
                if only_ended:
                    check_ended(run_id, _find_status(path, read_header(path), is_held=False))
                (path / HEADER).unlink()  # from here on it is not a run
                shutil.rmtree(path, ignore_errors=True)

        await run_in_thread(remove)

    def _find(self, run_id: str) -> Path:
        path = self.folder / run_id
        try:
            is_run = Path(run_id).name == run_id and (path / HEADER).is_file()
        except OSError as error:  # such as a name that is too long
            raise UnknownRunError(f"{str(path)!r} is not a run: {error.strerror or error}") from error
        if not is_run:
            raise UnknownRunError(f"{str(path)!r} is not a run: it has no {HEADER}")
        return path


@dataclass(frozen=True, slots=True)
class FolderRun:
    """A run whose folder this process has locked."""

    path: Path
    journal: FileJournal
    answers: CallLog
    traces: FileTraceStore
    lock: RunLock
    was_waiting: bool
    is_without_answers: bool

    @property
    def name(self) -> str:
        return str(self.path.absolute())

    @property
    def notes(self) -> Sequence[str]:
        lost = (
            f"{str(self.path / CALLS)!r} is missing: answers that are not in the journal are paid for again"
            if self.is_without_answers
            else None
        )
        return [note for note in (lost, self.journal.dropped) if note]

    def find_stop_request(self) -> str | None:
        return f"a file {STOP!r} in the run's folder" if (self.path / STOP).exists() else None

    def is_cancel_requested(self) -> bool:
        return (self.path / CANCEL).exists()

    async def write_result(self, result: RunResult, *, keep_traces: KeepTraces) -> None:
        def write() -> None:
            self.lock.renew()  # raises if another process took over the run
            if not _is_queued(self.path, EventFile(self.path / JOURNAL).last()):
                (self.path / QUEUED).unlink(missing_ok=True)
            write_artifacts(self.path, result, keep_traces=keep_traces)

        await run_in_thread(write)


@dataclass(frozen=True, slots=True)
class FolderView:
    """A run in its folder, for reading."""

    path: Path
    header: RunHeader
    traces: TraceFile

    def read(self, start: int = 0) -> AsyncIterator[Event]:
        return FileJournal(self.path / JOURNAL).read(start)

    async def last(self) -> Event | None:
        return await FileJournal(self.path / JOURNAL).last()

    def reader(self) -> EventFile:
        return EventFile(self.path / JOURNAL)

    async def read_trace(self, trace_digest: str) -> ExecutionTrace:
        return await run_in_thread(lambda: self.traces.get(trace_digest))

    async def read_ledger(self) -> LedgerSnapshot:
        return await run_in_thread(lambda: read_ledger(self.path))

    async def find_status(self) -> ListedStatus:
        def find() -> ListedStatus:
            if not (self.path / HEADER).is_file():
                raise UnknownRunError(f"the run {str(self.path)!r} was deleted")
            return _find_status(self.path, self.header, is_held=find_holder(self.path) is not None)

        return await run_in_thread(find)

    async def find_holder(self) -> Holder | None:
        return await run_in_thread(lambda: find_holder(self.path))

    async def is_cancel_requested(self) -> bool:
        return await run_in_thread((self.path / CANCEL).exists)


def _list_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder. It does not look into them, which takes longer than all the rest."""
    try:
        with os.scandir(folder) as found:
            return [each.name for each in found if each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def create_run_folder(folder: str | os.PathLike[str], header: RunHeader) -> Path:
    """Create the folder of a run, named after it. A second run with this id gets a number."""
    path, number = Path(folder) / header.run_id, 1
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = Path(folder) / number_id(header.run_id, number)
        except OSError as error:
            raise SetupError(f"runs: {str(path)!r} cannot be created: {error.strerror or error}") from error
        else:
            write_header(path, header.model_copy(update={"run_id": path.name}))  # this makes the folder a run
            return path


def read_ledger(path: Path) -> LedgerSnapshot:
    """What a run has spent so far, from its recorded calls."""
    return read_account(path / CALLS) if (path / CALLS).exists() else LedgerSnapshot()


def read_run(path: Path) -> ListedRun:
    """What a list shows of the run in a folder."""
    try:
        return _read_run(path)
    except PromptiterError as error:
        return ListedRun(run_id=path.name, path=path, status="unreadable", error=str(error))


def _read_run(path: Path) -> ListedRun:
    header, holder, last = read_header(path), find_holder(path), EventFile(path / JOURNAL).last()
    has_ended = last is not None and isinstance(last.payload, RunCompleted) and holder is None
    listed = describe_run(
        header,
        last,
        spent=NOTHING if has_ended else read_ledger(path).total,
        holder=holder,
        is_cancelled=(path / CANCEL).exists(),
        is_queued=_is_queued(path, last),
    )
    return listed._replace(run_id=path.name, path=path, is_abandoned=holder is None and (path / LOCK).exists())


def _find_status(path: Path, header: RunHeader, *, is_held: bool) -> ListedStatus:
    last = EventFile(path / JOURNAL).last()
    is_cancelled, is_queued = (path / CANCEL).exists(), _is_queued(path, last)
    return find_status(header, last, is_held=is_held, is_cancelled=is_cancelled, is_queued=is_queued)


def _is_queued(path: Path, last: Event | None) -> bool:
    """Whether a run with this last event is to be resumed. A request from before that event was followed."""
    try:
        return (path / QUEUED).read_bytes() == _count_events(last)
    except FileNotFoundError:
        return False


def _count_events(last: Event | None) -> bytes:
    return b"%d\n" % (0 if last is None else last.seq + 1)


def _open_files(path: Path, lock: RunLock, stack: ExitStack) -> FolderRun:
    """Open the files of a locked run. Removes partial files of a killed process, and a stop request."""
    for file in path.rglob(".*.part"):
        file.unlink()
    with suppress(IsADirectoryError):
        (path / STOP).unlink(missing_ok=True)
    was_waiting = _find_status(path, read_header(path), is_held=False) in WAITING
    is_without_answers = (path / JOURNAL).exists() and not (path / CALLS).exists()
    answers = stack.enter_context(closing(CallLog(path / CALLS)))
    traces = FileTraceStore(path / TRACES)
    before_sync = (answers.sync, traces.sync)
    journal = stack.enter_context(
        FileJournal(path / JOURNAL, before_sync=before_sync, lock=lock, is_cancelled=(path / CANCEL).exists)
    )
    return FolderRun(
        path=path,
        journal=journal,
        answers=answers,
        traces=traces,
        lock=lock,
        was_waiting=was_waiting,
        is_without_answers=is_without_answers,
    )
