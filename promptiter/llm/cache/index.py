"""An index of the answers in a file of lines. It takes the same memory for ten answers and for ten million."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from typing import TypeAlias

from promptiter.errors import SetupError
from traces.model import Json

LinePlace: TypeAlias = tuple[int, int]
"""Offset and length of a line."""

PAGES_KIB = 1024
"""Memory of the index."""


class CacheIndex:
    """Maps raw keys to the places of their answers, in an unnamed temporary file. Thread-safe.

    It is built again from the lines when the file is opened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (f"cache_size = -{PAGES_KIB}", "journal_mode = OFF", "synchronous = OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE places (key BLOB PRIMARY KEY, start INTEGER NOT NULL, length INTEGER NOT NULL) WITHOUT ROWID"
        )

    def get(self, raw_key: bytes) -> LinePlace | None:
        found: LinePlace | None = self._row("SELECT start, length FROM places WHERE key = ?", raw_key)
        return found

    def add(self, found: Iterable[tuple[bytes, int, int]]) -> None:
        """Add keys with offset and length. A key that is already known keeps its place."""
        in_order = sorted(found)  # neighbours share a page, which is read and written once
        try:
            with self._lock:
                self._database.execute("BEGIN")
                self._database.executemany("INSERT OR IGNORE INTO places VALUES (?, ?, ?)", in_order)
                self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise _explain(error) from error

    def __len__(self) -> int:
        return int(self._row("SELECT count(*) FROM places")[0])

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _row(self, query: str, *values: bytes) -> Json:
        try:
            with self._lock:
                return self._database.execute(query, values).fetchone()
        except sqlite3.OperationalError as error:
            raise _explain(error) from error


def _explain(error: sqlite3.OperationalError) -> SetupError:
    return SetupError(
        f"the index of a cache, a temporary file, cannot be used: {error}; free space in the folder of temporary files "
        "(or set TMPDIR to another one) and resume the run"
    )
