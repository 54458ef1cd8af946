"""The attempts of one model call: each is counted as the server may count it, in budget, ledger and call log.

An attempt that the server refused costs nothing. One that timed out, broke off or was cancelled may have been billed:
it counts as a lost call, at the most that it may have cost, and the next attempt must fit into the budget again.
Once the user has asked to stop, stages make no further attempts. Case runs do: they are finished.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from promptiter.errors import StopRequestedError
from promptiter.llm.cache.account import may_be_billed
from promptiter.llm.cache.answers import Answers
from promptiter.llm.cache.keys import CacheKey
from promptiter.llm.ledger import LedgerEntry
from promptiter.llm.messages import CASE_ROLES, ModelReply
from promptiter.llm.reservation import Reservation


class CallAttempts:
    """Accounts for the attempts of one call. `lost` is what one attempt without an answer counts as.

    `lost_attempts` counts those that may have been billed.
    """

    def __init__(
        self,
        key: CacheKey,
        *,
        lost: LedgerEntry,
        reservation: Reservation,
        answers: Answers,
        find_stop_request: Callable[[], str | None],
    ) -> None:
        self.lost_attempts = 0
        self._key = key
        self._lost = lost
        self._reservation = reservation
        self._answers = answers
        self._find_stop_request = find_stop_request

    @property
    def is_reserved(self) -> bool:
        """Whether there is room for the next attempt in the budget; not if the last one used it up."""
        return self._reservation.is_open

    async def reserve(self) -> None:
        """Wait for room in the budget. May raise BudgetEndedError."""
        await self._reservation.renew()

    def find_stop_request(self) -> str | None:
        """How the user asked to stop, if this call is one that is then not made."""
        return None if self._key.role in CASE_ROLES else self._find_stop_request()

    async def stop(self, reason: str) -> NoReturn:
        """Raise StopRequestedError once the calls in flight have ended, since it may cancel those who wait for them."""
        await self._answers.in_flight.finish()
        raise StopRequestedError(reason)

    async def make(self, send: Callable[[], Awaitable[ModelReply]]) -> ModelReply:
        """Send an attempt and wait for its answer.

        Raises BudgetEndedError if answers of other calls exceeded a cap while this one waited.
        """
        in_flight = self._answers.in_flight
        async with self._answers.cache.asking(self._key, lost=self._lost):
            self._reservation.check()
            in_flight.mark_sent(self._key, is_sent=True)
            try:
                return await send()
            except BaseException as error:
                in_flight.mark_sent(self._key, is_sent=False)
                if may_be_billed(error, self._lost):
                    self.lost_attempts += 1
                    self._reservation.settle(tokens=None)
                    self._answers.ledger.count(self._lost)
                raise
