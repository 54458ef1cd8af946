"""The attempts of one model call: each is counted as the server may count it, in budget, ledger and call log.

An attempt that the server refused costs nothing. One that timed out, broke off or was cancelled may have been billed:
it counts as a lost call, at the most that it may have cost, and the next attempt needs room in the budget of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from promptiter.llm.cache.account import may_be_billed
from promptiter.llm.cache.cache import Cache, CacheKey
from promptiter.llm.ledger import Ledger, LedgerEntry
from promptiter.llm.reservation import Reservation


class CallAttempts:
    """Accounts for the attempts of one call. `lost` is what one attempt without an answer counts as."""

    def __init__(
        self, key: CacheKey, *, lost: LedgerEntry, reservation: Reservation, cache: Cache, ledger: Ledger
    ) -> None:
        self.count_lost = 0
        self._key = key
        self._lost = lost
        self._reservation = reservation
        self._cache = cache
        self._ledger = ledger

    async def prepare(self) -> None:
        """Wait for room in the budget, if the last attempt used up what was reserved. May raise BudgetEndedError."""
        await self._reservation.renew()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Entered right before an attempt is sent, left when it is answered or has failed."""
        async with self._cache.asking(self._key, lost=self._lost):
            try:
                yield
            except BaseException as error:
                if may_be_billed(error, self._lost):
                    self.count_lost += 1
                    self._reservation.settle(tokens=None)
                    self._ledger.count(self._lost)
                raise
