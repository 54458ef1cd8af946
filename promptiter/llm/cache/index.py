"""Where each answer stands in a file of lines: an index that takes the same memory for ten answers and ten million."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from typing import TypeAlias

from promptiter.errors import SetupError
from traces.model import Json

Place: TypeAlias = tuple[int, int]
"""Offset and length of a line."""

CACHE_KIB = 1024


class CacheIndex:
    """Raw keys and the places of their answers, in a temporary file without a name; any thread may use it.

    The file is gone with the process, and made again from the lines, so it need not survive anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (f"cache_size = -{CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE places (key BLOB PRIMARY KEY, start INTEGER NOT NULL, length INTEGER NOT NULL) WITHOUT ROWID"
        )

    def get(self, raw_key: bytes) -> Place | None:
        found: Place | None = self._row("SELECT start, length FROM places WHERE key = ?", raw_key)
        return found

    def add(self, found: Iterable[tuple[bytes, int, int]]) -> None:
        """Take in keys with offset and length. Of a key that is there, the first place stays."""
        in_order = sorted(found)  # neighbours share a page, which is then read and written once
        try:
            with self._lock:
                self._database.execute("BEGIN")
                self._database.executemany("INSERT OR IGNORE INTO places VALUES (?, ?, ?)", in_order)
                self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise _unusable(error) from error

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
            raise _unusable(error) from error


def _unusable(error: sqlite3.OperationalError) -> SetupError:
    return SetupError(
        f"the index of a cache, a temporary file, cannot be used: {error}; make room in the folder for temporary files "
        "(TMPDIR names another) and resume the run"
    )
