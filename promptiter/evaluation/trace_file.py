"""TraceFile: traces in one file, a gzip of JSON lines, which other tools can read, too.

Each trace is a gzip member of its own. Its header has the digest of the trace and the size of the member, so a trace is
found without reading the others. New traces are appended, which is cheap, and a crash can damage only the last one.
What is damaged is skipped.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import weakref
import zlib
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, TypeAlias

from promptiter.errors import SetupError
from traces import ExecutionTrace, TraceError
from traces.documents import from_json
from traces.files import write_atomically

FILE_NAME = "traces.jsonl.gz"

_Place: TypeAlias = tuple[int, int]
"""Where a member is: its offset and its size."""

_MAGIC = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x28\x00PT\x24\x00"
"""The start of a member: gzip with one extra field, PT, of 36 bytes."""

_FIELD = struct.Struct("<32sI")
"""The extra field: the digest of the trace and the size of the member."""

_HEADER_SIZE = len(_MAGIC) + _FIELD.size
_TRAILER = struct.Struct("<II")
_CHUNK = 1 << 20

_LEVEL = 3
"""How hard zlib tries: half the time of its default, and files that are a tenth larger."""

_SMALL_WINDOW = 12
"""The window, as a power of 2, of a trace that fits in it: zlib has less memory to clear."""


class TraceFile:
    """The traces of a file, by digest, for blocking code. Without a path it is a temporary file.

    Safe to use from several threads. One process writes; others may read meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._places: dict[bytes, int] = {}  # a number takes a third of the memory of a _Place
        self._end = 0
        self._own_start: int | None = None  # where the traces of this process begin, once there is one
        self._lock = threading.Lock()

    def write(self, name: str, raw: bytes) -> None:
        """Add a trace: its digest, and its JSON."""
        key = bytes.fromhex(name)
        member = _pack(key, raw + b"\n")
        with self._lock:
            try:
                if self._own_start is None:
                    self._begin_writing()
                start = self._append(member)
            except OSError as error:
                raise SetupError(f"{self._named} cannot be written: {error.strerror or error}") from error
            self._places[key] = _pack_place(start, len(member))

    def get(self, name: str) -> ExecutionTrace:
        """The trace with this digest. SetupError if there is none, or if it is damaged."""
        try:
            with self._lock:
                return from_json(self._read(name))
        except KeyError:
            problem: object = "there is no such trace"
        except (OSError, zlib.error, TraceError) as error:
            problem = getattr(error, "strerror", None) or error
        raise SetupError(f"the trace {name[:12]}… in {self._named} cannot be read: {problem}")

    def __contains__(self, name: str) -> bool:
        """Whether a trace is stored completely. A power failure may have damaged one of an earlier process."""
        with self._lock:
            if self._own_start is not None:
                packed = self._places.get(_to_key(name))
                if packed is None or _unpack_place(packed)[0] >= self._own_start:
                    return packed is not None
            try:
                return bool(self._read(name))
            except (OSError, KeyError, zlib.error):
                return False

    def sync(self) -> None:
        """Make new traces survive a power failure."""
        if self._own_start is not None:
            os.fsync(self._file.fileno())

    def read_members(self, names: Collection[str]) -> Iterator[bytes]:
        """The compressed traces of these digests, in the order of the file."""
        self._catch_up()
        wanted = {bytes.fromhex(name) for name in names}
        found = (packed for digest, packed in self._places.items() if digest in wanted)
        yield from (self._read_place(_unpack_place(packed)) for packed in found)

    @property
    def _named(self) -> str:
        return "the temporary file of traces" if self._path is None else str(self._path)

    @cached_property
    def _file(self) -> IO[bytes]:
        file = self._open()
        weakref.finalize(self, file.close)
        return file

    def _open(self) -> IO[bytes]:
        """Open the file. A temporary one has no name, so it is gone with the process."""
        if self._path is None:
            return tempfile.TemporaryFile("a+b", prefix="promptiter-traces-", buffering=0)
        return self._path.open("rb" if self._own_start is None else "a+b", buffering=0)

    def _begin_writing(self) -> None:
        """Open the file for appending, and remove its last member if a crash left it incomplete."""
        self._catch_up()
        self._own_start = self._end
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            vars(self).pop("_file", None)  # it is open for reading only
        self._file.truncate(self._end)

    def _append(self, member: bytes) -> int:
        """Write a member and return where it starts: at the end of the file, even if another process has appended."""
        left = memoryview(member)
        self._file.seek(0, os.SEEK_END)  # a temporary file does not append by itself
        while left:
            left = left[self._file.write(left) :]
        return self._file.tell() - len(member)

    def _read(self, name: str) -> bytes:
        member = self._read_place(self._find(name))
        return zlib.decompress(member, wbits=zlib.MAX_WBITS | 16)

    def _find(self, name: str) -> _Place:
        key = _to_key(name)
        if key not in self._places and self._own_start is None:
            self._catch_up()
        return _unpack_place(self._places[key])

    def _read_place(self, place: _Place) -> bytes:
        self._file.seek(place[0])
        return self._file.read(place[1])

    def _catch_up(self) -> None:
        """Find the members that were added since the last time."""
        if self._path is not None and not self._path.exists():
            return
        size = self._file.seek(0, os.SEEK_END)
        while self._end + _HEADER_SIZE <= size:
            magic, (digest, length) = self._read_header(self._end)
            if magic == _MAGIC and _HEADER_SIZE < length <= size - self._end:
                self._places[digest] = _pack_place(self._end, length)
                self._end += length
            elif (found := self._find_magic(self._end + 1)) is not None:  # it is damaged
                self._end = found
            else:  # it is being written, or a crash cut it off
                return

    def _read_header(self, start: int) -> tuple[bytes, tuple[bytes, int]]:
        header = self._read_place((start, _HEADER_SIZE))
        return header[: len(_MAGIC)], _FIELD.unpack_from(header, len(_MAGIC))

    def _find_magic(self, start: int) -> int | None:
        """Find the next member after a damaged one."""
        while chunk := self._read_place((start, _CHUNK)):
            if (at := chunk.find(_MAGIC)) >= 0:
                return start + at
            start += max(1, len(chunk) - len(_MAGIC) + 1)
        return None


def keep_only(path: str | os.PathLike[str], names: Collection[str]) -> None:
    """Remove all other traces from a file that no process writes to."""
    if not names:
        Path(path).unlink(missing_ok=True)
    elif Path(path).exists():
        with write_atomically(path, is_compressed=True) as file:
            file.writelines(TraceFile(path).read_members(names))


def _to_key(name: str) -> bytes:
    """The digest of a trace as bytes; for any other name, a key that matches no trace."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""


def _pack_place(start: int, size: int) -> int:
    return start << 32 | size


def _unpack_place(packed: int) -> _Place:
    return packed >> 32, packed & 0xFFFFFFFF


def _pack(digest: bytes, raw: bytes) -> bytes:
    """Compress a trace as a gzip member with its digest and size."""
    is_small = len(raw) < 1 << _SMALL_WINDOW
    window, memory = (_SMALL_WINDOW, 5) if is_small else (zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -window, memory)
    body = packer.compress(raw) + packer.flush()
    size = _HEADER_SIZE + len(body) + _TRAILER.size
    return b"".join((_MAGIC, _FIELD.pack(digest, size), body, _TRAILER.pack(zlib.crc32(raw), len(raw) & 0xFFFFFFFF)))
