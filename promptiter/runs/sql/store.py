"""SqlStore: a store in an SQL database, for many runs and several processes or machines.

store = SqlStore("postgresql://user@host/database")
run = await StoredRun.begin(store, engine, request)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from itertools import count

import orjson
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from promptiter.concurrency import run_in_thread
from promptiter.errors import RunEndedError, SetupError, UnknownRunError
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.runlog.results import RunResult
from promptiter.runs.app_names import check_app_name
from promptiter.runs.artifacts import KeepTraces, list_failed_traces
from promptiter.runs.header import RunHeader, parse_header
from promptiter.runs.lock import LEASE_S, Holder
from promptiter.runs.run_list import ListedStatus, RunPage, RunQuery, check_ended, number_id, take_page
from promptiter.runs.sql.address import parse_address
from promptiter.runs.sql.answers import SqlAnswers, read_account
from promptiter.runs.sql.case_uses import SqlCaseUses
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.events import SqlEvents, SqlJournal
from promptiter.runs.sql.leases import LeaseKeeper, read_holder
from promptiter.runs.sql.packing import pack, unpack
from promptiter.runs.sql.run_rows import find_status, read_rows
from promptiter.runs.sql.tables import HEADERS, LONGEST_APP, LONGEST_RUN_ID, PARTS_OF_A_RUN, RUNS
from promptiter.runs.sql.traces import SqlTraces, keep_only, read_trace
from promptiter.runs.sql.writer import Writer
from promptiter.runs.sql.writes import Lease
from promptiter.wording import shorten
from traces import ExecutionTrace


class SqlStore:
    """Runs in a database: `sqlite:///runs.db`, `postgresql://…`, `mysql://…` or `mariadb://…`.

    The tables are created on first use. A run whose process was killed can be opened once its lease has expired, or at
    once on the same machine. Machines that share a database need clocks that differ by less than a lease. Stores of
    apps share the connections of the store that they come from.
    """

    def __init__(self, url: str, *, lease_s: float = LEASE_S, now: Callable[[], float] = time.time) -> None:
        database = Database(parse_address(url))
        self._database = database
        self._app = ""
        self._now = now
        self._writer = Writer(database)
        self._keeper = LeaseKeeper(database, lease_s=lease_s, now=now)
        self.case_uses = SqlCaseUses(database, "")

    def for_app(self, name: str) -> SqlStore:
        other = copy(self)
        other._app = f"{self._app}/{check_app_name(name)}" if self._app else check_app_name(name)
        if len(other._app) > LONGEST_APP:
            raise SetupError(f"the app {shorten(other._app)} is nested too deeply")
        other.case_uses = SqlCaseUses(self._database, other._app)
        return other

    async def create(self, header: RunHeader) -> RunHeader:
        _check_run_id(header.run_id)
        return await run_in_thread(lambda: self._create(header))

    async def list_ids(self) -> list[str]:
        found = select(RUNS.c.run_id).where(RUNS.c.app == self._app)
        return sorted(await self._database.read_async(lambda connection: connection.scalars(found).all()))

    async def list_runs(self, query: RunQuery) -> RunPage:
        texts = (query.cursor or "", query.text, query.created_from, query.created_before, *query.verdicts)
        if not all(map(_is_plain, texts)):  # no run has such an id, and some databases refuse such a text
            return RunPage(())
        return await run_in_thread(lambda: take_page(read_rows(self._database, self._app, query, now=self._now), query))

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator[SqlRun]:
        run_key = await self._database.read_async(lambda connection: self._find(connection, run_id))
        taken: list[Lease] = []
        try:  # if this is cancelled while the lease is being taken, it is released
            await run_in_thread(lambda: taken.append(self._keeper.acquire(run_key, run_id)))
            yield SqlRun(self._database, self._writer, taken[0], keeper=self._keeper, now=self._now, app=self._app)
        finally:
            for lease in taken:
                await run_in_thread(partial(self._keeper.release, lease))

    async def view(self, run_id: str) -> SqlView:
        def read(connection: Connection) -> tuple[int, bytes | None]:
            run_key = self._find(connection, run_id)
            found = select(HEADERS.c.body).where(HEADERS.c.run_key == run_key)
            return run_key, connection.scalars(found).one_or_none()

        run_key, body = await self._database.read_async(read)
        if body is None:  # it was deleted just now
            raise self._is_unknown(run_id)
        header = parse_header(unpack(body), where=f"the header of the run {run_id!r} in {self._database.name!r}")
        return SqlView(self._database, run_key, header, now=self._now)

    async def request_stop(self, run_id: str, *, cancel: bool = False) -> None:
        def request(connection: Connection) -> None:
            run_key = self._find(connection, run_id)
            wanted = update(RUNS).where(RUNS.c.run_key == run_key)
            if not cancel:
                connection.execute(wanted.values(is_stop_requested=1))
            elif connection.execute(wanted.where(RUNS.c.is_final == 0).values(is_cancel_requested=1)).rowcount == 0:
                raise RunEndedError(run_id)

        await self._database.write_async(request)

    async def request_resume(self, run_id: str) -> None:
        def queue(connection: Connection) -> None:
            run_key = self._find(connection, run_id)
            wanted = update(RUNS).where(RUNS.c.run_key == run_key, RUNS.c.is_final == 0)
            if connection.execute(wanted.values(status="queued", is_cancel_requested=0)).rowcount == 0:
                raise RunEndedError(run_id)

        await self._database.write_async(queue)

    async def delete(self, run_id: str, *, only_ended: bool = False) -> None:
        def remove(connection: Connection) -> None:
            run_key = self._find(connection, run_id)
            self._keeper.refuse_held(connection, run_key, run_id)
            if only_ended:
                found = select(RUNS.c.status, RUNS.c.is_cancel_requested).where(RUNS.c.run_key == run_key)
                row = connection.execute(found.with_for_update()).one_or_none()
                if row is None:  # it was deleted just now
                    raise self._is_unknown(run_id)
                is_cancelled = bool(row.is_cancel_requested)
                check_ended(run_id, find_status(row.status, is_held=False, is_cancelled=is_cancelled))
            for table in (RUNS, *PARTS_OF_A_RUN):
                connection.execute(delete(table).where(table.c.run_key == run_key))

        await self._database.write_async(remove)

    async def close(self) -> None:
        """Close the connections, also those of its apps. Without this they are closed with the last reference."""
        await run_in_thread(self._database.close)

    def _create(self, header: RunHeader) -> RunHeader:
        for number in count(1):
            kept = header.model_copy(update={"run_id": number_id(header.run_id, number)})
            try:
                self._database.write(partial(self._insert, header=kept))
            except IntegrityError:  # there is a run with this id
                continue
            return kept
        raise AssertionError("count never ends")

    def _insert(self, connection: Connection, header: RunHeader) -> None:
        row = {
            "app": self._app,
            "run_id": header.run_id,
            "created_at": header.created_at,
            "updated_at": self._now(),
            "status": "queued" if header.app else "interrupted",
            "round": 0,
            "is_final": 0,
            "is_named": int(not header.nameless_parts),
            "next_seq": 0,
            "lease_number": 0,
            "is_stop_requested": 0,
            "is_cancel_requested": 0,
        }
        inserted = connection.execute(insert(RUNS).values(row)).inserted_primary_key
        assert inserted is not None, "the table numbers its rows"
        body = pack(orjson.dumps(header.model_dump(mode="json")))
        connection.execute(insert(HEADERS).values(run_key=inserted.run_key, body=body))

    def _find(self, connection: Connection, run_id: str) -> int:
        """The key of a run. UnknownRunError if there is none."""
        if _is_plain(run_id):
            found = select(RUNS.c.run_key, RUNS.c.run_id).where(RUNS.c.app == self._app, RUNS.c.run_id == run_id)
            for run_key, known in connection.execute(found):
                if known == run_id:  # MySQL ignores spaces at the end
                    key: int = run_key
                    return key
        raise self._is_unknown(run_id)

    def _is_unknown(self, run_id: str) -> UnknownRunError:
        app = f" of the app {self._app!r}" if self._app else ""
        return UnknownRunError(f"there is no run {shorten(run_id)}{app} in {self._database.name!r}")


class SqlRun:
    """A run in a database that this process works on."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        lease: Lease,
        *,
        keeper: LeaseKeeper,
        now: Callable[[], float],
        app: str,
    ) -> None:
        self._database = database
        self._keeper = keeper
        self._lease = lease
        self.was_waiting = lease.was_waiting
        self.name = f"{lease.run_id}{f' of {app}' if app else ''} in {database.name}"
        self.notes: Sequence[str] = ()
        self.answers = SqlAnswers(database, writer, lease)
        self.traces = SqlTraces(database, writer, lease)
        self.journal = SqlJournal(database, writer, lease, keeper=keeper, now=now, count_spent=self.answers.count_spent)

    def find_stop_request(self) -> str | None:
        return "a request to the store" if self._keeper.find_requests(self._lease).is_stop else None

    def is_cancel_requested(self) -> bool:
        return self._keeper.find_requests(self._lease).is_cancel

    async def write_result(self, result: RunResult, *, keep_traces: KeepTraces) -> None:
        """Delete the traces that are not kept. The result itself follows from the events."""

        def write() -> None:
            self._keeper.check(self._lease)
            if keep_traces != "all" and result.is_final:
                kept = list_failed_traces(result) if keep_traces == "failed" else ()
                self._database.write(lambda connection: keep_only(connection, self._lease.run_key, kept))

        await run_in_thread(write)


class SqlView(SqlEvents):
    """A run in a database, for reading."""

    def __init__(self, database: Database, run_key: int, header: RunHeader, *, now: Callable[[], float]) -> None:
        super().__init__(database, run_key, header.run_id)
        self.header = header
        self._run_key = run_key
        self._now = now

    async def read_trace(self, trace_digest: str) -> ExecutionTrace:
        return await self._database.read_async(lambda connection: read_trace(connection, self._run_key, trace_digest))

    async def read_ledger(self) -> LedgerSnapshot:
        return await self._database.read_async(lambda connection: read_account(connection, self._run_key))

    async def find_status(self) -> ListedStatus:
        found = select(RUNS.c.status, RUNS.c.is_cancel_requested, RUNS.c.lease_holder, RUNS.c.lease_expires_at)
        found = found.where(RUNS.c.run_key == self._run_key)
        row = await self._database.read_async(lambda connection: connection.execute(found).one_or_none())
        if row is None:
            raise UnknownRunError(f"the run {self.header.run_id!r} in {self._database.name!r} was deleted")
        holder = read_holder(row.lease_holder, row.lease_expires_at, now=self._now())
        return find_status(row.status, is_held=holder is not None, is_cancelled=bool(row.is_cancel_requested))

    async def find_holder(self) -> Holder | None:
        found = select(RUNS.c.lease_holder, RUNS.c.lease_expires_at).where(RUNS.c.run_key == self._run_key)
        row = await self._database.read_async(lambda connection: connection.execute(found).one_or_none())
        return None if row is None else read_holder(row.lease_holder, row.lease_expires_at, now=self._now())

    async def is_cancel_requested(self) -> bool:
        found = select(RUNS.c.is_cancel_requested).where(RUNS.c.run_key == self._run_key)
        return bool(await self._database.read_async(lambda connection: connection.scalars(found).one_or_none()))


def _check_run_id(run_id: str) -> None:
    """SetupError for an id that some database would change or refuse."""
    if not run_id or len(run_id) > LONGEST_RUN_ID or run_id != run_id.strip() or not _is_plain(run_id):
        raise SetupError(
            f"the id of a run is {shorten(run_id)}; give up to {LONGEST_RUN_ID} printable characters, without spaces "
            "around them"
        )


def _is_plain(text: str) -> bool:
    """Whether every database can compare this text: not if it has a zero byte, or half a surrogate pair."""
    return text.isprintable()
