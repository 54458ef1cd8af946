from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect

from promptiter.errors import SetupError
from promptiter.runs.sql.address import parse_address
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.migrations import MIGRATIONS, Migration, check_version, format_schema, read_version, upgrade
from promptiter.runs.sql.store import SqlStore

pytestmark = pytest.mark.slow

LATER = (*MIGRATIONS, Migration(2, "colours", lambda _: ["ALTER TABLE promptiter_runs ADD COLUMN colour INTEGER"]))


def open_database(folder: Path) -> Database:
    return Database(parse_address(f"sqlite:///{folder}/runs.db"))


async def test_the_first_use_creates_the_schema_once_for_clients_at_the_same_time(tmp_path: Path) -> None:
    stores = [SqlStore(f"sqlite:///{tmp_path}/new/runs.db") for _ in range(8)]
    assert await asyncio.gather(*(store.list_ids() for store in stores)) == [[]] * 8
    with closing(sqlite3.connect(tmp_path / "new" / "runs.db")) as file:
        rows = file.execute("SELECT version FROM promptiter_schema").fetchall()
    assert rows == [(each.version,) for each in MIGRATIONS]


def test_only_missing_steps_are_applied(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    assert [step.version for step in database.upgrade()] == [1]
    assert database.upgrade() == []
    assert database.write(lambda connection: upgrade(connection, "sqlite", LATER)) == [LATER[1]]
    assert database.read(read_version) == 2
    columns = database.read(lambda connection: inspect(connection).get_columns("promptiter_runs"))
    assert "colour" in {column["name"] for column in columns}


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    broken = (*MIGRATIONS, Migration(2, "broken", lambda _: ["CREATE TABLE half (a INTEGER)", "CREATE nonsense"]))
    database = open_database(tmp_path)
    database.upgrade()
    with pytest.raises(SetupError, match="nonsense"):
        database.write(lambda connection: upgrade(connection, "sqlite", broken))
    assert database.read(read_version) == 1
    assert database.read(lambda connection: inspect(connection).has_table("half")) is False


async def test_a_database_of_another_release_is_refused(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.upgrade()
    database.write(lambda connection: upgrade(connection, "sqlite", LATER))
    with pytest.raises(SetupError, match="has schema 2, and this release reads 1; install a newer promptiter"):
        await SqlStore(f"sqlite:///{tmp_path}/runs.db").list_ids()
    with pytest.raises(SetupError, match=r"has schema 1, and this release reads 2.*`promptiter db upgrade URL`"):
        check_version(1, "runs.db", LATER)


def test_the_printed_schema_creates_a_database_that_a_store_takes(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file:
        file.executescript(format_schema("sqlite"))
    assert asyncio.run(SqlStore(f"sqlite:///{tmp_path}/runs.db").list_ids()) == []


def test_the_schema_is_printed_for_each_kind_of_database() -> None:
    assert "body BYTEA NOT NULL" in format_schema("postgresql")
    assert "body LONGBLOB NOT NULL" in format_schema("mysql")
    assert "COLLATE utf8mb4_bin" in format_schema("mysql")
    for backend in ("sqlite", "postgresql", "mysql"):
        assert format_schema(backend).count("CREATE TABLE") == 8
