"""What caches on disk share: error messages, a worker thread, and the account that they do not keep."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from promptiter.errors import SetupError
from promptiter.llm.cache.keys import CacheKey, StoredAnswer
from promptiter.llm.ledger import LedgerEntry

T = TypeVar("T")
SUFFIXES = (".jsonl", ".sqlite", ".db")
"""File name endings of a cache: JSON lines, or a database."""
BUSY_TIMEOUT_S = 30.0
"""How long to wait for a database that another process has locked."""


class NoAccount:
    """The methods of a Cache for accounting, which only the call log of a run implements."""

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:  # noqa: ARG002
        return await self._put(key, answer)

    async def _put(self, key: CacheKey, answer: StoredAnswer) -> StoredAnswer:
        raise NotImplementedError

    def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        """Only the call log of a run records costs."""

    async def mark(self) -> int:
        return 0

    async def is_since(self, key: CacheKey, mark: int) -> bool:  # noqa: ARG002
        return False


def size_of(path: Path) -> int:
    """The bytes of a cache, with those in the write-ahead log of a database."""
    return sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())


class BusyError(SetupError):
    """Another process has locked the database."""


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of the database and the operating system into SetupErrors that say what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise SetupError(
                f"the cache {str(path)!r} is damaged ({error}): move it away and run again (calls are paid again), "
                f"or recover what can be read with: sqlite3 {path} .recover"
            ) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise BusyError(
                f"the cache {str(path)!r} is locked by another process ({error}); stop that process and run again"
            ) from error
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise write_error(path, str(error)) from error
        raise SetupError(
            f"the cache {str(path)!r} cannot be used: {error}; check its folder and the free space"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise SetupError(
            f"the cache {str(path)!r} cannot be used: {reason}; check its folder and the free space"
        ) from error


async def run_in_worker(worker: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run `work` in the worker's thread, to its end even if the caller is cancelled: a paid answer must be stored."""
    done = asyncio.get_running_loop().run_in_executor(worker, work)
    done.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
    return await asyncio.shield(done)


def write_error(path: Path, reason: str) -> SetupError:
    return SetupError(f"the cache {str(path)!r} could not be written: {reason}; free some space and resume the run")
