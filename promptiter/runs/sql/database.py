"""Database: connections and transactions, in blocking code, from any thread.

Transactions that a lost connection, a deadlock or a lock of another process interrupted are run again for half a
minute. If that does not help, the database counts as down: until a transaction succeeds, each is tried for a second
only. Connections are shared by all threads and event loops of the process, and a lease must be renewed while an event
loop is blocked. So the drivers are synchronous ones, and callers on an event loop use threads.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Insert, Table, create_engine, event
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from promptiter.concurrency import Slots, run_in_thread
from promptiter.errors import SetupError, StoreError
from promptiter.runs.sql.address import Address, Backend
from promptiter.runs.sql.migrations import Migration, check_version, read_version, upgrade

RETRY_S, DOWN_RETRY_S = 30.0, 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
CONNECT_TIMEOUT_S = 10
FILE_LOOK_S = 1.0
"""How often one looks whether the file of an SQLite database is still there."""
BUSY_TIMEOUT_S = 30.0
"""How long SQLite waits for another process that writes."""
IDLE_S = 10
"""A database ends a transaction that waits this long for its process: a suspended one would block the others."""
READS = 10
"""Reads at the same time that event loops may start; connections beyond these are for writes and blocking readers."""
MOST_CONNECTIONS = 16

_CONFLICTS = frozenset(("40001", "40P01", "55P03", 1205, 1213, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
"""Codes of deadlocks and lock timeouts, of PostgreSQL, MySQL and SQLite."""
_TOO_LARGE = (1153, 1301)
"""MySQL: the value is larger than max_allowed_packet."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Database:
    """One database. `read` and `write` run work in a transaction; it may be run again, so it must have no other effect.

    The schema is checked on first use. A database without one gets it.
    """

    def __init__(self, address: Address, *, retry_s: float = RETRY_S) -> None:
        self.address = address
        self.name = address.name
        self._retry_s = retry_s
        self._engine = _create_engine(address)
        self._is_ready = False
        self._is_down = False
        self._is_lost = False
        self._file_id: tuple[int, int] | None = None
        self._looked_at = 0.0
        self._preparing = Lock()
        self._slots = Slots(READS)
        self.close = weakref.finalize(self, self._engine.dispose)
        _databases().add(self)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads. SetupError if the database cannot be used."""
        self._prepare()
        return self._run(work, writes=False, is_durable=False)

    def write(self, work: Callable[[Connection], T], *, is_durable: bool = True) -> T:
        """Run work that writes. If it is durable, it survives a power failure, with all that was written before.

        IntegrityError if a row exists already.
        """
        self._prepare()
        return self._run(work, writes=True, is_durable=is_durable)

    async def read_async(self, work: Callable[[Connection], T]) -> T:
        """`read` for event loops."""
        async with self._slots:
            return await run_in_thread(lambda: self.read(work))

    async def write_async(self, work: Callable[[Connection], T]) -> T:
        """`write` for event loops."""
        return await run_in_thread(lambda: self.write(work))

    def upgrade(self) -> list[Migration]:
        """Apply the migrations that the database lacks, and return them."""
        self._prepare_file()
        return self._run(lambda connection: upgrade(connection, self.address.backend), writes=True, is_durable=True)

    def insert_new(self, table: Table) -> Insert:
        """An INSERT that leaves rows that exist as they are."""
        return _build_insert(self.address.backend, table)

    def _prepare(self) -> None:
        """Check the schema, or create it in an empty database. Once."""
        if self._is_ready:
            return
        with self._preparing:
            if self._is_ready:
                return
            self._prepare_file()
            version = self._run(read_version, writes=False, is_durable=False)
            if version:
                check_version(version, self.name)
            else:
                self.upgrade()
            self._file_id = self._identify_file()
            self._is_ready = True

    def _prepare_file(self) -> None:
        """Create the folder of an SQLite database, and let readers read while it is written."""
        if self.address.backend != "sqlite":
            return
        path = Path(str(self.address.url.database))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"{str(path.parent)!r} cannot be created: {error.strerror or error}; choose another"
            ) from error
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:  # SQLite does not wait here for another process that does the same
            try:
                with self._engine.connect() as connection:
                    connection.connection.cursor().execute("PRAGMA journal_mode = WAL").close()
                    return
            except (DBAPIError, sqlite3.Error) as error:
                original = error.orig if isinstance(error, DBAPIError) else error
                if time.monotonic() > deadline or _code_of(original) not in _CONFLICTS:
                    raise self._explain(error, original) from error
            time.sleep(FIRST_PAUSE_S)

    def _run(self, work: Callable[[Connection], T], *, writes: bool, is_durable: bool) -> T:
        """Run work in a transaction, again if it was interrupted. A database that was never reached is tried once."""
        deadline, pause = (
            time.monotonic() + (min(DOWN_RETRY_S, self._retry_s) if self._is_down else self._retry_s),
            FIRST_PAUSE_S,
        )
        while True:
            self._check_file()
            connected = False
            try:
                with self._engine.connect() as connection:
                    connected = True
                    with connection.execution_options(writes=writes, is_durable=is_durable).begin():
                        result = work(connection)
            except IntegrityError:
                raise
            except SQLAlchemyError as error:
                original = error.orig if isinstance(error, DBAPIError) else None
                is_lost = isinstance(error, DBAPIError) and (error.connection_invalidated or not connected)
                is_conflict = _code_of(original) in _CONFLICTS
                if not (is_conflict or (is_lost and self._is_ready)) or time.monotonic() > deadline:
                    self._is_down = is_lost and self._is_ready
                    raise self._explain(error, original) from error
                if is_lost and not self._is_lost:
                    logger.warning("the connection to %s was lost; trying again", self.name)
                    self._is_lost = True
            else:
                if self._is_lost:
                    logger.warning("the connection to %s is back", self.name)
                self._is_down = self._is_lost = False
                return result
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _identify_file(self) -> tuple[int, int] | None:
        """The file of an SQLite database; (0, 0) if there is none at its path, None for other databases."""
        if self.address.backend != "sqlite":
            return None
        try:
            found = Path(str(self.address.url.database)).stat()
        except OSError:
            return 0, 0
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """StoreError if the file of an SQLite database was deleted or replaced: what is written to it would be lost."""
        if self._file_id is None or time.monotonic() - self._looked_at < FILE_LOOK_S:
            return
        if self._identify_file() != self._file_id:
            raise StoreError(
                f"the file of the database {self.name!r} was deleted or replaced while it was in use; stop all "
                "processes that use it, put the right file there, and start again"
            )
        self._looked_at = time.monotonic()

    def _explain(self, error: Exception, original: BaseException | None) -> SetupError:
        cause = " ".join(str(original or error).split())
        problem = f"the database {self.name!r} cannot be used: {cause}"
        if _code_of(original) in _TOO_LARGE:
            return SetupError(f"{problem}; raise max_allowed_packet of the server")
        if self._is_ready:
            advice = "check the server, its disk and the network, then resume the run: what is stored is kept"
        else:
            advice = "check the URL, that the server runs, and that this user may create tables"
        return StoreError(f"{problem}; {advice}")


@cache
def _build_insert(backend: Backend, table: Table) -> Insert:
    if backend == "sqlite":
        return sqlite_insert(table).on_conflict_do_nothing()
    if backend == "postgresql":
        return postgresql_insert(table).on_conflict_do_nothing()
    first = table.primary_key.columns[0]
    return mysql_insert(table).on_duplicate_key_update({first.name: first})


def _create_engine(address: Address) -> Engine:
    options: dict[str, Any] = {}
    if address.backend == "sqlite":
        options["connect_args"] = {"timeout": BUSY_TIMEOUT_S, "isolation_level": None}
    elif address.backend == "mysql":
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
    else:
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "promptiter"}
    engine = create_engine(
        address.url, pool_size=READS // 2, max_overflow=MOST_CONNECTIONS - READS // 2, hide_parameters=True, **options
    )
    if address.backend == "sqlite":
        event.listen(engine, "begin", _begin_in_sqlite)
    else:
        event.listen(engine, "connect", partial(_execute, _LIMIT_IDLE[address.backend]))
    return engine


_LIMIT_IDLE: dict[Backend, str] = {
    "postgresql": f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'",
    "mysql": f"SET @idle = {IDLE_S} /*M!100300 , SESSION idle_transaction_timeout = {IDLE_S} */",  # MySQL has none
}


def _execute(statement: str, connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.commit()


def _begin_in_sqlite(connection: Connection) -> None:
    """Begin a transaction: one that writes waits for others here, instead of failing later.

    Every commit survives the end of the process. `synchronous = FULL` syncs the log, with all commits before it.
    """
    options = connection.get_execution_options()
    if not options.get("writes"):
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if options['is_durable'] else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _code_of(error: BaseException | None) -> object:
    """The code of a driver's error: a number, or the SQLSTATE of PostgreSQL."""
    for name in ("sqlstate", "sqlite_errorcode"):
        if (code := getattr(error, name, None)) is not None:
            return code & 0xFF if isinstance(code, int) else code
    return error.args[0] if error is not None and error.args else None


@cache
def _databases() -> weakref.WeakSet[Database]:
    """The databases of this process. A forked child must not use the connections of its parent."""
    known: weakref.WeakSet[Database] = weakref.WeakSet()

    def forget() -> None:
        for each in list(known):
            each._engine.dispose(close=False)
            each._preparing = Lock()

    os.register_at_fork(after_in_child=forget)
    return known
