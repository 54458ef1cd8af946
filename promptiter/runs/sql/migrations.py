"""Migrations: the schema of the database, version by version.

A new version is another step: statements that change a database of the version before it. Steps that were released are
never edited. `promptiter db upgrade URL` applies what is missing, and `promptiter db sql` prints the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from promptiter.errors import SetupError
from promptiter.runs.sql.address import Backend
from promptiter.runs.sql.tables import METADATA, VERSIONS

_LOCK = 8_120_331_944
"""A number of our own, for the lock that migrations take in PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its number, what it does in words, and its statements for a kind of database."""

    version: int
    title: str
    list_statements: Callable[[Backend], Sequence[str]]


def list_create_statements(backend: Backend) -> list[str]:
    """The statements that create all tables, with their indexes."""
    dialect = _DIALECTS[backend]()
    return [_compile(CreateTable(table, if_not_exists=True), dialect) for table in METADATA.sorted_tables]


MIGRATIONS: tuple[Migration, ...] = (Migration(1, "runs, events, answers and traces", list_create_statements),)


def read_version(connection: Connection) -> int:
    """The version of the schema; 0 if there is none."""
    if not inspect(connection).has_table(VERSIONS.name):
        return 0
    return max(connection.scalars(select(VERSIONS.c.version)), default=0)


def upgrade(connection: Connection, backend: Backend, steps: Sequence[Migration] = MIGRATIONS) -> list[Migration]:
    """Apply the steps that a database lacks, and return them. Two processes at the same time apply each step once.

    MySQL commits after every statement. A step that was interrupted there is applied again: its number is written last.
    """
    with _locked(connection, backend):
        version = read_version(connection)
        missing = [step for step in steps if step.version > version]
        for step in missing:
            for statement in step.list_statements(backend):
                connection.exec_driver_sql(statement)
            connection.execute(VERSIONS.insert().values(version=step.version))
    return missing


def check_version(version: int, name: str, steps: Sequence[Migration] = MIGRATIONS) -> None:
    """SetupError if the schema is not the one that this release reads."""
    newest = steps[-1].version
    if version < newest:
        raise SetupError(
            f"the database {name!r} has schema {version}, and this release reads {newest}; back it up, then run "
            "`promptiter db upgrade URL`"
        )
    if version > newest:
        raise SetupError(
            f"the database {name!r} has schema {version}, and this release reads {newest}; install a newer promptiter"
        )


def format_schema(backend: Backend, steps: Iterable[Migration] = MIGRATIONS) -> str:
    """All migrations as SQL, for people who apply them by hand."""
    lines = []
    for step in steps:
        lines.append(f"-- {step.version}: {step.title}\n")
        lines += [f"{statement};\n" for statement in step.list_statements(backend)]
        lines.append(f"INSERT INTO {VERSIONS.name} (version) VALUES ({step.version});\n")
    return "\n".join(lines)


@contextmanager
def _locked(connection: Connection, backend: Backend) -> Iterator[None]:
    """Wait for another process that migrates. SQLite has locked the database already."""
    if backend == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))  # until the end of the transaction
    elif backend == "mysql":
        connection.execute(text("SELECT GET_LOCK('promptiter', 60)"))
    try:
        yield
    finally:
        if backend == "mysql":
            connection.execute(text("SELECT RELEASE_LOCK('promptiter')"))


def _compile(element: CreateTable, dialect: Dialect) -> str:
    lines = str(element.compile(dialect=dialect)).strip().splitlines()
    return "\n".join(line.rstrip().replace("\t", "  ") for line in lines)


_DIALECTS: dict[Backend, Callable[[], Dialect]] = {
    "sqlite": sqlite.dialect,
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
}
