"""The cache: answers of model and tool calls, kept by what was asked.

The gateway looks here before it asks, and puts every answer here before anybody uses it. So one store serves caching,
resume, audit and deduplication: a run that was killed asks nothing twice, and a candidate pays only from the first
request that its patch changed.

Every cache keeps the first answer of a key and gives that to all, in all processes. What `put` returns is what `get`
returns ever after, so a first run and its replay see equal values.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from promptiter.errors import SetupError
from promptiter.llm.cache.file import FileCache
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer, ToolAnswer, decode_answer, encode_answer
from promptiter.llm.cache.sqlite import SqliteCache
from promptiter.llm.cache.storage import SUFFIXES, NoAccount, explain_errors
from promptiter.llm.ledger import LedgerEntry

__all__ = [
    "Cache",
    "CacheKey",
    "CacheStats",
    "FileCache",
    "MemoryCache",
    "SqliteCache",
    "StoredAnswer",
    "ToolAnswer",
    "open_cache",
]


class Cache(Protocol):
    """A store of answers. The gateway calls it from the event loop: no method may block for long."""

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        """The answer, if there is one."""
        ...

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        """Keep an answer and return the one to use: the first that was put, by whichever process.

        When it returns, the answer survives a SIGKILL of this process. SetupError if JSON cannot hold the answer.
        `paid` is what the call cost, for who keeps account.
        """
        ...

    def asking(self, key: CacheKey, *, model: str, node_id: str) -> AbstractAsyncContextManager[None]:
        """Entered when a call is about to be made, left when it is answered, has failed for good, or is cancelled.

        An answer is `put` right after. A call that is never left was in flight when the process was killed.
        """
        ...

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        """Take in what a call cost whose answer is not kept, for who keeps account."""
        ...

    def mark(self) -> int:
        """Where the answers end now; only `is_since` can tell what it means."""
        ...

    def is_since(self, key: CacheKey, mark: int) -> bool:
        """Whether the answer of a key was paid after that mark, as far as that is known."""
        ...

    async def sync(self) -> None:
        """Make what was put survive a loss of power too."""
        ...

    def stats(self) -> CacheStats: ...

    def close(self) -> None: ...


def open_cache(where: str | os.PathLike[str]) -> Cache:
    """The cache at `"memory"`, at a path that ends in .jsonl, or at one that ends in .sqlite or .db.

    Folders of the path that do not exist are made.
    """
    if where == "memory":
        return MemoryCache()
    path = Path(where)
    if path.suffix not in SUFFIXES:
        raise SetupError(
            f"cannot tell what cache {os.fspath(where)!r} is: give 'memory' or a path in .jsonl, .sqlite or .db"
        )
    with explain_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FileCache(path) if path.suffix == ".jsonl" else SqliteCache(path)


class MemoryCache(NoAccount):
    """A cache for one process, gone when it ends."""

    def __init__(self) -> None:
        self._answers: dict[str, bytes] = {}
        self._hits = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        raw = self._answers.get(key.digest)
        if raw is None:
            return None
        self._hits += 1
        return decode_answer(raw)

    async def put(
        self,
        key: CacheKey,
        answer: StoredAnswer,
        *,
        paid: LedgerEntry | None = None,  # noqa: ARG002 - the ledger counts it
    ) -> StoredAnswer:
        return decode_answer(self._answers.setdefault(key.digest, encode_answer(key, answer)))

    async def sync(self) -> None:
        """Nothing survives anyway."""

    def stats(self) -> CacheStats:
        held = sum(map(len, self._answers.values()))
        return CacheStats(entries=len(self._answers), hits=self._hits, bytes=held)

    def close(self) -> None:
        self._answers.clear()
