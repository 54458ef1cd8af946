"""LayeredCache: the answers of one run, on top of a cache that many runs share."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from promptiter.concurrency import finish_before_cancel
from promptiter.llm.cache.cache import Cache
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer
from promptiter.llm.ledger import LedgerEntry


class LayeredCache:
    """Keeps every answer in the run's own cache, and shares new ones. Answers of the shared cache have priority.

    They are copied before they are used, so the run can be resumed without the shared cache. `close` leaves that open.
    """

    def __init__(self, own: Cache, shared: Cache) -> None:
        self._own = own
        self._shared = shared
        self._hits = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        known = await self._own.get(key)
        if known is not None:
            return known
        found = await self._shared.get(key)
        if found is None:
            return None
        self._hits += 1
        return await self._own.put(key, found)

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        # The answer was paid, so it is stored even if the caller is gone.
        return await finish_before_cancel(self._share(key, answer, paid))

    async def _share(self, key: CacheKey, answer: StoredAnswer, paid: LedgerEntry | None) -> StoredAnswer:
        try:
            first = await self._shared.put(key, answer)
        except BaseException:
            await self._own.put(key, answer, paid=paid)  # so that a resumed run need not pay it again
            raise
        return await self._own.put(key, first, paid=paid)

    def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AbstractAsyncContextManager[None]:
        return self._own.asking(key, lost=lost)

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        await self._own.note_paid(key, paid)

    async def mark(self) -> int:
        return await self._own.mark()

    async def is_since(self, key: CacheKey, mark: int) -> bool:
        return await self._own.is_since(key, mark)

    async def sync(self) -> None:
        await self._own.sync()
        await self._shared.sync()

    def stats(self) -> CacheStats:
        own = self._own.stats()
        return replace(own, hits=own.hits + self._hits)

    def close(self) -> None:
        self._own.close()
