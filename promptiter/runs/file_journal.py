"""journal.jsonl: the events of a run in a file, a line each, so that a run can be killed anywhere and goes on.

    {"checksum":"5d1c0f3a","event":{"schema_version":2,"seq":0,"run_id":"r","round":0,"type":"run_started",…}}

A line is one write at the end of the file: a killed process leaves whole lines, and at most a torn one behind them,
which is dropped. Nothing is rewritten, so the last event of a long run costs as much as its first; and the file is
read as a stream, so a long run needs no more memory than a short one. Whoever reads from the middle on gets there by
a jump: of every 64th line it is known where it begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import orjson
from pydantic import ValidationError

from promptiter.errors import JournalError
from promptiter.runlog.event_log import finish_before_cancel
from promptiter.runlog.events import SCHEMA_VERSION, Event, EventType
from promptiter.runs.lock import RunLock
from traces.model import holds_non_finite

FILE_NAME = "journal.jsonl"

DECISIONS: frozenset[EventType] = frozenset(("decision", "round_completed", "run_completed", "stop"))
"""After these, what was written so far survives a loss of power too."""

MARKED = 64
"""Where each line of such a number begins is remembered."""


class FileJournal:
    """The journal of one run. One process appends (`lock` sees to that); any may read, also at the same time.

    `fsync` are the types of events at which the disk is waited for. `dropped` says, once all was read or an event was
    appended, what a crash tore: that line is left out, and cut off before the next one is written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Collection[EventType] = DECISIONS,
        lock: RunLock | None = None,
    ) -> None:
        self.path = Path(path)
        self.dropped: str | None = None
        self._fsync = frozenset(fsync)
        self._lock = lock
        self._end: _End | None = None
        self._file: int | None = None
        self._marks = array("Q")

    async def append(self, event: Event) -> None:
        """Write one line. JournalError: it could not be written, and the file ends where it did before."""
        if self._lock is not None:
            self._lock.renew()
        line = _as_line(self._encoded(event))
        file, end = self._opened()
        if event.seq != end.lines:
            raise JournalError(
                f"{self._named} has {end.lines} events, and the next to append has number {event.seq}: "
                "the run does not go on where its journal ends; resume it"
            )
        self._mark(end.lines, end.size)
        try:
            self._write(file, line)
            self._end = _End(end.lines + 1, end.size + len(line))
            if event.type in self._fsync:
                await finish_before_cancel(asyncio.to_thread(os.fsync, file))
        except OSError as error:
            self._end = end
            with suppress(OSError):
                os.ftruncate(file, end.size)
            raise self._unwritten(f"event {event.seq} ({event.type})", error) from error

    def read(self, start: int = 0) -> Iterator[Event]:
        """The events from a sequence number on, each line checked. JournalError: a whole line is damaged.

        Lines before `start` that were checked once are not checked again.
        """
        torn = 0
        with self._reading() as file:
            lines, size = self._place(file, start) if file is not None else (0, 0)
            for line in file or ():
                if not line.endswith(b"\n"):
                    torn = len(line)
                    break
                self._mark(lines, size)
                raw = self._checked(line, lines)
                if lines >= start:
                    yield self._decoded(raw, lines)
                lines += 1
                size += len(line)
        if self._file is None:  # who appends knows better
            self._end = _End(lines, size, torn)
            if torn:
                self.dropped = (
                    f"the last line of {self._named} (line {lines + 1}, {torn} bytes without an end) was torn "
                    "by a crash; the run goes on before it"
                )

    def last(self) -> Event | None:
        """The event of the last whole line, found from the end of the file. JournalError: that line is damaged."""
        with self._reading() as file:
            line = _last_line(file) if file is not None else b""
        raw = line[_BEFORE:_AFTER]
        with suppress(ValidationError):
            if line == _as_line(raw) and (event := _event(raw)).schema_version == SCHEMA_VERSION:
                return event
        [last] = deque(self.read(), maxlen=1) or [None]  # there is none; or this says which line is wrong, and how
        return last

    def close(self) -> None:
        """Make all that was written survive a loss of power too, and let go of the file."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self._fsync:
                os.fsync(file)
        except OSError as error:
            raise self._unwritten("the end", error) from error
        finally:
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _named(self) -> str:
        return f"the journal {str(self.path)!r}"

    def _opened(self) -> tuple[int, _End]:
        """The file, ready for the next line, and where that goes."""
        if self._file is None:
            try:
                self._open()
            except OSError as error:
                raise self._unwritten("an event", error) from error
        assert self._file is not None
        assert self._end is not None
        if not (found := os.fstat(self._file)).st_nlink:
            raise JournalError(f"{self._named} was removed while the run was writing it; the run cannot go on")
        if (size := found.st_size) != self._end.size:
            raise JournalError(
                f"{self._named} was changed by somebody else: it has {size} bytes, and this run wrote "
                f"{self._end.size}; let one process work on a run, then resume it"
            )
        return self._file, self._end

    def _open(self) -> None:
        is_new = not self.path.exists()
        if is_new or self._end is None or self.path.stat().st_size != self._end.size + self._end.torn:
            for _ in self.read():
                pass
        end = self._end
        assert end is not None
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if end.torn:
                os.ftruncate(file, end.size)
            if is_new and self._fsync:
                _sync_names(self.path)
        except OSError:
            os.close(file)
            raise
        self._file, self._end = file, _End(end.lines, end.size)

    def _write(self, file: int, line: bytes) -> None:
        """One write. If only a part fitted, the next says why the rest did not."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]

    @contextmanager
    def _reading(self) -> Iterator[IO[bytes] | None]:
        """The open file; None if there is none yet."""
        try:
            if not self.path.exists():
                yield None
                return
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise JournalError(f"{self._named} is no file; give a path such as runs/my-run/{FILE_NAME}")
            with self.path.open("rb", buffering=1 << 18) as file:
                yield file
        except OSError as error:
            raise JournalError(f"{self._named} cannot be read: {error.strerror or error}") from error

    def _mark(self, line: int, offset: int) -> None:
        """Remember where a line begins, if it is one of those."""
        number, between = divmod(line, MARKED)
        if not between and self._marks[number : number + 1] != array("Q", [offset]):
            self._marks[number:] = array("Q", [offset])

    def _place(self, file: IO[bytes], start: int) -> tuple[int, int]:
        """Jump to the last marked line that is not behind `start`; its number, and where it begins."""
        number = min(start // MARKED, len(self._marks) - 1)
        if number > 0:
            file.seek(self._marks[number] - 1)
            if file.read(1) == b"\n":
                return number * MARKED, self._marks[number]
            file.seek(0)  # somebody put another file there
        return 0, 0

    def _checked(self, line: bytes, seq: int) -> bytes:
        """The event inside a line that is as it was written."""
        raw = line[_BEFORE:_AFTER]
        if line == _as_line(raw):
            return raw
        keep = f"head -n {seq} {self.path} > kept && mv kept {self.path}"
        raise JournalError(
            f"line {seq + 1} of {self._named} is damaged: its checksum does not fit. Bring the file back from a copy; "
            f"or keep the lines before it with `{keep}` and resume: known answers are not paid again"
        )

    def _decoded(self, raw: bytes, seq: int) -> Event:
        try:
            event = _event(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self._foreign(raw, seq, told) from error
        if event.schema_version != SCHEMA_VERSION:
            raise self._foreign(raw, seq, "another version")
        if event.seq != seq:
            raise JournalError(
                f"line {seq + 1} of {self._named} holds event {event.seq}, where event {seq} belongs: lines were "
                "removed, doubled or moved; bring the file back from a copy"
            )
        return event

    def _foreign(self, raw: bytes, seq: int, told: str) -> JournalError:
        fields = json.loads(raw)
        version = fields.get("schema_version") if isinstance(fields, dict) else None
        if version != SCHEMA_VERSION:
            told = f"its schema_version is {version!r}, this release reads {SCHEMA_VERSION}"
        return JournalError(f"line {seq + 1} of {self._named} was written by another release of promptiter ({told})")

    def _encoded(self, event: Event) -> bytes:
        fields = dict(event)
        try:
            raw = orjson.dumps(fields)
            if b"null" not in raw or not holds_non_finite(event.data):
                return raw
            told = "it holds a NaN or infinite number"
        except orjson.JSONEncodeError as error:
            told = str(error)
            with suppress(TypeError, ValueError):
                # Half an emoji and integers beyond 64 bits are JSON too, and come back as they were.
                raw = json.dumps(fields, allow_nan=False).encode()
                if json.loads(raw) == fields:
                    return raw
        raise JournalError(f"event {event.seq} ({event.type}) cannot be kept as JSON: {told}; record plain JSON values")

    def _unwritten(self, what: str, error: OSError) -> JournalError:
        return JournalError(
            f"{what} could not be written to {self._named}: {error.strerror or error}; make room, or mend what is "
            "wrong with the disk, and resume the run: all that was finished before is kept"
        )


@dataclass(frozen=True, slots=True)
class _End:
    """How many whole lines a file has, where they end, and how many bytes of a torn one follow."""

    lines: int
    size: int
    torn: int = 0


_BEFORE, _AFTER = len(b'{"checksum":"00000000","event":'), -len(b"}\n")


def _as_line(raw: bytes) -> bytes:
    return b'{"checksum":"%08x","event":%b}\n' % (zlib.crc32(raw), raw)


def _last_line(file: IO[bytes]) -> bytes:
    """The last line that has an end, read from behind in growing pieces; nothing if there is none."""
    start, tail, length = file.seek(0, os.SEEK_END), b"", 1 << 14
    while start:
        end, start, length = start, max(0, start - length), 2 * length
        file.seek(start)
        tail = file.read(end - start) + tail
        after = tail.rfind(b"\n") + 1
        before = tail.rfind(b"\n", 0, max(0, after - 1)) + 1
        if after and (before or not start):
            return tail[before:after]
    return b""


def _event(raw: bytes) -> Event:
    try:
        return Event.model_validate_json(raw)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
    return Event.model_validate(json.loads(raw))


def _sync_names(path: Path) -> None:
    """Make the name of a new file, and of its folder, survive a loss of power."""
    for folder in (path.absolute().parent, path.absolute().parent.parent):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
