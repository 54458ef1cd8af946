"""Leases: one process at a time works on a run.

A run's row has the number of its lease, its holder and when it expires. Opening a run takes the next number. Appends
check it in their own transaction, so a holder that was suspended cannot write after another has taken over.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import orjson
from sqlalchemy import ColumnElement, Connection, and_, select, update

from promptiter.errors import PromptiterError, RunLockedError
from promptiter.runs.lock import RENEWALS, Holder, this_machine
from promptiter.runs.run_list import WAITING
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.tables import RUNS
from promptiter.runs.sql.writes import Lease, find_lost_lease

POLL_S = 0.5
"""How often open runs look whether they should stop."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StopRequests:
    """What other processes ask of an open run: to stop after the work in progress, or at once."""

    is_stop: bool
    is_cancel: bool


NO_REQUESTS = StopRequests(is_stop=False, is_cancel=False)


class LeaseKeeper:
    """Takes the leases of this process, renews them, and learns of stop requests. A thread does so while runs are open.

    A thread is independent of event loops, which may be blocked for longer than a lease.
    """

    def __init__(self, database: Database, *, lease_s: float, now: Callable[[], float]) -> None:
        self._database = database
        self._lease_s = lease_s
        self._now = now
        self._guard = threading.Lock()
        self._held: dict[int, Lease] = {}
        self._requests: dict[int, StopRequests] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @property
    def expiry(self) -> float:
        """When a lease that is renewed now expires."""
        return self._now() + self._lease_s

    def acquire(self, run_key: int, run_id: str) -> Lease:
        """Take the lease of a run. RunLockedError if a process holds it.

        An earlier stop request is removed; that the run was cancelled stays.
        """
        holder = Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=_this_place(),
            since=self._now(),
            expires_at=self.expiry,
        )
        attempts = 0

        def take(connection: Connection) -> tuple[Lease, StopRequests]:
            nonlocal attempts
            attempts += 1
            found = select(
                *(RUNS.c.lease_number, RUNS.c.lease_holder, RUNS.c.lease_expires_at),
                *(RUNS.c.status, RUNS.c.is_cancel_requested),
            )
            row = connection.execute(found.where(RUNS.c.run_key == run_key).with_for_update()).one_or_none()
            if row is None:
                raise RunLockedError(f"the run {run_id!r} was deleted")
            other = read_holder(row.lease_holder, row.lease_expires_at, now=self._now())
            is_own = other == holder and attempts > 1  # it was committed before the connection was lost
            if other is not None and not is_own:
                raise _describe_locked(run_id, other, now=self._now())
            number = row.lease_number + 1
            values = {
                "lease_number": number,
                "lease_holder": orjson.dumps(asdict(holder)),
                "lease_expires_at": holder.expires_at,
                "is_stop_requested": 0,
            }
            connection.execute(update(RUNS).where(RUNS.c.run_key == run_key).values(values))
            requests = StopRequests(is_stop=False, is_cancel=bool(row.is_cancel_requested))
            was_waiting = not row.is_cancel_requested and row.status in (*WAITING, "running")  # its process is gone
            return Lease(run_key=run_key, run_id=run_id, number=number, was_waiting=was_waiting), requests

        lease, requests = self._database.write(take)
        with self._guard:
            self._held[run_key], self._requests[run_key] = lease, requests
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="run-leases", daemon=True)
                self._thread.start()
        return lease

    def release(self, lease: Lease) -> None:
        """Give a lease back. If the database cannot be reached, it expires by itself."""
        with self._guard:
            if self._held.get(lease.run_key) == lease:
                del self._held[lease.run_key]
                self._requests.pop(lease.run_key, None)
            if not self._held:
                self._wake.set()
        try:
            self._database.write(
                lambda connection: connection.execute(
                    update(RUNS).where(_is_held_by(lease)).values(lease_holder=None, lease_expires_at=None)
                )
            )
        except PromptiterError as error:
            logger.warning(
                "the run %r could not be released, so its lease ends when it expires: %s", lease.run_id, error
            )

    def check(self, lease: Lease) -> None:
        """Renew a lease. RunLockedError if it was lost."""

        def renew(connection: Connection) -> RunLockedError | None:
            lost = find_lost_lease(connection, lease)
            if lost is None:
                _renew(connection, lease, self.expiry)
            return lost

        if (lost := self._database.write(renew)) is not None:
            raise lost

    def refuse_held(self, connection: Connection, run_key: int, run_id: str) -> None:
        """RunLockedError if a process works on a run. No other can take it before the end of the transaction."""
        found = select(RUNS.c.lease_holder, RUNS.c.lease_expires_at).where(RUNS.c.run_key == run_key)
        row = connection.execute(found.with_for_update()).one_or_none()
        holder = None if row is None else read_holder(row.lease_holder, row.lease_expires_at, now=self._now())
        if holder is not None:
            raise _describe_locked(run_id, holder, now=self._now())

    def find_requests(self, lease: Lease) -> StopRequests:
        """The requests that were last seen. This never blocks."""
        return self._requests.get(lease.run_key, NO_REQUESTS)

    def _keep(self) -> None:
        renewed, fails = time.monotonic(), False
        while True:
            self._wake.wait(POLL_S)
            with self._guard:
                if not self._held:
                    self._thread = None
                    return
                held = dict(self._held)
                self._wake.clear()
            is_due = time.monotonic() - renewed >= self._lease_s / RENEWALS
            try:
                self._look(held)
                if is_due:
                    self._database.write(partial(self._renew_all, held=held))
                    renewed = time.monotonic()
                fails = False
            except Exception as error:  # noqa: BLE001 - an append raises it too; the next turn tries it again
                if not fails:
                    logger.warning("the leases of open runs could not be renewed: %s", error)
                fails = True

    def _look(self, held: dict[int, Lease]) -> None:
        """Look for stop requests."""
        found = select(RUNS.c.run_key, RUNS.c.is_stop_requested, RUNS.c.is_cancel_requested)
        rows = self._database.read(
            lambda connection: connection.execute(found.where(RUNS.c.run_key.in_(list(held)))).all()
        )
        with self._guard:
            for run_key, is_stop, is_cancel in rows:
                if self._held.get(run_key) == held[run_key]:
                    self._requests[run_key] = StopRequests(is_stop=bool(is_stop), is_cancel=bool(is_cancel))

    def _renew_all(self, connection: Connection, held: dict[int, Lease]) -> None:
        for run_key in sorted(held):
            _renew(connection, held[run_key], self.expiry)


def read_holder(raw: bytes | None, expires_at: float | None, *, now: float) -> Holder | None:
    """The process that holds a run, from its row; None if the lease has expired, or the process is known to be gone."""
    if raw is None or expires_at is None or expires_at <= now:
        return None
    holder = Holder(**(orjson.loads(raw) | {"expires_at": expires_at}))
    return None if _is_gone(holder) else holder


def _is_held_by(lease: Lease) -> ColumnElement[bool]:
    return and_(
        RUNS.c.run_key == lease.run_key,
        RUNS.c.lease_number == lease.number,
        RUNS.c.lease_expires_at.is_not(None),
    )


def _renew(connection: Connection, lease: Lease, expires_at: float) -> None:
    connection.execute(update(RUNS).where(_is_held_by(lease)).values(lease_expires_at=expires_at))


def _describe_locked(run_id: str, holder: Holder, *, now: float) -> RunLockedError:
    who = f"process {holder.pid} on {holder.host}"
    if holder.pid == os.getpid() and holder.machine == _this_place():
        return RunLockedError(f"the run {run_id!r} is locked by {who}; that is this process")
    return RunLockedError(
        f"the run {run_id!r} is locked by {who}; wait until it ends, or if that process is gone, try again in "
        f"{holder.expires_at - now:.0f} s"
    )


def _this_place() -> str:
    """Where process ids have a meaning: this kernel, and on Linux this namespace, which containers do not share."""
    try:
        return f"{this_machine()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return this_machine()


def _is_gone(holder: Holder) -> bool:
    """Whether a process of this machine has ended. One that has got its number meanwhile counts as alive."""
    if holder.machine != _this_place() or "pid:" not in holder.machine:
        return False
    return not Path(f"/proc/{holder.pid}").exists()
