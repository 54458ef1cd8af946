"""journal.jsonl: the events of a run, one per line, so that a run can resume after being killed at any moment.

    {"checksum":"5d1c0f3a","event":{"schema_version":2,"seq":0,"run_id":"r","round":0,"type":"run_started",…}}

Each line is a single append: a killed process leaves whole lines and at most one torn line at the end, which is
dropped. Nothing is rewritten, so the last event of a long run costs as much as the first, and the file is read as a
stream, in constant memory. The offset of every 64th line is remembered, so that reading can start in the middle.
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

from promptiter.concurrency import finish_before_cancel
from promptiter.errors import JournalError
from promptiter.runlog.events import SCHEMA_VERSION, Event
from promptiter.runs.lock import RunLock
from traces.model import holds_non_finite

FILE_NAME = "journal.jsonl"

DECISIONS: frozenset[str] = frozenset(("decision", "round_completed", "run_completed", "stop"))
"""The file is synced to disk after these events, so that they survive a power failure."""

INDEX_EVERY = 64
"""The distance between lines whose offsets are remembered."""


class FileJournal:
    """The journal of one run. One process appends (`lock` ensures that); any number may read at the same time.

    The file is synced after events of the types in `fsync`. `dropped` describes a line that a crash tore, once the
    journal was read or appended to: that line is skipped, and removed before the next one is written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Collection[str] = DECISIONS,
        lock: RunLock | None = None,
    ) -> None:
        self.path = Path(path)
        self.dropped: str | None = None
        self._fsync = frozenset(fsync)
        self._lock = lock
        self._end: _End | None = None
        self._file: int | None = None
        self._offsets = array("Q")

    async def append(self, event: Event) -> None:
        """Append one line. JournalError if it could not be written; the file then ends where it did before."""
        if self._lock is not None:
            self._lock.renew()
        line = _as_line(self._encode(event))
        file, end = self._open_for_append()
        if event.seq != end.lines:
            raise JournalError(
                f"{self._name} has {end.lines} events, and the next to append has number {event.seq}: "
                "the run does not continue where its journal ends; resume it"
            )
        self._index(end.lines, end.size)
        try:
            self._write(file, line)
            self._end = _End(end.lines + 1, end.size + len(line))
            if event.type in self._fsync:
                await finish_before_cancel(asyncio.to_thread(os.fsync, file))
        except OSError as error:
            self._end = end
            with suppress(OSError):
                os.ftruncate(file, end.size)
            raise self._write_error(f"event {event.seq} ({event.type})", error) from error

    def read(self, start: int = 0) -> Iterator[Event]:
        """Yield the events from a sequence number on, verifying each line. JournalError if a whole line is damaged.

        Lines before `start` are verified only the first time.
        """
        torn = 0
        with self._open_for_reading() as file:
            lines, size = self._seek(file, start) if file is not None else (0, 0)
            for line in file or ():
                if not line.endswith(b"\n"):
                    torn = len(line)
                    break
                self._index(lines, size)
                raw = self._verify(line, lines)
                if lines >= start:
                    yield self._decode(raw, lines)
                lines += 1
                size += len(line)
        if self._file is None:  # an open file has its own, newer end
            self._end = _End(lines, size, torn)
            if torn:
                self.dropped = (
                    f"the last line of {self._name} (line {lines + 1}, {torn} bytes without a line break) was torn "
                    "by a crash; the run continues from the line before it"
                )

    def last(self) -> Event | None:
        """The event of the last whole line, read from the end of the file. JournalError if that line is damaged."""
        with self._open_for_reading() as file:
            line = _last_line(file) if file is not None else b""
        raw = line[_BEFORE:_AFTER]
        with suppress(ValidationError):
            if line == _as_line(raw) and (event := _event(raw)).schema_version == SCHEMA_VERSION:
                return event
        [last] = deque(self.read(), maxlen=1) or [None]  # either there is none, or this raises for the damaged line
        return last

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

    @property
    def _name(self) -> str:
        return f"the journal {str(self.path)!r}"

    def _open_for_append(self) -> tuple[int, _End]:
        """The open file and its end. JournalError if the file was removed or changed by another process."""
        if self._file is None:
            try:
                self._open()
            except OSError as error:
                raise self._write_error("an event", error) from error
        assert self._file is not None
        assert self._end is not None
        if not (status := os.fstat(self._file)).st_nlink:
            raise JournalError(f"{self._name} was removed while the run was writing it; the run cannot continue")
        if (size := status.st_size) != self._end.size:
            raise JournalError(
                f"{self._name} was changed by another process: it has {size} bytes, and this run wrote "
                f"{self._end.size}; make sure that only one process works on the run, then resume it"
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
        """Write one line. After a partial write the next attempt raises the cause."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]

    @contextmanager
    def _open_for_reading(self) -> Iterator[IO[bytes] | None]:
        """Open the file; None if it does not exist yet."""
        try:
            if not self.path.exists():
                yield None
                return
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise JournalError(f"{self._name} is not a file; give a path such as runs/my-run/{FILE_NAME}")
            with self.path.open("rb", buffering=1 << 18) as file:
                yield file
        except OSError as error:
            raise JournalError(f"{self._name} cannot be read: {error.strerror or error}") from error

    def _index(self, line: int, offset: int) -> None:
        """Remember the offset of every INDEX_EVERY-th line."""
        number, between = divmod(line, INDEX_EVERY)
        if not between and self._offsets[number : number + 1] != array("Q", [offset]):
            self._offsets[number:] = array("Q", [offset])

    def _seek(self, file: IO[bytes], start: int) -> tuple[int, int]:
        """Seek to the last indexed line at or before `start`; return its number and offset."""
        number = min(start // INDEX_EVERY, len(self._offsets) - 1)
        if number > 0:
            file.seek(self._offsets[number] - 1)
            if file.read(1) == b"\n":
                return number * INDEX_EVERY, self._offsets[number]
            file.seek(0)  # the file was replaced
        return 0, 0

    def _verify(self, line: bytes, seq: int) -> bytes:
        """The event in a line, after verifying its checksum."""
        raw = line[_BEFORE:_AFTER]
        if line == _as_line(raw):
            return raw
        keep = f"head -n {seq} {self.path} > kept && mv kept {self.path}"
        raise JournalError(
            f"line {seq + 1} of {self._name} is damaged: its checksum does not match. Restore the file from a copy, or "
            f"keep the lines before it with `{keep}` and resume: recorded answers are reused at no cost"
        )

    def _decode(self, raw: bytes, seq: int) -> Event:
        try:
            event = _event(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self._version_error(raw, seq, problem) from error
        if event.schema_version != SCHEMA_VERSION:
            raise self._version_error(raw, seq, "another version")
        if event.seq != seq:
            raise JournalError(
                f"line {seq + 1} of {self._name} holds event {event.seq}, where event {seq} belongs: lines were "
                "removed, duplicated or moved; restore the file from a copy"
            )
        return event

    def _version_error(self, raw: bytes, seq: int, problem: str) -> JournalError:
        fields = json.loads(raw)
        version = fields.get("schema_version") if isinstance(fields, dict) else None
        if version != SCHEMA_VERSION:
            problem = f"its schema_version is {version!r}, this release reads {SCHEMA_VERSION}"
        return JournalError(f"line {seq + 1} of {self._name} was written by another release of promptiter ({problem})")

    def _encode(self, event: Event) -> bytes:
        fields = {name: getattr(event, name) for name in Event.model_fields} | {"measured": dict(event.measured)}
        if event.request is None:
            del fields["request"]
        try:
            raw = orjson.dumps(fields)
            if b"null" not in raw or not holds_non_finite(event.data):
                return raw
            problem = "it holds a NaN or infinite number"
        except orjson.JSONEncodeError as error:
            problem = str(error)
            with suppress(TypeError, ValueError):
                # A lone surrogate and integers beyond 64 bits are valid JSON too, and survive the round trip.
                raw = json.dumps(fields, allow_nan=False).encode()
                if json.loads(raw) == fields:
                    return raw
        raise JournalError(
            f"event {event.seq} ({event.type}) cannot be stored as JSON: {problem}; record plain JSON values"
        )

    def _write_error(self, what: str, error: OSError) -> JournalError:
        return JournalError(
            f"{what} could not be written to {self._name}: {error.strerror or error}; free some space or fix the disk, "
            "then resume the run: everything finished so far is kept"
        )


@dataclass(frozen=True, slots=True)
class _End:
    """The number of whole lines in a file, their size in bytes, and the size of a torn line after them."""

    lines: int
    size: int
    torn: int = 0


_BEFORE, _AFTER = len(b'{"checksum":"00000000","event":'), -len(b"}\n")


def _as_line(raw: bytes) -> bytes:
    return b'{"checksum":"%08x","event":%b}\n' % (zlib.crc32(raw), raw)


def _last_line(file: IO[bytes]) -> bytes:
    """The last whole line, read backwards from the end in growing chunks; empty if there is none."""
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
    """Sync the directory entries of a new file and its folder, so that they survive a power failure."""
    for folder in (path.absolute().parent, path.absolute().parent.parent):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
