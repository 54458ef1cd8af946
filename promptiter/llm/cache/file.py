"""A cache in a file of JSON lines."""

from __future__ import annotations

import io
import logging
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.llm.cache.index import CacheIndex, LinePlace
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer, decode_answer, encode_answer
from promptiter.llm.cache.lines import format_line, is_intact, read_key
from promptiter.llm.cache.storage import NoAccount, explain_errors, run_in_worker, write_error

INDEX_BATCH = 4_000
"""How many lines are indexed at once."""

logger = logging.getLogger(__name__)


class FileCache(NoAccount):
    """A cache in JSON lines. Several processes of one machine may share the file; each opens it itself.

    A line is written at once, under a lock, with a checksum in its first field. A line that a crash left incomplete is
    cut off at the next write. Lines of other processes are read when a key is not found. An index on disk knows where
    each answer is, so memory does not grow with the number of answers. A cache that is not closed is
    closed with its last reference, or at the end of the process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.name == "nt":
            raise SetupError(f"{os.fspath(path)!r}: a .jsonl cache does not work on Windows; use .sqlite")
        self._path = Path(path)
        self._seen = 0  # all lines before this offset are indexed
        self._hits = 0
        with explain_errors(self._path):
            self._file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), "r+")
        self._index = CacheIndex()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cache")
        self._close_files = weakref.finalize(self, _close_files, self._index, self._file)

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        raw_key = bytes.fromhex(key.digest)
        place = self._index.get(raw_key)
        if place is None and os.fstat(self._file.fileno()).st_size != self._seen:
            await run_in_worker(self._worker, self._catch_up)
            place = self._index.get(raw_key)
        if place is None:
            return None
        self._hits += 1
        return self._read(place)

    async def _put(self, key: CacheKey, answer: StoredAnswer) -> StoredAnswer:
        body = encode_answer(key, answer)
        return self._read(await run_in_worker(self._worker, lambda: self._store(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await run_in_worker(self._worker, self._sync)

    def stats(self) -> CacheStats:
        self._worker.submit(self._catch_up).result()
        return CacheStats(entries=len(self._index), hits=self._hits, bytes=self._seen)

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._close_files()

    def _read(self, place: LinePlace) -> StoredAnswer:
        return decode_answer(self._line(place))

    def _line(self, place: LinePlace) -> bytes:
        offset, length = place
        with explain_errors(self._path):
            line = os.pread(self._file.fileno(), length, offset)
        if not is_intact(line):
            raise SetupError(f"{str(self._path)!r} was changed at byte {offset} while in use; run again")
        return line

    def _store(self, raw_key: bytes, body: bytes, *, note: bytes | None = None) -> LinePlace:
        """Write an answer, or only the note if the key has one already. Returns the place of the answer."""
        with self._locked(exclusive=True):
            self._read_tail()
            place = self._index.get(raw_key)
            if place is None:
                place = self._append(body)
                self._index.add([(raw_key, *place)])
            elif note is not None:
                self._append(note)
            return place

    def _append(self, body: bytes) -> LinePlace:
        """Write a line. The caller holds the lock and has read all lines."""
        self._cut_incomplete_line()
        line, start = format_line(body), self._seen
        try:
            rest = memoryview(line)
            while rest:  # after a partial write, the next one raises the reason
                rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise write_error(self._path, error.strerror or str(error)) from error
        self._seen += len(line)
        return start, len(line)

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_error(self._path, error.strerror or str(error)) from error

    def _catch_up(self) -> None:
        with self._locked(exclusive=False):
            self._read_tail()

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        import fcntl  # not on Windows

        with explain_errors(self._path):
            fcntl.flock(self._file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read_tail(self) -> None:
        """Index the lines that were added since. The caller holds the lock, so a line without an end is incomplete."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._seen:
            raise SetupError(f"{str(self._path)!r} was cut from {self._seen} to {size} bytes while in use; run again")
        found: list[tuple[bytes, int, int]] = []
        end = self._seen
        for start, line in self._lines(self._seen, size):
            if not is_intact(line):
                logger.warning("%s: the line at byte %d is damaged; its call will be made again", self._path, start)
            elif raw_key := read_key(line, path=self._path):
                found.append((raw_key, start, len(line)))
            end = start + len(line)
            if len(found) == INDEX_BATCH:
                self._index.add(found)
                self._seen = end
                found.clear()
        self._index.add(found)
        self._seen = end  # last: `get` assumes that everything before it is indexed

    def _lines(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The complete lines between two offsets, each with its offset. Runs in the worker's thread."""
        if start >= end:
            return
        reader = io.BufferedReader(self._file, 1 << 20)
        try:
            reader.seek(start)
            for line in reader:
                if start >= end or not line.endswith(b"\n"):
                    break
                yield start, line
                start += len(line)
        finally:
            reader.detach()

    def _cut_incomplete_line(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size > self._seen:
            logger.warning("%s: removed the last %d bytes, an incomplete line", self._path, size - self._seen)
            os.ftruncate(self._file.fileno(), self._seen)


def _close_files(index: CacheIndex, file: io.FileIO) -> None:
    index.close()
    file.close()
