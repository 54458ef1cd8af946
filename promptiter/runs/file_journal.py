"""FileJournal: appends the events of a run to journal.jsonl, so that it can resume after being killed at any moment.

Each line is a single append, and nothing is rewritten, so the last event of a long run costs as much as the first.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Self

from promptiter.concurrency import run_in_thread
from promptiter.errors import JournalError
from promptiter.runlog.event_json import encode_event
from promptiter.runlog.events import Event
from promptiter.runlog.journal import DECISIONS
from promptiter.runlog.payloads import RunCompleted
from promptiter.runs.event_file import EventFile, FileEnd, format_line
from promptiter.runs.lock import RunLock
from promptiter.runs.run_list import check_not_cancelled

READ_AHEAD = 128
"""How many lines are read at once, in a thread. They are decoded one by one, when they are needed."""


class FileJournal:
    """The journal of one run. One process appends (`lock` ensures that); any number may read at the same time.

    The file is synced after events of the types in `fsync`. The calls of `before_sync`, made before such an event is
    written, sync what it rests on. `dropped` describes a line that a crash tore, once the journal was read or appended
    to: that line is skipped, and removed before the next one is written. A run that `is_cancelled` cannot succeed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Collection[str] = DECISIONS,
        before_sync: Sequence[Callable[[], Awaitable[None]]] = (),
        lock: RunLock | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = Path(path)
        self._events = EventFile(path)
        self._fsync = frozenset(fsync)
        self._before_sync = tuple(before_sync)
        self._lock = lock
        self._is_cancelled = is_cancelled
        self._file: int | None = None
        self._end = FileEnd(0, 0)  # of the open file

    @property
    def dropped(self) -> str | None:
        return self._events.dropped

    async def append(self, event: Event) -> None:
        """Append one line. JournalError if it could not be written; the file then ends where it did before."""
        if event.type in self._fsync:
            for sync in self._before_sync:
                await sync()
        if self._lock is not None and self._lock.is_due:
            await run_in_thread(self._lock.renew)
        line = format_line(encode_event(event))
        file, end = await self._open_for_append()
        if event.seq != end.lines:
            raise JournalError(
                f"{self._events.name} has {end.lines} events, and the next to append has number {event.seq}: "
                "the run does not continue where its journal ends; resume it"
            )
        if event.type == RunCompleted.event_type:
            check_not_cancelled(event, is_cancelled=self._is_cancelled())
        self._events.index(end.lines, end.size)
        try:
            self._write(file, line)
            self._end = FileEnd(end.lines + 1, end.size + len(line))
            if event.type in self._fsync:
                await run_in_thread(lambda: os.fsync(file))
        except OSError as error:
            self._end = end
            with suppress(OSError):
                os.ftruncate(file, end.size)
            raise self._write_error(f"event {event.seq} ({event.type})", error) from error

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        """Yield the events from a sequence number on; see EventFile.read."""
        with closing(self._events.read_raw(start)) as lines:
            while batch := await run_in_thread(lambda: list(islice(lines, READ_AHEAD))):
                for seq, raw in batch:
                    yield self._events.decode(seq, raw)

    async def last(self) -> Event | None:
        return await run_in_thread(self._events.last)

    def reader(self) -> EventFile:
        return self._events

    def close(self) -> None:
        """Sync the file to disk and close it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self._fsync:
                os.fsync(file)
        except OSError as error:
            raise self._write_error("the end", error) from error
        finally:
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open_for_append(self) -> tuple[int, FileEnd]:
        """The open file and its end. JournalError if the file was removed or changed by another process."""
        if self._file is None:
            try:
                await self._open()
            except OSError as error:
                raise self._write_error("an event", error) from error
        assert self._file is not None
        if not (status := os.fstat(self._file)).st_nlink:
            raise JournalError(f"{self._events.name} was removed while the run was writing it; the run cannot continue")
        if (size := status.st_size) != self._end.size:
            raise JournalError(
                f"{self._events.name} was changed by another process: it has {size} bytes, and this run wrote "
                f"{self._end.size}; make sure that only one process works on the run, then resume it"
            )
        return self._file, self._end

    async def _open(self) -> None:
        is_new = not self.path.exists()
        end = FileEnd(0, 0) if is_new else await self._find_end()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if end.torn:
                os.ftruncate(file, end.size)
            if is_new and self._fsync:
                _sync_names(self.path)
        except OSError:
            os.close(file)
            raise
        self._file, self._end = file, FileEnd(end.lines, end.size)

    async def _find_end(self) -> FileEnd:
        """Where the file ends. It is read unless it was read before and has not changed."""
        known = self._events.end
        if known is None or self.path.stat().st_size != known.size + known.torn:
            async for _ in self.read():
                pass
        assert self._events.end is not None
        return self._events.end

    def _write(self, file: int, line: bytes) -> None:
        """Write one line. After a partial write the next attempt raises the cause."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]

    def _write_error(self, what: str, error: OSError) -> JournalError:
        return JournalError(
            f"{what} could not be written to {self._events.name}: {error.strerror or error}; free some space or fix "
            "the disk, then resume the run: everything finished so far is kept"
        )


def _sync_names(path: Path) -> None:
    """Sync the directory entries of a new file and its folder, so that they survive a power failure."""
    for folder in (path.absolute().parent, path.absolute().parent.parent):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
