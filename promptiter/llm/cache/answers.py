"""Answers: a call is answered from the cache, by an equal call in flight, or by making it.

Its cost is counted in the ledger, and its answer is stored before it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from promptiter.llm.cache.cache import Cache, CacheKey
from promptiter.llm.cache.in_flight import CallsInFlight
from promptiter.llm.cache.keys import StoredAnswer, redact_answer
from promptiter.llm.ledger import FROM_CACHE, Ledger, LedgerEntry, Spending, record_call
from promptiter.llm.redaction import Redactor

PaidAnswer: TypeAlias = tuple[StoredAnswer, Spending]
"""The answer of a call that was made, and what it cost."""
MakeCall: TypeAlias = Callable[[], Awaitable[PaidAnswer]]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a model or tool: its key in the cache, and where the ledger counts it."""

    key: CacheKey
    model: str
    node_id: str

    def entry(self, spent: Spending) -> LedgerEntry:
        return LedgerEntry(role=self.key.role, model=self.model, node_id=self.node_id, spent=spent)


class Answers:
    """The answers of one run: its cache, its ledger and its calls in flight."""

    def __init__(self, cache: Cache, ledger: Ledger, *, redactor: Redactor) -> None:
        self.cache = cache
        self.ledger = ledger
        self.in_flight = CallsInFlight()
        self._stored: set[int] = set()  # hashes of the calls that were made here and whose answers are stored
        self._redactor = redactor
        self._paid_since: int | None = None
        self._paid: set[int] = set()  # hashes of the calls made since then: a large evaluation makes many

    def counting_paid_since(self, mark: int) -> Answers:
        """The same answers, of which those newer than a mark of the cache count as paid.

        They were paid here, or by a killed process. Not every cache knows what was paid, so it is remembered here.
        """
        other = copy.copy(self)
        other._paid_since, other._paid = mark, set()
        return other

    async def answer(self, call: Call, make: MakeCall, *, is_live: bool) -> StoredAnswer:
        """Answer from the cache, or make the call and store its answer. Equal calls in flight are made once.

        A live call is always made. The cache records what it cost, not its answer.
        """
        if is_live:
            answer, paid = await self._make(call, make)
            await self.cache.note_paid(call.key, paid)
            return answer
        known = await self._find_known(call.key)
        if known is not None:
            self.ledger.count(call.entry(FROM_CACHE))
            record_call(paid=await self._was_paid(call.key))
            return known

        async def make_and_store() -> StoredAnswer:
            answer, paid = await self._make(call, make)
            if self._paid_since is not None:
                self._paid.add(hash(call.key))
            stored = await self.cache.put(call.key, answer, paid=paid)
            self._stored.add(hash(call.key))
            return stored

        return await self.in_flight.start(call.key, make_and_store).join()

    async def _find_known(self, key: CacheKey) -> StoredAnswer | None:
        """The answer in the cache, or that of an equal call in flight."""
        if (flight := self.in_flight.find(key)) is not None:
            return await flight.join()
        known = await self.cache.get(key)
        if known is None and (flight := self.in_flight.find(key)) is not None:  # an equal call started meanwhile
            return await flight.join()
        if known is None and hash(key) in self._stored:  # an equal call started and ended meanwhile
            return await self.cache.get(key)
        return known

    async def _was_paid(self, key: CacheKey) -> bool:
        """Whether the answer in the cache was paid since the mark from which on answers count as paid."""
        if self._paid_since is None:
            return False
        return hash(key) in self._paid or await self.cache.is_since(key, self._paid_since)

    async def _make(self, call: Call, make: MakeCall) -> tuple[StoredAnswer, LedgerEntry]:
        """Make a call and count its cost. The answer is without secrets."""
        answer, spent = await make()
        paid = call.entry(spent)
        self.ledger.count(paid)
        record_call(paid=True)
        return redact_answer(answer, self._redactor), paid
