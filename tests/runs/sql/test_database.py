from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, make_url, select, text

from promptiter.errors import JournalError, SetupError, StoreError, UnknownRunError
from promptiter.runs.run_list import RunQuery
from promptiter.runs.sql import database as database_module
from promptiter.runs.sql.address import parse_address
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.sql.tables import RUNS
from promptiter.testing.store_hooks import ask, make_event, make_header

pytestmark = pytest.mark.slow

OTHERS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'lost'",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = 'lost'",
}
DROP = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL CONNECTION {}"}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_run_survives_lost_connections(kind: str, request: pytest.FixtureRequest) -> None:
    url = make_url(request.getfixturevalue(f"{kind}_url"))
    server = create_engine(parse_address(str(url)).url, isolation_level="AUTOCOMMIT")

    def drop_connections() -> None:
        with server.connect() as connection:
            for number in connection.scalars(text(OTHERS[kind])).all():
                connection.execute(text(DROP[kind].format(number)))

    with server.connect() as connection:
        connection.execute(text("CREATE DATABASE lost"))
    store = SqlStore(url.set(database="lost").render_as_string(hide_password=False))
    await store.create(make_header("a"))
    async with store.open("a") as run:
        for seq in range(4):
            await asyncio.to_thread(drop_connections)
            await run.journal.append(make_event(seq))
            await ask(run, seq)
        await asyncio.to_thread(drop_connections)
        assert [event.seq async for event in run.journal.read()] == list(range(4))
        assert (await run.answers.ledger()).total.calls == 4
    await store.close()
    server.dispose()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_suspended_process_cannot_block_the_others(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database_module._LIMIT_IDLE, "postgresql", "SET idle_in_transaction_session_timeout = '1s'")
    monkeypatch.setitem(database_module._LIMIT_IDLE, "mysql", "SET SESSION idle_transaction_timeout = 1")
    database = Database(parse_address(request.getfixturevalue(f"{kind}_url")))
    tries = []

    def lock(connection: Connection) -> None:
        tries.append(connection.execute(select(RUNS).with_for_update()).all())
        if len(tries) == 1:
            time.sleep(3)
        connection.execute(select(RUNS)).all()

    database.write(lock)
    assert len(tries) == 2, "the server ended the first transaction, and it was tried again"


async def test_a_server_that_stays_away_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    await store.create(make_header("a"))
    async with store.open("a") as run:
        await run.journal.append(make_event(0))
        monkeypatch.setattr(store._database, "_retry_s", 0.1)
        with sqlite3.connect(tmp_path / "runs.db") as other:
            other.execute("DROP TABLE promptiter_events")
        other.close()
        with pytest.raises(JournalError, match=r"event 1 \(note\) could not be written: the database .*runs.db.*kept"):
            await run.journal.append(make_event(1))


async def test_writes_wait_for_another_process_that_writes(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    await store.create(make_header("a"))
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    async with store.open("a") as run:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.3, lambda: other.execute("COMMIT")).start()
        await run.journal.append(make_event(0))
    other.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://ann:secret@127.0.0.1:1/runs", r"postgresql://ann:\*\*\*@127.0.0.1:1/runs"),
        ("mysql://ann:secret@127.0.0.1:1/runs", r"mysql://ann:\*\*\*@127.0.0.1:1/runs"),
        ("sqlite:////dev/null/runs.db", "'/dev/null' cannot be created"),
        ("sqlite:////dev/runs.db?mode=ro", "takes no options, and this has 'mode'"),
    ],
)
async def test_a_database_that_was_never_reached_is_refused_at_once(url: str, problem: str) -> None:
    with pytest.raises(SetupError, match=problem) as caught:
        await SqlStore(url).list_ids()
    assert "ann:secret" not in str(caught.value)


async def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database" * 1000)
    with pytest.raises(SetupError, match=r"runs.db' cannot be used: file is not a database"):
        await SqlStore(f"sqlite:///{tmp_path}/runs.db").list_ids()


async def test_ids_that_a_database_would_change_are_refused(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    for name in ("", "a ", "x" * 201, "a\x00", "half \ud83d"):
        with pytest.raises(SetupError, match="the id of a run is"):
            await store.create(make_header(name))
    await store.create(make_header("a"))
    for name in ("a ", "A", "a\x00", "half \ud83d"):
        with pytest.raises(UnknownRunError, match="there is no run"):
            await store.view(name)
        assert (await store.list_runs(RunQuery(text=name))).runs == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_process_uses_connections_of_its_own(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    await store.create(make_header("a"))
    child = os.fork()
    if child == 0:
        try:
            names = store._database.read(lambda c: c.scalars(text("SELECT run_id FROM promptiter_runs")).all())
            os._exit(0 if names == ["a"] else 1)
        finally:
            os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
    assert await store.list_ids() == ["a"]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_was_deleted_or_replaced_is_noticed(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptiter.runs.sql.database.FILE_LOOK_S", 0.0)
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    await store.create(make_header("a"))
    (tmp_path / "runs.db").rename(tmp_path / "old.db")
    if is_replaced:
        await SqlStore(f"sqlite:///{tmp_path}/runs.db").create(make_header("b"))
    with pytest.raises(StoreError, match=r"runs.db' was deleted or replaced while it was in use"):
        await store.create(make_header("c"))
    with pytest.raises(StoreError, match="was deleted or replaced"):
        await store.list_ids()
