"""What a run writes, and how several writes become one transaction.

A write that is refused does not disturb the others. Every row has a key that its writer chose, so writes can be applied
again if the connection was lost before the commit was confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Update, and_, bindparam, insert, select, update

from promptiter.errors import JournalError, RunCancelledError, RunLockedError
from promptiter.grouping import group_by
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.tables import ANSWERS, CALLS, EVENTS, RUNS, TRACES

CallKind: TypeAlias = Literal["asked", "answered", "given_up"]
_Key: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on a run. A later one of the same run has a higher number, and ends this one.

    `was_waiting` says whether the run was queued or interrupted when the lease was taken.
    """

    run_key: int
    run_id: str
    number: int
    was_waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEvent:
    """Append an event if the lease is valid and the event is the next one. `changes` are those of the run's row.

    A success is refused if the run was cancelled.
    """

    lease: Lease
    seq: int
    body: bytes
    changes: Mapping[str, Any]
    is_durable: bool
    is_success: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCall:
    """Add a line to the account of a run."""

    lease: Lease
    place: int
    kind: CallKind
    call_hash: bytes
    entry: bytes | None
    is_durable: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnswer:
    """Store an answer, and what it cost, unless there is one: then that one is the result, and only the cost is kept.

    Without an `entry` it cost nothing: it came from a cache that runs share.
    """

    lease: Lease
    place: int
    call_hash: bytes
    body: bytes
    entry: bytes | None
    is_durable: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTrace:
    """Store a trace, unless it is stored."""

    lease: Lease
    trace_hash: bytes
    body: bytes
    is_durable: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Make everything that was written survive a power failure."""

    lease: Lease
    is_durable: bool = field(default=True, init=False)


Write: TypeAlias = AppendEvent | NoteCall | PutAnswer | PutTrace | Sync
Outcome: TypeAlias = bytes | Exception | None
"""The answer that was stored first, if it is another one; or why a write was refused."""


def apply_writes(
    connection: Connection, database: Database, writes: Sequence[Write], *, is_retry: bool
) -> list[Outcome]:
    """Apply writes in one transaction, and return what became of each.

    Answers and traces of a process that has lost its lease are kept, because they are paid. Its events are refused, and
    so are its notes of calls that it is about to make.
    """
    others = [each for each in writes if not isinstance(each, AppendEvent)]
    keys = sorted({each.lease.run_key for each in others})
    rows = {row.run_key: row for row in connection.execute(_FIND_LEASES, {"keys": keys})} if keys else {}
    refused = {id(each): lost for each in others if (lost := _find_refusal(each, rows)) is not None}
    kept = [each for each in others if id(each) not in refused]
    _insert_traces(connection, database, [each for each in kept if isinstance(each, PutTrace)])
    earlier = _insert_answers(connection, database, [each for each in kept if isinstance(each, PutAnswer)])
    _insert_calls(connection, database, kept, earlier)
    if any(isinstance(each, Sync) for each in kept):  # a commit without changes would sync nothing in SQLite
        connection.execute(update(RUNS).where(RUNS.c.run_key == kept[0].lease.run_key).values(status=RUNS.c.status))
    appends = sorted(
        (each for each in writes if isinstance(each, AppendEvent)), key=lambda each: (each.lease.run_key, each.seq)
    )  # all processes lock the rows of runs in the same order
    appended = {id(each): _append(connection, each, is_retry=is_retry) for each in appends}
    outcomes: list[Outcome] = []
    for each in writes:
        if isinstance(each, AppendEvent):
            outcomes.append(appended[id(each)])
        elif id(each) in refused:
            outcomes.append(refused[id(each)])
        else:
            outcomes.append(earlier.get(_key_of(each)) if isinstance(each, PutAnswer) else None)
    return outcomes


def _find_refusal(write: Write, rows: Mapping[int, Any]) -> RunLockedError | None:
    """Why a write is refused that appends no event; None if it is not."""
    lost = _check_lease(write.lease, rows.get(write.lease.run_key))
    is_refused = write.lease.run_key not in rows or (isinstance(write, NoteCall) and write.kind == "asked")
    return lost if is_refused else None


def _insert_traces(connection: Connection, database: Database, writes: Sequence[PutTrace]) -> None:
    rows = {
        (each.lease.run_key, each.trace_hash): {
            "run_key": each.lease.run_key,
            "trace_hash": each.trace_hash,
            "body": each.body,
        }
        for each in writes
    }
    if rows:
        connection.execute(database.insert_new(TRACES), _in_order(rows))


def _insert_answers(connection: Connection, database: Database, writes: Sequence[PutAnswer]) -> dict[Any, bytes]:
    """Insert answers. Returns those that were there before, by the place of the write that came too late."""
    rows: dict[Any, dict[str, Any]] = {}
    for each in writes:
        row = {
            "run_key": each.lease.run_key,
            "call_hash": each.call_hash,
            "place": each.place,
            "is_paid": int(each.entry is not None),
            "body": each.body,
        }
        rows.setdefault((each.lease.run_key, each.call_hash), row)
    if not rows:
        return {}
    connection.execute(database.insert_new(ANSWERS), _in_order(rows))
    winners: dict[_Key, int] = {}
    for run_key, hashes in group_by(rows, lambda key: key[0]).items():
        found = connection.execute(_FIND_PLACES, {"of_run": run_key, "hashes": [each for _, each in hashes]})
        winners |= {(run_key, bytes(call_hash)): place for call_hash, place in found}
    late = [each for each in writes if winners[each.lease.run_key, each.call_hash] != each.place]
    return {_key_of(each): _read_answer(connection, each) for each in late}


def _read_answer(connection: Connection, write: PutAnswer) -> bytes:
    found = select(ANSWERS.c.body).where(
        ANSWERS.c.run_key == write.lease.run_key, ANSWERS.c.call_hash == write.call_hash
    )
    return bytes(connection.scalars(found).one())


def _insert_calls(
    connection: Connection, database: Database, writes: Sequence[Write], earlier: Mapping[Any, bytes]
) -> None:
    """Add lines to the account: notes, and what answers cost."""
    rows: dict[Any, dict[str, Any]] = {}
    for each in writes:
        if isinstance(each, NoteCall):
            kind: CallKind = each.kind
        elif isinstance(each, PutAnswer) and each.entry is not None:
            kind = "given_up" if _key_of(each) in earlier else "answered"
        else:
            continue
        rows[_key_of(each)] = {
            "run_key": each.lease.run_key,
            "place": each.place,
            "kind": kind,
            "call_hash": each.call_hash,
            "entry": each.entry,
        }
    if rows:
        connection.execute(database.insert_new(CALLS), _in_order(rows))


def _append(connection: Connection, write: AppendEvent, *, is_retry: bool) -> Outcome:
    """Append an event and update the row of its run, or return why not."""
    lease = write.lease
    names = {"of_run": lease.run_key, "of_lease": lease.number, "of_seq": write.seq, "next_seq": write.seq + 1}
    statement = _build_update(tuple(write.changes), is_success=write.is_success)
    changed = connection.execute(statement, {**names, **write.changes})
    if changed.rowcount == 1:
        connection.execute(_INSERT_EVENT, {"run_key": lease.run_key, "seq": write.seq, "body": write.body})
        return None
    if (lost := find_lost_lease(connection, lease)) is not None:
        return lost
    if is_retry and _read_event(connection, write) == write.body:  # it was committed before the connection was lost
        return None
    found = select(RUNS.c.next_seq, RUNS.c.is_cancel_requested).where(RUNS.c.run_key == lease.run_key)
    next_seq, is_cancelled = connection.execute(found).one()
    if next_seq == write.seq and is_cancelled:
        return RunCancelledError(f"the run {lease.run_id!r} was cancelled")
    return JournalError(
        f"the run {lease.run_id!r} has {next_seq} events, and the next to append has number {write.seq}: the run does "
        "not continue where its journal ends; resume it"
    )


@cache
def _build_update(columns: tuple[str, ...], *, is_success: bool) -> Update:
    """The statement that moves a run to its next event. Building statements takes longer than executing them."""
    is_next = and_(
        RUNS.c.run_key == bindparam("of_run"),
        RUNS.c.lease_number == bindparam("of_lease"),
        RUNS.c.lease_expires_at.is_not(None),
        RUNS.c.next_seq == bindparam("of_seq"),
        *([RUNS.c.is_cancel_requested == 0] if is_success else []),
    )
    return update(RUNS).where(is_next).values({name: bindparam(name) for name in ("next_seq", *columns)})


_FIND_LEASES = select(RUNS.c.run_key, RUNS.c.lease_number, RUNS.c.lease_expires_at).where(
    RUNS.c.run_key.in_(bindparam("keys", expanding=True))
)
_FIND_PLACES = select(ANSWERS.c.call_hash, ANSWERS.c.place).where(
    ANSWERS.c.run_key == bindparam("of_run"), ANSWERS.c.call_hash.in_(bindparam("hashes", expanding=True))
)
_INSERT_EVENT = insert(EVENTS)


def find_lost_lease(connection: Connection, lease: Lease) -> RunLockedError | None:
    """Why a lease is no longer valid; None if it is."""
    found = select(RUNS.c.lease_number, RUNS.c.lease_expires_at).where(RUNS.c.run_key == lease.run_key)
    return _check_lease(lease, connection.execute(found).one_or_none())


def _check_lease(lease: Lease, row: Any) -> RunLockedError | None:
    """The same for the row of a run; None if it was deleted."""
    if row is None:
        how = "deleted"
    elif row.lease_number != lease.number:
        how = "taken over by another process"
    elif row.lease_expires_at is None:
        how = "left"
    else:
        return None
    return RunLockedError(f"the run {lease.run_id!r} was {how}; this process stops working on it")


def _read_event(connection: Connection, write: AppendEvent) -> bytes | None:
    found = select(EVENTS.c.body).where(EVENTS.c.run_key == write.lease.run_key, EVENTS.c.seq == write.seq)
    body = connection.scalars(found).one_or_none()
    return None if body is None else bytes(body)


def _key_of(write: NoteCall | PutAnswer) -> tuple[int, int]:
    return write.lease.run_key, write.place


def _in_order(rows: Mapping[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by their keys: two processes that insert the same rows wait for each other, in the same order."""
    return [rows[key] for key in sorted(rows)]
