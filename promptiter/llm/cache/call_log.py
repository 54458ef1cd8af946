"""calls.jsonl: the cache of one run, which is also its account.

It records what the run paid, and which calls were in flight when it was killed, so a resumed run makes no call twice
and continues with the rest of its budget. Besides the answers it has short lines:

    {"sum":"…","v":1,"asked":"<key>","role":"agent","model":"gpt-4o","node_id":"planner","tokens":4210,"usd":0.04}
    {"sum":"…","v":1,"key":"<key>",…,"paid":{"model":…,"node_id":…,"attempts":1,"seconds":0.8}}
    {"sum":"…","v":1,"given_up":"<key>","role":"agent"}

These are an attempt that is sent, with the most that it may cost; an answer; and an attempt that the server refused. An
attempt that was asked, but neither answered nor given up, was in flight when the process was killed. A line `given_up`
with `paid` is of one that may have been billed without an answer, such as after a timeout, or of a call whose answer
is not stored, such as that of a live node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import orjson

from promptiter.errors import SetupError
from promptiter.llm.cache.account import Account, may_be_billed
from promptiter.llm.cache.file import FileCache
from promptiter.llm.cache.index import LinePlace
from promptiter.llm.cache.keys import SCHEMA_VERSION, CacheKey, StoredAnswer, encode_answer, read_answer, usage_of
from promptiter.llm.cache.lines import is_intact, read_key
from promptiter.llm.cache.storage import run_in_worker
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from traces.model import Json

FILE_NAME = "calls.jsonl"

logger = logging.getLogger(__name__)


class CallLog(FileCache):
    """The calls of one run, in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._own_start: int | None = None  # offset of the first line of this process

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
        """Write an answer with its receipt, or only the receipt if the key has an answer or this one is not JSON."""
        receipt = None if paid is None else _note("given_up", key, paid=_receipt(paid, answer=None))
        try:
            body = encode_answer(key, answer, paid=None if paid is None else _receipt(paid, answer=answer))
        except SetupError:
            if receipt is not None:
                await run_in_worker(self._worker, lambda: self._write(receipt))
            raise
        raw_key = bytes.fromhex(key.digest)
        return self._read(await run_in_worker(self._worker, lambda: self._store(raw_key, body, note=receipt)))

    @asynccontextmanager
    async def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AsyncIterator[None]:
        bound = {"tokens": lost.spent.possible_tokens, "usd": lost.spent.possible_usd}
        most = {name: figure for name, figure in bound.items() if figure}
        asked = _note("asked", key, model=lost.model, node_id=lost.node_id, **most)
        try:
            await run_in_worker(self._worker, lambda: self._write(asked))
        except asyncio.CancelledError:  # it is written nevertheless
            await self._give_up(key)
            raise
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            await self._give_up(key, lost if may_be_billed(error, lost) else None)
            raise

    async def note_paid(self, key: CacheKey, paid: LedgerEntry) -> None:
        note = _note("given_up", key, paid=_receipt(paid, answer=None))
        await run_in_worker(self._worker, lambda: self._write(note))

    async def mark(self) -> int:
        return await run_in_worker(self._worker, self._find_end)

    def _find_end(self) -> int:
        self._catch_up()
        return self._seen

    async def is_since(self, key: CacheKey, mark: int) -> bool:
        return await run_in_worker(self._worker, lambda: self._is_since(bytes.fromhex(key.digest), mark))

    def _is_since(self, raw_key: bytes, mark: int) -> bool:
        place = self._index.get(raw_key)
        return place is not None and place[0] >= mark and "paid" in orjson.loads(self._line(place))

    async def ledger(self) -> LedgerSnapshot:
        """What the run paid so far, by role, model and node, and the calls that earlier processes lost.

        Reads the whole file, as a stream.
        """
        return await run_in_worker(self._worker, self._read_account)

    async def _give_up(self, key: CacheKey, lost: LedgerEntry | None = None) -> None:
        receipt = {} if lost is None else {"paid": _receipt(lost, answer=None)}
        try:
            await run_in_worker(self._worker, lambda: self._write(_note("given_up", key, **receipt)))
        except SetupError as error:  # the error of the call itself matters more
            logger.warning("a call that failed will be counted as lost: %s", error)

    def _write(self, note: bytes) -> None:
        with self._locked(exclusive=True):
            self._read_tail()
            self._append(note)

    def _append(self, body: bytes) -> LinePlace:
        if self._own_start is None:
            self._own_start = self._seen
        return super()._append(body)

    def _read_account(self) -> LedgerSnapshot:
        self._catch_up()
        return _add_up(self._lines(0, self._seen), self._seen if self._own_start is None else self._own_start)


def read_account(path: str | os.PathLike[str]) -> LedgerSnapshot:
    """What the run with this log paid so far, and the calls that it lost. Reads a stream; for blocking code."""
    with Path(path).open("rb") as file:
        return _add_up(_check_versions(_number_lines(file), path), None)


def read_paid_calls(path: str | os.PathLike[str]) -> Iterator[tuple[int, LedgerEntry]]:
    """The offset and the cost of each call in a log. Reads a stream and skips damaged lines.

    Calls that were paid after a `mark` are at that offset or later.
    """
    with Path(path).open("rb") as file:
        for start, line in _number_lines(file):
            if b'"paid":' in line and is_intact(line):
                yield start, _read_entry(orjson.loads(line))


def _number_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for line in file:
        yield start, line
        start += len(line)


def _check_versions(lines: Iterable[tuple[int, bytes]], path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    for start, line in lines:
        if is_intact(line):
            read_key(line, path=path)  # raises for a line of another release
        yield start, line


def _add_up(lines: Iterable[tuple[int, bytes]], own_start: int | None) -> LedgerSnapshot:
    """Add up the lines of a log. Calls from `own_start` on are those of this process, which are not lost."""
    account = Account()
    for start, line in lines:
        if not is_intact(line):
            continue
        document = orjson.loads(line)
        if "paid" in document:
            account.pay(_read_entry(document))
        if own_start is not None and start >= own_start:
            continue
        if "asked" in document:
            account.start_call(document["asked"], lost=_read_lost(document))
        elif "paid" in document or "given_up" in document:
            account.end_call(document.get("key") or document["given_up"])
    return account.snapshot()


def _note(kind: str, key: CacheKey, **fields: Json) -> bytes:
    return orjson.dumps({"v": SCHEMA_VERSION, kind: key.digest, "role": key.role, **fields})


def _receipt(paid: LedgerEntry, *, answer: StoredAnswer | None) -> dict[str, Json]:
    """The cost of a call as it is written. Tokens and dollars are in its answer, unless another answer is stored."""
    spent = paid.spent
    receipt = {"model": paid.model, "node_id": paid.node_id, "attempts": spent.attempts, "seconds": spent.seconds}
    if answer is None or spent != _spent_on(answer, receipt):
        receipt["spent"] = asdict(spent)
    return receipt


def _spent_on(answer: StoredAnswer, receipt: dict[str, Json]) -> Spending:
    return Spending.of_call(usage_of(answer), seconds=receipt["seconds"], attempts=receipt["attempts"])


def _read_lost(document: dict[str, Any]) -> LedgerEntry:
    """What an attempt counts as if it was lost. Logs of earlier releases do not say what it may have cost."""
    spent = Spending.of_lost_call(tokens=document.get("tokens", 0), usd=document.get("usd", 0.0))
    return LedgerEntry(role=document["role"], model=document["model"], node_id=document["node_id"], spent=spent)


def _read_entry(document: dict[str, Any]) -> LedgerEntry:
    receipt = document["paid"]
    role = document["role"] if "role" in document else document["call"]["role"]
    spent = Spending(**receipt["spent"]) if "spent" in receipt else _spent_on(read_answer(document), receipt)
    return LedgerEntry(role=role, model=receipt["model"], node_id=receipt["node_id"], spent=spent)
