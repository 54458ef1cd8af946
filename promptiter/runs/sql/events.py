"""The events of a run, one row each. They are read in pages, so memory does not grow with the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, select

from promptiter.errors import JournalError, RunCancelledError, RunLockedError, SetupError
from promptiter.llm.ledger import Spending
from promptiter.runlog.codec import to_short_plain
from promptiter.runlog.event_json import decode_event, encode_event
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.runlog.journal import DECISIONS
from promptiter.runlog.payloads import RunCompleted
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.leases import LeaseKeeper
from promptiter.runs.sql.packing import pack, unpack
from promptiter.runs.sql.tables import EVENTS
from promptiter.runs.sql.writer import Writer
from promptiter.runs.sql.writes import AppendEvent, Lease

PAGE = 128
"""Events that are read at once."""


class SqlReader:
    """Reads the events of a run in blocking code, from any thread."""

    def __init__(self, database: Database, run_key: int, run_id: str) -> None:
        self._database = database
        self._run_key = run_key
        self._run_id = run_id

    def read(self, start: int = 0) -> Iterator[Event]:
        while page := self._database.read(lambda connection: self.read_page(connection, start)):  # noqa: B023
            for seq, body in page:
                yield self.decode(seq, body)
            start = page[-1][0] + 1

    def read_page(self, connection: Connection, start: int) -> Sequence[tuple[int, bytes]]:
        """The next events from a number on, as they are stored. A part that is missing is an error."""
        found = select(EVENTS.c.seq, EVENTS.c.body).where(EVENTS.c.run_key == self._run_key, EVENTS.c.seq >= start)
        rows = connection.execute(found.order_by(EVENTS.c.seq).limit(PAGE)).all()
        return [(seq, body) for seq, body in rows]

    def read_last(self, connection: Connection) -> Event | None:
        found = select(EVENTS.c.seq, EVENTS.c.body).where(EVENTS.c.run_key == self._run_key)
        row = connection.execute(found.order_by(EVENTS.c.seq.desc()).limit(1)).one_or_none()
        return None if row is None else self.decode(row.seq, row.body)

    def decode(self, seq: int, body: bytes) -> Event:
        where = f"event {seq} of the run {self._run_id!r} in {self._database.name}"
        event = decode_event(unpack(body), where=where)
        if event.seq != seq:
            raise JournalError(f"{where} says that it is event {event.seq}: rows were changed; restore them")
        return event


class SqlEvents:
    """The events of a run, for reading."""

    def __init__(self, database: Database, run_key: int, run_id: str) -> None:
        self._database = database
        self._reader = SqlReader(database, run_key, run_id)

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        while page := await self._database.read_async(
            lambda connection: self._reader.read_page(connection, start)  # noqa: B023
        ):
            for seq, body in page:
                yield self._reader.decode(seq, body)
            start = page[-1][0] + 1

    async def last(self) -> Event | None:
        return await self._database.read_async(self._reader.read_last)

    def reader(self) -> SqlReader:
        return self._reader


class SqlJournal(SqlEvents):
    """The journal of a run that is open. `count_spent` gives what the run has paid so far."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        lease: Lease,
        *,
        keeper: LeaseKeeper,
        now: Callable[[], float],
        count_spent: Callable[[], Awaitable[Spending]],
    ) -> None:
        super().__init__(database, lease.run_key, lease.run_id)
        self._writer = writer
        self._lease = lease
        self._keeper = keeper
        self._now = now
        self._count_spent = count_spent

    async def append(self, event: Event) -> None:
        changes = {
            **describe_progress(event, await self._count_spent()),
            "updated_at": self._now(),
            "lease_expires_at": self._keeper.expiry,
        }
        write = AppendEvent(
            lease=self._lease,
            seq=event.seq,
            body=pack(encode_event(event)),
            changes=changes,
            is_durable=event.type in DECISIONS,
            is_success=changes["status"] == "succeeded",
        )
        try:
            await self._writer.submit(write)
        except (RunLockedError, RunCancelledError):
            raise
        except SetupError as error:
            raise JournalError(f"event {event.seq} ({event.type}) could not be written: {error}") from error


def describe_progress(event: Event, spent: Spending) -> dict[str, Any]:
    """What the row of a run says after an event."""
    end = event.payload if event.type == RunCompleted.event_type else None
    if not isinstance(end, RunCompleted):
        return {
            "status": "running",
            "is_final": 0,
            "round": event.round,
            "duration_s": event.measured.elapsed_s,
            "verdict": None,
            "baseline": None,
            "best": None,
            "details": orjson.dumps({"spent": to_short_plain(spent)}),
        }
    shown = {
        "spent": to_short_plain(end.measured.spent.total),
        "stop_reason": None if end.stop is None else end.stop.reason,
        "error": end.error,
    }
    return {
        "status": end.status,
        "is_final": int(is_finished(event)),
        "round": event.round,
        "duration_s": end.measured.duration_s,
        "verdict": end.verdict,
        "baseline": end.baseline,
        "best": end.best,
        "details": pack(orjson.dumps(shown)),
    }
