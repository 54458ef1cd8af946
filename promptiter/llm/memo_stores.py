"""Memos that outlive their process: JSON lines (`calls.jsonl` of a run), and an SQLite database for many runs."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from promptiter.errors import SetupError
from promptiter.llm.answers import (
    SCHEMA_VERSION,
    MemoKey,
    MemoStats,
    StoredAnswer,
    decode_answer,
    encode_answer,
)
from promptiter.llm.ledger import LedgerEntry
from promptiter.llm.memo_index import MemoIndex, Place
from promptiter.llm.memo_lines import as_line, is_sound, key_in, other_version
from traces.model import Json

T = TypeVar("T")
SUFFIXES = (".jsonl", ".sqlite", ".db")
"""What the name of a memo ends in: lines, or a database."""
BUSY_TIMEOUT_S = 30.0
"""So long a database that another process holds is waited for."""
AT_ONCE = 4_000
"""So many lines of a file are indexed together."""

logger = logging.getLogger(__name__)


class NoAccount:
    """The part of a Memo that only the log of a run has: what calls cost, and when they were made."""

    def asking(self, key: MemoKey, *, model: str, node_id: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()

    async def note_paid(self, key: MemoKey, paid: LedgerEntry) -> None:
        """Nobody asks."""

    def mark(self) -> int:
        return 0

    def is_since(self, key: MemoKey, mark: int) -> bool:  # noqa: ARG002
        return False


class FileMemo(NoAccount):
    """A memo in JSON lines, which several processes of one machine may share; each opens its own.

    A line is one write under a lock, with a checksum in its first field. A line that a crash tore is cut off at the
    next write. What others wrote is read when a key is missed. Memory does not grow with the answers: an index on
    disk knows where each stands.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.name == "nt":
            raise SetupError(f"{os.fspath(path)!r}: files cannot be shared on Windows; use a memo in .sqlite")
        self._path = Path(path)
        self._seen = 0  # all lines before this offset are known
        self._hits = 0
        with explained(self._path):
            self._file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), "r+")
        self._index = MemoIndex()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="memo")

    async def get(self, key: MemoKey) -> StoredAnswer | None:
        raw_key = bytes.fromhex(key.digest)
        place = self._index.get(raw_key)
        if place is None and os.fstat(self._file.fileno()).st_size != self._seen:
            await in_worker(self._worker, self._catch_up)
            place = self._index.get(raw_key)
        if place is None:
            return None
        self._hits += 1
        return self._read(place)

    async def put(
        self,
        key: MemoKey,
        answer: StoredAnswer,
        *,
        paid: LedgerEntry | None = None,  # noqa: ARG002 - what a run paid stands in its own log
    ) -> StoredAnswer:
        body = encode_answer(key, answer)
        return self._read(await in_worker(self._worker, lambda: self._kept(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await in_worker(self._worker, self._sync)

    def stats(self) -> MemoStats:
        self._worker.submit(self._catch_up).result()
        return MemoStats(entries=len(self._index), hits=self._hits, bytes=self._seen)

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._index.close()
        self._file.close()

    def _read(self, place: Place) -> StoredAnswer:
        return decode_answer(self._line(place))

    def _line(self, place: Place) -> bytes:
        offset, length = place
        with explained(self._path):
            line = os.pread(self._file.fileno(), length, offset)
        if not is_sound(line):
            raise SetupError(f"{str(self._path)!r} was changed at byte {offset} while in use; start again")
        return line

    def _kept(self, raw_key: bytes, body: bytes, *, note: bytes | None = None) -> Place:
        """Where the answer of a key stands, after it was written; if there was one already, the note is written."""
        with self._locked(exclusive=True):
            self._read_tail()
            place = self._index.get(raw_key)
            if place is None:
                place = self._append(body)
                self._index.add([(raw_key, *place)])
            elif note is not None:
                self._append(note)
            return place

    def _append(self, body: bytes) -> Place:
        """Write a line. The lock is held, and all lines are known."""
        self._cut_torn_line()
        line, start = as_line(body), self._seen
        try:
            rest = memoryview(line)
            while rest:  # if only a part fitted, the next write says why
                rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise _unwritten(self._path, error.strerror or str(error)) from error
        self._seen += len(line)
        return start, len(line)

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritten(self._path, error.strerror or str(error)) from error

    def _catch_up(self) -> None:
        with self._locked(exclusive=False):
            self._read_tail()

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        import fcntl  # not on Windows

        with explained(self._path):
            fcntl.flock(self._file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read_tail(self) -> None:
        """Learn the lines that were added since the last look. The lock is held, so a line without an end is torn."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._seen:
            raise SetupError(
                f"{str(self._path)!r} was cut to {size} bytes while in use, {self._seen} were there; start again"
            )
        found: list[tuple[bytes, int, int]] = []
        end = self._seen
        for start, line in self._lines(self._seen, size):
            if not is_sound(line):
                logger.warning("%s: the line at byte %d is damaged; its call is made again", self._path, start)
            elif raw_key := key_in(line, path=self._path):
                found.append((raw_key, start, len(line)))
            end = start + len(line)
            if len(found) == AT_ONCE:
                self._index.add(found)
                self._seen = end
                found.clear()
        self._index.add(found)
        self._seen = end  # last, for `get` takes what was seen as indexed

    def _lines(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The whole lines between two offsets, each with its own. For the worker's thread."""
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

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size > self._seen:
            logger.warning("%s: dropped the last %d bytes, a line that was torn", self._path, size - self._seen)
            os.ftruncate(self._file.fileno(), self._seen)


class SqliteMemo(NoAccount):
    """A memo in an SQLite database, which several processes may share; each opens its own."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._hits = 0
        with explained(self._path):
            self._database = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="memo")

    async def get(self, key: MemoKey) -> StoredAnswer | None:
        raw = await in_worker(self._worker, lambda: self._select(bytes.fromhex(key.digest)))
        if raw is None:
            return None
        self._hits += 1
        return decode_answer(raw)

    async def put(
        self,
        key: MemoKey,
        answer: StoredAnswer,
        *,
        paid: LedgerEntry | None = None,  # noqa: ARG002 - what a run paid stands in its own log
    ) -> StoredAnswer:
        body = encode_answer(key, answer)
        return decode_answer(await in_worker(self._worker, lambda: self._kept(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await in_worker(self._worker, lambda: self._query("PRAGMA wal_checkpoint(FULL)"))

    def stats(self) -> MemoStats:
        [(entries,)] = self._worker.submit(self._query, "SELECT count(*) FROM answers").result()
        return MemoStats(entries=entries, hits=self._hits, bytes=size_of(self._path))

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._database.close()

    def _prepare(self) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:  # the change to WAL does not wait for another process that does the same
            try:
                self._query("PRAGMA journal_mode = WAL")
                break
            except _BusyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
        self._query("PRAGMA synchronous = NORMAL")  # enough for SIGKILL; `sync` is for more
        [(version,)] = self._query("PRAGMA user_version")
        if version not in (0, SCHEMA_VERSION):
            raise other_version(self._path, version)
        self._query("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, body BLOB NOT NULL)")
        if version == 0:
            self._query(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _kept(self, raw_key: bytes, body: bytes) -> bytes:
        self._query("INSERT OR IGNORE INTO answers (key, body) VALUES (?, ?)", raw_key, body)
        return self._select(raw_key) or body

    def _select(self, raw_key: bytes) -> bytes | None:
        rows = self._query("SELECT body FROM answers WHERE key = ?", raw_key)
        return rows[0][0] if rows else None

    def _query(self, statement: str, *values: bytes) -> list[tuple[Json, ...]]:
        with explained(self._path):
            return self._database.execute(statement, values).fetchall()


def size_of(path: Path) -> int:
    """The bytes of a memo, with those that a database has not moved into its file yet."""
    return sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())


class _BusyError(SetupError):
    """Another process holds the database."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise SetupError(
                f"the memo {str(path)!r} is damaged ({error}): move it away and run again (calls are then paid again), "
                f"or save what can be read with: sqlite3 {path} .recover"
            ) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise _BusyError(
                f"the memo {str(path)!r} is held by another process ({error}); end it and run again"
            ) from error
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise _unwritten(path, str(error)) from error
        raise SetupError(
            f"the memo {str(path)!r} cannot be used: {error}; check its folder and the space left"
        ) from error
    except OSError as error:
        what = error.strerror or str(error)
        raise SetupError(
            f"the memo {str(path)!r} cannot be used: {what}; check its folder and the space left"
        ) from error


async def in_worker(worker: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Do it in the worker's thread, to its end also when the caller is cancelled: an answer that was paid is kept."""
    done = asyncio.get_running_loop().run_in_executor(worker, work)
    done.add_done_callback(lambda done: done.cancelled() or done.exception())  # a caller that has gone does not ask
    return await asyncio.shield(done)


def _unwritten(path: Path, what: str) -> SetupError:
    return SetupError(f"the memo {str(path)!r} could not be written: {what}; make room and resume the run")
