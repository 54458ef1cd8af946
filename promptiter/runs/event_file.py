"""journal.jsonl as a file of events, one per line, read as a stream.

    {"checksum":"5d1c0f3a","event":{"schema_version":2,"seq":0,"run_id":"r","round":0,"type":"run_started",…}}

A killed process leaves whole lines and at most one torn line at the end, which is dropped. The offset of every 64th
line is remembered, so that reading can start in the middle. Memory does not grow with the file.
"""

from __future__ import annotations

import os
import stat
import zlib
from array import array
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from promptiter.errors import JournalError
from promptiter.runlog.event_json import decode_event
from promptiter.runlog.events import Event

FILE_NAME = "journal.jsonl"

INDEX_EVERY = 64
"""The distance between lines whose offsets are remembered."""


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The number of whole lines in a file, their size in bytes, and the size of a torn line after them."""

    lines: int
    size: int
    torn: int = 0


class EventFile:
    """Reads the events of a run from its file, also while a process appends to it.

    `end` is where the file ended when it was last read to its end. `dropped` describes a line that a crash tore.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.end: FileEnd | None = None
        self.dropped: str | None = None
        self._offsets = array("Q")

    @property
    def name(self) -> str:
        """The file, for messages."""
        return f"the journal {str(self.path)!r}"

    def read(self, start: int = 0) -> Generator[Event]:
        """Yield the events from a sequence number on, verifying each line. JournalError if a whole line is damaged.

        Lines before `start` are verified only the first time.
        """
        with closing(self.read_raw(start)) as lines:
            for seq, raw in lines:
                yield self.decode(seq, raw)

    def read_raw(self, start: int = 0) -> Generator[tuple[int, bytes]]:
        """Yield the events from a sequence number on as `read` does, not yet decoded, each with its number."""
        torn = 0
        with self._open() as file:
            lines, size = self._seek(file, start) if file is not None else (0, 0)
            for line in file or ():
                if not line.endswith(b"\n"):
                    torn = len(line)
                    break
                self.index(lines, size)
                raw = self._verify(line, lines)
                if lines >= start:
                    yield lines, raw
                lines += 1
                size += len(line)
        self.end = FileEnd(lines, size, torn)
        if torn:
            self.dropped = (
                f"the last line of {self.name} (line {lines + 1}, {torn} bytes without a line break) was torn "
                "by a crash; the run continues from the line before it"
            )

    def last(self) -> Event | None:
        """The event of the last whole line, read from the end of the file. JournalError if that line is damaged."""
        with self._open() as file:
            line = _last_line(file) if file is not None else b""
        raw = line[_BEFORE:_AFTER]
        if line and line == format_line(raw):
            with suppress(JournalError):
                return decode_event(raw, where=self.name)
        [last] = deque(self.read(), maxlen=1) or [None]  # either there is none, or this raises for the damaged line
        return last

    def index(self, line: int, offset: int) -> None:
        """Remember the offset of every INDEX_EVERY-th line."""
        number, between = divmod(line, INDEX_EVERY)
        if not between and self._offsets[number : number + 1] != array("Q", [offset]):
            self._offsets[number:] = array("Q", [offset])

    @contextmanager
    def _open(self) -> Iterator[IO[bytes] | None]:
        """Open the file; None if it does not exist yet."""
        try:
            if not self.path.exists():
                yield None
                return
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise JournalError(f"{self.name} is not a file; give a path such as runs/my-run/{FILE_NAME}")
            with self.path.open("rb", buffering=1 << 18) as file:
                yield file
        except OSError as error:
            raise JournalError(f"{self.name} cannot be read: {error.strerror or error}") from error

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
        if line == format_line(raw):
            return raw
        keep = f"head -n {seq} {self.path} > kept && mv kept {self.path}"
        raise JournalError(
            f"line {seq + 1} of {self.name} is damaged: its checksum does not match. Restore the file from a copy, or "
            f"keep the lines before it with `{keep}` and resume: recorded answers are reused at no cost"
        )

    def decode(self, seq: int, raw: bytes) -> Event:
        """Decode an event of `read_raw`."""
        event = decode_event(raw, where=f"line {seq + 1} of {self.name}")
        if event.seq != seq:
            raise JournalError(
                f"line {seq + 1} of {self.name} holds event {event.seq}, where event {seq} belongs: lines were "
                "removed, duplicated or moved; restore the file from a copy"
            )
        return event


_BEFORE, _AFTER = len(b'{"checksum":"00000000","event":'), -len(b"}\n")


def format_line(raw: bytes) -> bytes:
    """The JSON of an event as a line with its checksum."""
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
