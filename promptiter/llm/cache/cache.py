"""The cache of answers of model and tool calls.

The gateway looks here before it makes a call, and stores every answer here before it is used. One mechanism serves
caching, resume, audit and deduplication: a resumed run makes no call twice, and a candidate pays only from the first
request that its patch changed.

A cache keeps the first answer of a key, for all processes. `get` returns exactly what `put` returned, so a run and its
replay see equal values.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeGuard

from promptiter.errors import SetupError
from promptiter.llm.cache.file import FileCache
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer, ToolAnswer, decode_answer, encode_answer
from promptiter.llm.cache.sqlite import SqliteCache
from promptiter.llm.cache.storage import SUFFIXES, NoAccount, explain_errors
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot
from promptiter.llm.messages import ModelReply

__all__ = [
    "Cache",
    "CacheKey",
    "CacheStats",
    "FileCache",
    "MemoryCache",
    "RunAnswers",
    "SqliteCache",
    "StoredAnswer",
    "ToolAnswer",
    "open_cache",
]


class Cache(Protocol):
    """A store of answers. The gateway calls it on the event loop, so no method may block for long."""

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        """The answer of a key, or None."""
        ...

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        """Store an answer and return the one to use: the first that any process stored.

        After that the answer survives a SIGKILL of this process. `paid` is the cost of the call, for caches that keep
        an account. Raises SetupError if the answer cannot be written as JSON.
        """
        ...

    def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AbstractAsyncContextManager[None]:
        """Entered right before an attempt of a call is sent, left when it is answered, has failed, or is cancelled.

        An answer is `put` right after. `lost` is what the attempt counts as if it is left by an error after which it
        `may_be_billed`, or never: then it was in flight when the process was killed.
        """
        ...

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        """Record the cost of a call whose answer is not stored."""
        ...

    async def mark(self) -> int:
        """The current end of the answers, for `is_since`."""
        ...

    async def is_since(self, key: CacheKey, mark: int) -> bool:
        """Whether the answer of a key is known to have been paid after that mark."""
        ...

    async def sync(self) -> None:
        """Make all answers survive a power failure."""
        ...

    def stats(self) -> CacheStats:
        """Figures of the cache. This may block, so the engine calls it in a thread."""
        ...

    def close(self) -> None: ...


class RunAnswers(Cache, Protocol):
    """The answers of one run, which are also its account. A store keeps them."""

    async def ledger(self) -> LedgerSnapshot:
        """What the run paid so far, and the calls that earlier processes lost: entered in `asking`, and never left."""
        ...


def open_cache(where: str | os.PathLike[str]) -> Cache:
    """Open the cache `"memory"`, or one in a file: .jsonl for JSON lines, .sqlite or .db for a database.

    Missing folders are created.
    """
    if where == "memory":
        return MemoryCache()
    path = Path(where)
    if path.suffix not in SUFFIXES:
        raise SetupError(
            f"the cache {os.fspath(where)!r} is of an unknown kind; give 'memory' or a path in .jsonl, .sqlite or .db"
        )
    with explain_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FileCache(path) if path.suffix == ".jsonl" else SqliteCache(path)


class MemoryCache(NoAccount):
    """A cache in the memory of one process."""

    def __init__(self) -> None:
        self._answers: dict[CacheKey, bytes | ModelReply] = {}
        self._hits = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        stored = self._answers.get(key)
        if stored is None:
            return None
        self._hits += 1
        return decode_answer(stored) if isinstance(stored, bytes) else stored

    async def _put(self, key: CacheKey, answer: StoredAnswer) -> StoredAnswer:
        kept = answer if _is_plain(answer) else encode_answer(key, answer)
        stored = self._answers.setdefault(key, kept)
        return decode_answer(stored) if isinstance(stored, bytes) else stored

    async def sync(self) -> None:
        """Nothing is on disk."""

    def stats(self) -> CacheStats:
        held = sum(len(each if isinstance(each, bytes) else each.text) for each in self._answers.values())
        return CacheStats(entries=len(self._answers), hits=self._hits, bytes=held)

    def close(self) -> None:
        self._answers.clear()


def _is_plain(answer: StoredAnswer) -> TypeGuard[ModelReply]:
    """Whether an answer as JSON would be read as the same answer: then it need not be written."""
    return isinstance(answer, ModelReply) and not answer.tool_requests and answer.text.isascii()
