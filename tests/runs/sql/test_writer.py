from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, func, select

from promptiter.errors import JournalError, RunLockedError
from promptiter.llm.cache.keys import ToolAnswer
from promptiter.runlog.event_json import encode_event
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.sql.tables import ANSWERS, CALLS, EVENTS
from promptiter.runs.sql.writes import AppendEvent, Lease, NoteCall, Outcome, PutAnswer, PutTrace, Write, apply_writes
from promptiter.testing.store_hooks import ask, make_event, make_header, make_key, make_receipt, make_trace

pytestmark = pytest.mark.slow


def open_store(folder: Path) -> SqlStore:
    return SqlStore(f"sqlite:///{folder}/runs.db")


def database_of(store: SqlStore) -> Database:
    return store._database


def count_commits(store: SqlStore) -> list[str]:
    """How each commit that writes is synced."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("PRAGMA synchronous"):
            found.append(statement.rpartition(" ")[2])

    event.listen(database_of(store)._engine, "before_cursor_execute", note)
    return found


async def test_answers_at_the_same_time_share_commits(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.create(make_header("a"))
    async with store.open("a") as run:
        commits = count_commits(store)
        await asyncio.gather(*(ask(run, number) for number in range(32)))
        assert len(commits) < 16, "64 writes"
        assert (await run.answers.ledger()).total.calls == 32


async def test_decisions_are_synced_and_other_writes_are_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.create(make_header("a"))
    async with store.open("a") as run:
        commits = count_commits(store)
        await run.journal.append(make_event(0))
        await ask(run, 0)
        await run.traces.put(make_trace("hi"))
        assert set(commits) == {"NORMAL"}
        commits.clear()
        await run.journal.append(make_event(1, kind="decision"))
        await run.answers.sync()
        assert commits == ["FULL", "FULL"]


async def test_a_cancelled_write_is_stored(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.create(make_header("a"))
    async with store.open("a") as run:
        task = asyncio.create_task(run.answers.put(make_key(), ToolAnswer("paid"), paid=make_receipt()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run.answers.get(make_key()) == ToolAnswer("paid")


def make_writes(lease: Lease) -> list[Write]:
    body = encode_event(make_event(0))
    return [
        AppendEvent(lease=lease, seq=0, body=body, changes={"round": 1}, is_durable=False),
        NoteCall(lease=lease, place=1, kind="asked", call_hash=b"0" * 32, entry=b"{}"),
        PutAnswer(lease=lease, place=2, call_hash=b"0" * 32, body=b"{}", entry=b"{}"),
        PutTrace(lease=lease, trace_hash=b"1" * 32, body=b"{}"),
    ]


async def test_writes_are_applied_once_if_nobody_knows_whether_they_were_committed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.create(make_header("a"))
    database = database_of(store)
    lease = store._keeper.acquire(1, "a")

    def apply(writes: Sequence[Write], *, is_retry: bool) -> list[Outcome]:
        return database.write(lambda connection: apply_writes(connection, database, writes, is_retry=is_retry))

    writes = make_writes(lease)
    assert apply(writes, is_retry=False) == [None] * 4
    assert apply(writes, is_retry=True) == [None] * 4

    def count(connection: Connection) -> list[int]:
        return [connection.scalars(select(func.count()).select_from(table)).one() for table in (EVENTS, CALLS, ANSWERS)]

    assert database.read(count) == [1, 2, 1]
    refused, *others = apply(writes, is_retry=False)
    assert isinstance(refused, JournalError)
    assert others == [None] * 3
    store._keeper.release(lease)
    [left] = apply(writes[:1], is_retry=True)
    assert isinstance(left, RunLockedError)


async def test_what_one_write_breaks_does_not_harm_the_others(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.create(make_header("a"))
    async with store.open("a") as run:
        await run.answers.ledger()
        results = await asyncio.gather(
            *(run.journal.append(make_event(seq)) for seq in (0, 5, 1)),
            *(ask(run, number) for number in range(3)),
            return_exceptions=True,
        )
        assert [type(each) for each in results] == [type(None), JournalError, *[type(None)] * 4]
