"""The answers of a run in memory, and its account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.llm.cache.account import Account, may_be_billed
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer, decode_answer, encode_answer
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot

_CallState: TypeAlias = Literal["asked", "answered", "given_up"]


@dataclass(frozen=True, slots=True)
class _Record:
    """What happened to a call. `paid` is what it cost, if it was made; `lost` what it counts as without an answer."""

    state: _CallState
    key: CacheKey
    paid: LedgerEntry | None = None
    lost: LedgerEntry | None = None


class RecordedCalls:
    """The calls of one run, over all processes that worked on it."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.paid_at: dict[str, int] = {}
        self.records: list[_Record] = []

    def add(self, record: _Record) -> None:
        if record.state == "answered" and record.paid is not None:
            self.paid_at[record.key.digest] = len(self.records)
        self.records.append(record)

    def add_up(self, own_start: int | None = None) -> LedgerSnapshot:
        """Add up the costs. Calls from `own_start` on are those of this process, which are not lost."""
        account = Account()
        for place, record in enumerate(self.records):
            if record.paid is not None:
                account.pay(record.paid)
            if own_start is not None and place >= own_start:
                continue
            if record.lost is not None:
                account.start_call(record.key.digest, lost=record.lost)
            elif record.paid is not None or record.state == "given_up":
                account.end_call(record.key.digest)
        return account.snapshot()


class MemoryAnswers:
    """The answers of one run, for one process that works on it."""

    def __init__(self, calls: RecordedCalls) -> None:
        self._calls = calls
        self._own_start = len(calls.records)
        self._hits = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        raw = self._calls.answers.get(key.digest)
        if raw is None:
            return None
        self._hits += 1
        return decode_answer(raw)

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        try:
            raw = encode_answer(key, answer)
        except SetupError:
            if paid is not None:
                await self.note_paid(key, paid)
            raise
        is_new = key.digest not in self._calls.answers
        if is_new:
            self._calls.answers[key.digest] = raw
            self._calls.add(_Record("answered", key, paid=paid))
        elif paid is not None:
            await self.note_paid(key, paid)
        return decode_answer(self._calls.answers[key.digest])

    @asynccontextmanager
    async def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AsyncIterator[None]:
        self._calls.add(_Record("asked", key, lost=lost))
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            self._calls.add(_Record("given_up", key, paid=lost if may_be_billed(error, lost) else None))
            raise

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        self._calls.add(_Record("given_up", key, paid=paid))

    async def mark(self) -> int:
        return len(self._calls.records)

    async def is_since(self, key: CacheKey, mark: int) -> bool:
        return self._calls.paid_at.get(key.digest, -1) >= mark

    async def ledger(self) -> LedgerSnapshot:
        return self._calls.add_up(self._own_start)

    async def sync(self) -> None:
        """Nothing is on disk."""

    def stats(self) -> CacheStats:
        held = sum(map(len, self._calls.answers.values()))
        return CacheStats(entries=len(self._calls.answers), hits=self._hits, bytes=held)

    def close(self) -> None:
        """The answers stay."""
