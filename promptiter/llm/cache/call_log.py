"""calls.jsonl: the cache of one run, which is also its account.

It knows what the run paid, and which calls were in flight when it was killed, so that a resumed run asks for no answer
twice and goes on with what is left of its budget. Beside the answers it has short lines:

    {"sum":"…","v":1,"asked":"<key>","role":"agent","model":"gpt-4o","node_id":"planner"}          a call is made
    {"sum":"…","v":1,"key":"<key>",…,"paid":{"model":…,"node_id":…,"attempts":1,"seconds":0.8}}    it was answered
    {"sum":"…","v":1,"given_up":"<key>","role":"agent"}                                    it failed, or was cancelled

What was asked, but neither answered nor given up, was in flight at a kill. A line `given_up` with `paid` is of a call
whose answer is not kept, such as that of a live node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from promptiter.errors import SetupError
from promptiter.llm.cache.cache import Cache
from promptiter.llm.cache.file import FileCache
from promptiter.llm.cache.index import Place
from promptiter.llm.cache.keys import SCHEMA_VERSION, CacheKey, StoredAnswer, answer_in, encode_answer, usage_of
from promptiter.llm.cache.lines import is_sound
from promptiter.llm.cache.storage import run_in_worker
from promptiter.llm.ledger import Ledger, LedgerEntry, LedgerSnapshot, Spending
from traces.model import Json

FILE_NAME = "calls.jsonl"

logger = logging.getLogger(__name__)


class CallLog(FileCache):
    """The log of one run, in a file. `shared` is a cache of many runs: an answer that it has is the one to use.

    Such an answer is written here too before it is used, so a run can be resumed without the shared cache, which stays
    open: it is not this log's own.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: Cache | None = None) -> None:
        super().__init__(path)
        self._shared = shared
        self._own_start: int | None = None  # where the first line stands that this process wrote

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        known = await super().get(key)
        if known is not None or self._shared is None:
            return known
        shared = await self._shared.get(key)
        if shared is None:
            return None
        self._hits += 1
        return await self._keep(key, shared)

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        if self._shared is None:
            return await self._keep(key, answer, paid=paid)
        sharing = asyncio.ensure_future(self._share(self._shared, key, answer, paid))
        try:
            return await asyncio.shield(sharing)
        except asyncio.CancelledError:
            await asyncio.wait([sharing])  # the answer was paid, so it is kept also for a caller that has gone
            raise

    @asynccontextmanager
    async def asking(self, key: CacheKey, *, model: str, node_id: str) -> AsyncIterator[None]:
        asked = _note("asked", key, model=model, node_id=node_id)
        try:
            await run_in_worker(self._worker, lambda: self._write(asked))
        except asyncio.CancelledError:  # it is written all the same
            await self._give_up(key)
            raise
        try:
            yield
        except (Exception, asyncio.CancelledError):
            await self._give_up(key)
            raise

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        note = _note("given_up", key, paid=_receipt(paid, answer=None))
        await run_in_worker(self._worker, lambda: self._write(note))

    def mark(self) -> int:
        return self._seen

    def is_since(self, key: CacheKey, mark: int) -> bool:
        place = self._index.get(bytes.fromhex(key.digest))
        return place is not None and place[0] >= mark and "paid" in orjson.loads(self._line(place))

    def ledger(self) -> LedgerSnapshot:
        """What the run paid so far, by role, model and node, and the calls that were lost before this process.

        Reads the file from start to end, as a stream.
        """
        return self._worker.submit(self._account).result()

    async def sync(self) -> None:
        await super().sync()
        if self._shared is not None:
            await self._shared.sync()

    async def _share(
        self, shared: Cache, key: CacheKey, answer: StoredAnswer, paid: LedgerEntry | None
    ) -> StoredAnswer:
        try:
            first = await shared.put(key, answer)
        except BaseException:
            await self._keep(key, answer, paid=paid)  # a run that is resumed need not pay it again
            raise
        return await self._keep(key, first, paid=paid)

    async def _keep(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        """Write an answer with its receipt; only the receipt, if there is an answer or this one cannot be kept."""
        receipt = None if paid is None else _note("given_up", key, paid=_receipt(paid, answer=None))
        try:
            body = encode_answer(key, answer, paid=None if paid is None else _receipt(paid, answer=answer))
        except SetupError:
            if receipt is not None:
                await run_in_worker(self._worker, lambda: self._write(receipt))
            raise
        raw_key = bytes.fromhex(key.digest)
        return self._read(await run_in_worker(self._worker, lambda: self._kept(raw_key, body, note=receipt)))

    async def _give_up(self, key: CacheKey) -> None:
        try:
            await run_in_worker(self._worker, lambda: self._write(_note("given_up", key)))
        except SetupError as error:  # the call has an error of its own, which matters more
            logger.warning("a call that was given up will be counted as lost: %s", error)

    def _write(self, note: bytes) -> None:
        with self._locked(exclusive=True):
            self._read_tail()
            self._append(note)

    def _append(self, body: bytes) -> Place:
        if self._own_start is None:
            self._own_start = self._seen
        return super()._append(body)

    def _account(self) -> LedgerSnapshot:
        self._catch_up()
        end_of_others = self._seen if self._own_start is None else self._own_start
        paid = Ledger()
        open_calls: dict[str, list[LedgerEntry]] = {}
        for start, line in self._lines(0, self._seen):
            if not is_sound(line):
                continue
            document = orjson.loads(line)
            if "paid" in document:
                paid.count(_paid_in(document))
            if start >= end_of_others:  # what this process asks is not lost
                continue
            if "asked" in document:
                open_calls.setdefault(document["asked"], []).append(_lost(document))
            elif "paid" in document or "given_up" in document:
                _close(open_calls, document.get("key") or document["given_up"])
        for entries in open_calls.values():
            for entry in entries:
                paid.count(entry)
        return paid.snapshot()


def paid_calls(path: str | os.PathLike[str]) -> Iterator[LedgerEntry]:
    """What each call of a log cost, in the order of the file, which is read as a stream; a torn line is passed over."""
    return (entry for _, entry in paid_calls_from(path))


def paid_calls_from(path: str | os.PathLike[str]) -> Iterator[tuple[int, LedgerEntry]]:
    """The same, each with where its line begins: what was paid after a `mark` begins there or behind it."""
    start = 0
    with Path(path).open("rb") as file:
        for line in file:
            if b'"paid":' in line and is_sound(line):
                yield start, _paid_in(orjson.loads(line))
            start += len(line)


def _note(kind: str, key: CacheKey, **fields: Json) -> bytes:
    return orjson.dumps({"v": SCHEMA_VERSION, kind: key.digest, "role": key.role, **fields})


def _receipt(paid: LedgerEntry, *, answer: StoredAnswer | None) -> dict[str, Json]:
    """What is written of a call's cost. Tokens and dollars stand in its answer, unless another is kept in its place."""
    spent = paid.spent
    receipt = {"model": paid.model, "node_id": paid.node_id, "attempts": spent.attempts, "seconds": spent.seconds}
    if answer is None or spent != _spent_on(answer, receipt):
        receipt["spent"] = asdict(spent)
    return receipt


def _spent_on(answer: StoredAnswer, receipt: dict[str, Json]) -> Spending:
    return Spending.of_call(usage_of(answer), seconds=receipt["seconds"], attempts=receipt["attempts"])


def _paid_in(document: dict[str, Any]) -> LedgerEntry:
    receipt = document["paid"]
    role = document["role"] if "role" in document else document["call"]["role"]
    spent = Spending(**receipt["spent"]) if "spent" in receipt else _spent_on(answer_in(document), receipt)
    return LedgerEntry(role=role, model=receipt["model"], node_id=receipt["node_id"], spent=spent)


def _lost(asked: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(role=asked["role"], model=asked["model"], node_id=asked["node_id"], spent=Spending(lost_calls=1))


def _close(open_calls: dict[str, list[LedgerEntry]], key: str) -> None:
    """The last of equal calls has ended: one before it was lost."""
    entries = open_calls.get(key)
    if entries:
        entries.pop()
    if not entries:
        open_calls.pop(key, None)
