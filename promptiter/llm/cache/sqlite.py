"""A cache in an SQLite database."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from promptiter.llm.cache.keys import SCHEMA_VERSION, CacheKey, CacheStats, StoredAnswer, decode_answer, encode_answer
from promptiter.llm.cache.lines import version_error
from promptiter.llm.cache.storage import BUSY_TIMEOUT_S, BusyError, NoAccount, explain_errors, run_in_worker, size_of
from traces.model import Json


class SqliteCache(NoAccount):
    """A cache in an SQLite database. Several processes may share it; each opens it itself.

    A cache that is not closed is closed with its last reference, or at the end of the process.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._hits = 0
        with explain_errors(self._path):
            self._database = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cache")
        self._close_database = weakref.finalize(self, self._database.close)

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        raw = await run_in_worker(self._worker, lambda: self._select(bytes.fromhex(key.digest)))
        if raw is None:
            return None
        self._hits += 1
        return decode_answer(raw)

    async def _put(self, key: CacheKey, answer: StoredAnswer) -> StoredAnswer:
        body = encode_answer(key, answer)
        return decode_answer(await run_in_worker(self._worker, lambda: self._store(bytes.fromhex(key.digest), body)))

    async def sync(self) -> None:
        await run_in_worker(self._worker, lambda: self._query("PRAGMA wal_checkpoint(FULL)"))

    def stats(self) -> CacheStats:
        [(entries,)] = self._worker.submit(self._query, "SELECT count(*) FROM answers").result()
        return CacheStats(entries=entries, hits=self._hits, bytes=size_of(self._path))

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._close_database()

    def _prepare(self) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:  # SQLite does not wait here for another process that does the same
            try:
                self._query("PRAGMA journal_mode = WAL")
                break
            except BusyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
        self._query("PRAGMA synchronous = NORMAL")  # survives a SIGKILL; `sync` is for power failures
        [(version,)] = self._query("PRAGMA user_version")
        if version not in (0, SCHEMA_VERSION):
            raise version_error(self._path, version)
        self._query("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, body BLOB NOT NULL)")
        if version == 0:
            self._query(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _store(self, raw_key: bytes, body: bytes) -> bytes:
        self._query("INSERT OR IGNORE INTO answers (key, body) VALUES (?, ?)", raw_key, body)
        return self._select(raw_key) or body

    def _select(self, raw_key: bytes) -> bytes | None:
        rows = self._query("SELECT body FROM answers WHERE key = ?", raw_key)
        return rows[0][0] if rows else None

    def _query(self, statement: str, *values: bytes) -> list[tuple[Json, ...]]:
        with explain_errors(self._path):
            return self._database.execute(statement, values).fetchall()
