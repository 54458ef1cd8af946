"""Memos that outlive their process: JSON lines (`calls.jsonl` of a run), and an SQLite database for many runs."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import orjson

from promptiter.errors import SetupError
from promptiter.llm.answers import (
    SCHEMA_VERSION,
    MemoKey,
    MemoStats,
    StoredAnswer,
    decode_answer,
    encode_answer,
)
from traces.model import Json

T = TypeVar("T")
logger = logging.getLogger(__name__)


class FileMemo:
    """A memo in JSON lines, which several processes of one machine may share; each opens its own.

    A line is one write under a lock, with a checksum in its first field. A line that a crash tore is cut off at the
    next write. In memory there is only where each answer stands; what others wrote is read when a key is missed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.name == "nt":
            raise SetupError(f"{os.fspath(path)!r}: files cannot be shared on Windows; use a memo in .sqlite")
        self._path = Path(path)
        self._places: dict[bytes, tuple[int, int]] = {}  # raw digest of the key: offset, length
        self._seen = 0  # all lines before this offset are known
        self._hits = 0
        with _explained(self._path):
            self._file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), "r+")
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="memo")

    async def get(self, key: MemoKey) -> StoredAnswer | None:
        raw_key = bytes.fromhex(key.digest)
        if raw_key not in self._places and os.fstat(self._file.fileno()).st_size != self._seen:
            await _in(self._worker, self._catch_up)
        place = self._places.get(raw_key)
        if place is None:
            return None
        self._hits += 1
        return self._read(place)

    async def put(self, key: MemoKey, answer: StoredAnswer) -> StoredAnswer:
        body = encode_answer(key, answer)
        return self._read(await _in(self._worker, lambda: self._kept(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await _in(self._worker, lambda: os.fsync(self._file.fileno()))

    def stats(self) -> MemoStats:
        self._worker.submit(self._catch_up).result()
        return MemoStats(entries=len(self._places), hits=self._hits, bytes=self._seen)

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._file.close()

    def _read(self, place: tuple[int, int]) -> StoredAnswer:
        offset, length = place
        with _explained(self._path):
            line = os.pread(self._file.fileno(), length, offset)
        if _key_in(line, place=self._path) is None:
            raise SetupError(f"{str(self._path)!r} was changed at byte {offset} while in use; start again")
        return decode_answer(line)

    def _kept(self, raw_key: bytes, body: bytes) -> tuple[int, int]:
        """Where the answer of a key stands, after it was written unless there is one."""
        with self._locked(exclusive=True):
            self._read_tail()
            if raw_key in self._places:
                return self._places[raw_key]
            self._cut_torn_line()
            line = _as_line(body)
            if (written := self._file.write(line)) != len(line):
                os.ftruncate(self._file.fileno(), self._seen)
                raise SetupError(
                    f"only {written} of {len(line)} bytes fit into {str(self._path)!r}; free space and resume"
                )
            place = self._places[raw_key] = (self._seen, len(line))
            self._seen += len(line)
            return place

    def _catch_up(self) -> None:
        with self._locked(exclusive=False):
            self._read_tail()

    @contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        import fcntl  # not on Windows

        with _explained(self._path):
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
        if size == self._seen:
            return
        reader = io.BufferedReader(self._file, 1 << 20)
        try:
            reader.seek(self._seen)
            for line in reader:
                if not line.endswith(b"\n"):
                    break
                if raw_key := _key_in(line, place=self._path):
                    self._places.setdefault(raw_key, (self._seen, len(line)))
                else:
                    logger.warning("%s: the line at byte %d is damaged; its call is made again", self._path, self._seen)
                self._seen += len(line)
        finally:
            reader.detach()

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size > self._seen:
            logger.warning("%s: dropped the last %d bytes, a line that was torn", self._path, size - self._seen)
            os.ftruncate(self._file.fileno(), self._seen)


class SqliteMemo:
    """A memo in an SQLite database, which several processes may share; each opens its own."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 30.0) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._hits = 0
        with _explained(self._path):
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
        raw = await _in(self._worker, lambda: self._select(bytes.fromhex(key.digest)))
        if raw is None:
            return None
        self._hits += 1
        return decode_answer(raw)

    async def put(self, key: MemoKey, answer: StoredAnswer) -> StoredAnswer:
        body = encode_answer(key, answer)
        return decode_answer(await _in(self._worker, lambda: self._kept(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await _in(self._worker, lambda: self._query("PRAGMA wal_checkpoint(FULL)"))

    def stats(self) -> MemoStats:
        [(entries,)] = self._worker.submit(self._query, "SELECT count(*) FROM answers").result()
        files = [file for file in (self._path, Path(f"{self._path}-wal")) if file.exists()]
        return MemoStats(entries=entries, hits=self._hits, bytes=sum(file.stat().st_size for file in files))

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
            raise _unreadable(self._path, version)
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
        with _explained(self._path):
            return self._database.execute(statement, values).fetchall()


class _BusyError(SetupError):
    """Another process holds the database."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
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
        raise SetupError(
            f"the memo {str(path)!r} cannot be used: {error}; check its folder and the space left"
        ) from error
    except OSError as error:
        what = error.strerror or str(error)
        raise SetupError(
            f"the memo {str(path)!r} cannot be used: {what}; check its folder and the space left"
        ) from error


async def _in(worker: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Do it in the worker's thread, to its end also when the caller is cancelled: an answer that was paid is kept."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(worker, work))


_SUM = len(b'{"sum":"')
_REST = _SUM + 8 + len(b'",')
_VERSION = b'"v":%d,"key":"' % SCHEMA_VERSION


def _as_line(body: bytes) -> bytes:
    """A JSON object with the checksum of what follows as its first field."""
    rest = body[1:]
    return b'{"sum":"%s",%s\n' % (hashlib.sha256(rest).hexdigest()[:8].encode(), rest)


def _key_in(line: bytes, *, place: Path) -> bytes | None:
    """The raw digest of the key of a line, or None if the line is damaged."""
    rest = line[_REST:].rstrip(b"\n")
    if hashlib.sha256(rest).hexdigest()[:8].encode() != line[_SUM : _SUM + 8]:
        return None
    if not rest.startswith(_VERSION):
        raise _unreadable(place, orjson.loads(line).get("v"))
    return bytes.fromhex(rest[len(_VERSION) : len(_VERSION) + 64].decode())


def _unreadable(path: Path, version: Json) -> SetupError:
    return SetupError(
        f"the memo {str(path)!r} has version {version}, this release reads {SCHEMA_VERSION}; upgrade promptiter or use "
        "another path"
    )
