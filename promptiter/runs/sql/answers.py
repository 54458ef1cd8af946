"""The answers of a run in a database, and its account.

Each line of the account has a place: the number of the lease, then a count. So lines are in order, also those of a
process that had lost its lease and finished a call meanwhile, and a process knows its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import orjson
from sqlalchemy import ColumnElement, Connection, and_, func, select

from promptiter.errors import PromptiterError, SetupError
from promptiter.llm.cache.account import Account, may_be_billed
from promptiter.llm.cache.keys import CacheKey, CacheStats, StoredAnswer, decode_answer, encode_answer
from promptiter.llm.ledger import NOTHING, LedgerEntry, LedgerSnapshot, Spending
from promptiter.runlog.codec import from_plain, to_short_plain
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.packing import pack, unpack
from promptiter.runs.sql.tables import ANSWERS, CALLS
from promptiter.runs.sql.writer import Writer
from promptiter.runs.sql.writes import CallKind, Lease, NoteCall, PutAnswer, Sync

PLACES = 1 << 40
"""Places of one lease."""
PAGE = 1_000
"""Lines of the account that are read at once."""

logger = logging.getLogger(__name__)


class SqlAnswers:
    """The answers of one run, for one process that works on it."""

    def __init__(self, database: Database, writer: Writer, lease: Lease) -> None:
        self._database = database
        self._writer = writer
        self._lease = lease
        self._places = count(lease.number * PLACES)
        self._before: Spending | None = None  # spent before this process; known after `ledger`
        self._paid = NOTHING
        self._hits = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        found = select(ANSWERS.c.body).where(_is_answer(self._lease, key))
        body = await self._database.read_async(lambda connection: connection.scalars(found).one_or_none())
        if body is None:
            return None
        self._hits += 1
        return decode_answer(unpack(body))

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        try:
            raw = encode_answer(key, answer)
        except SetupError:
            if paid is not None:
                await self.note_paid(key, paid)
            raise
        write = PutAnswer(
            lease=self._lease,
            place=next(self._places),
            call_hash=_hash_of(key),
            body=pack(raw),
            entry=None if paid is None else _write_entry(paid),
        )
        earlier = await self._writer.submit(write)
        if paid is not None:
            self._paid += paid.spent
        return decode_answer(raw if earlier is None else unpack(earlier))

    @asynccontextmanager
    async def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AsyncIterator[None]:
        try:
            await self._note("asked", key, lost)
        except asyncio.CancelledError:  # it is written nevertheless
            await self._give_up(key)
            raise
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            await self._give_up(key, lost if may_be_billed(error, lost) else None)
            raise

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        await self._note("given_up", key, paid)
        self._paid += paid.spent

    async def mark(self) -> int:
        return next(self._places)

    async def is_since(self, key: CacheKey, mark: int) -> bool:
        found = select(ANSWERS.c.place).where(
            _is_answer(self._lease, key), ANSWERS.c.place >= mark, ANSWERS.c.is_paid == 1
        )
        return await self._database.read_async(lambda connection: connection.scalars(found).first()) is not None

    async def ledger(self) -> LedgerSnapshot:
        snapshot = await self._database.read_async(
            lambda connection: read_account(connection, self._lease.run_key, own_lease=self._lease.number)
        )
        self._before = snapshot.total - self._paid
        return snapshot

    async def count_spent(self) -> Spending:
        """What the run has paid so far. What other processes paid is read once."""
        if self._before is None:
            return (await self.ledger()).total
        return self._before + self._paid

    async def sync(self) -> None:
        await self._writer.submit(Sync(lease=self._lease))

    def stats(self) -> CacheStats:
        found = select(func.count(), func.coalesce(func.sum(func.length(ANSWERS.c.body)), 0)).where(
            ANSWERS.c.run_key == self._lease.run_key
        )
        entries, size = self._database.read(lambda connection: connection.execute(found).one())
        return CacheStats(entries=entries, hits=self._hits, bytes=int(size))

    def close(self) -> None:
        """The answers stay."""

    async def _note(self, kind: CallKind, key: CacheKey, entry: LedgerEntry | None) -> None:
        await self._writer.submit(
            NoteCall(
                lease=self._lease,
                place=next(self._places),
                kind=kind,
                call_hash=_hash_of(key),
                entry=None if entry is None else _write_entry(entry),
            )
        )

    async def _give_up(self, key: CacheKey, lost: LedgerEntry | None = None) -> None:
        try:
            await self._note("given_up", key, lost)
        except PromptiterError as error:  # the error of the call itself matters more
            logger.warning("a call that failed will be counted as lost: %s", error)
        else:
            if lost is not None:
                self._paid += lost.spent


def read_account(connection: Connection, run_key: int, *, own_lease: int | None = None) -> LedgerSnapshot:
    """Add up what a run has paid. Calls of the process with `own_lease` that are open are not lost."""
    account = Account()
    for place, kind, call_hash, raw in _read_calls(connection, run_key):
        entry = None if raw is None else _read_entry(raw)
        if kind != "asked" and entry is not None:
            account.pay(entry)
        if place // PLACES == own_lease:
            continue
        if kind != "asked":
            account.end_call(call_hash.hex())
        elif entry is not None:
            account.start_call(call_hash.hex(), lost=entry)
    return account.snapshot()


def _read_calls(connection: Connection, run_key: int) -> Iterator[tuple[int, CallKind, bytes, bytes | None]]:
    start = -1
    found = select(CALLS.c.place, CALLS.c.kind, CALLS.c.call_hash, CALLS.c.entry).where(CALLS.c.run_key == run_key)
    while rows := connection.execute(found.where(CALLS.c.place > start).order_by(CALLS.c.place).limit(PAGE)).all():
        yield from ((place, kind, call_hash, entry) for place, kind, call_hash, entry in rows)
        start = rows[-1].place


def _is_answer(lease: Lease, key: CacheKey) -> ColumnElement[bool]:
    return and_(ANSWERS.c.run_key == lease.run_key, ANSWERS.c.call_hash == _hash_of(key))


def _hash_of(key: CacheKey) -> bytes:
    return bytes.fromhex(key.digest)


def _write_entry(entry: LedgerEntry) -> bytes:
    return orjson.dumps(to_short_plain(entry))


def _read_entry(raw: bytes) -> LedgerEntry:
    entry: LedgerEntry = from_plain(LedgerEntry, orjson.loads(raw))
    return entry
