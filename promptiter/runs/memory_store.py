"""MemoryStore: a store in the memory of one process, for tests and for runs that need not survive it.

Everything is kept as bytes, as on disk, so a run that works here works with any other store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from promptiter.errors import JournalError, RunEndedError, RunLockedError, SetupError, UnknownRunError
from promptiter.evaluation.trace_store import encode_trace
from promptiter.llm.cache.memory_answers import MemoryAnswers, RecordedCalls
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.llm.redaction import Redactor
from promptiter.runlog.case_uses import MemoryCaseUses
from promptiter.runlog.event_json import decode_event, encode_event
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.runs.app_names import check_app_name
from promptiter.runs.artifacts import KeepTraces
from promptiter.runs.header import RunHeader
from promptiter.runs.lock import LEASE_S, RENEWALS, Holder, this_machine
from promptiter.runs.run_list import (
    WAITING,
    ListedRun,
    ListedStatus,
    RunPage,
    RunQuery,
    check_ended,
    check_not_cancelled,
    describe_run,
    find_status,
    number_id,
    take_page,
)
from traces import ExecutionTrace
from traces.documents import from_json


class MemoryStore:
    """Runs in memory. A run that was opened and never left can be opened again once its lease has expired."""

    def __init__(self, *, lease_s: float = LEASE_S, now: Callable[[], float] = time.time) -> None:
        self.case_uses = MemoryCaseUses()
        self._runs: dict[str, _RunData] = {}
        self._apps: dict[str, MemoryStore] = {}
        self._lease_s = lease_s
        self._now = now

    def for_app(self, name: str) -> MemoryStore:
        return self._apps.setdefault(check_app_name(name), MemoryStore(lease_s=self._lease_s, now=self._now))

    async def create(self, header: RunHeader) -> RunHeader:
        run_id, number = header.run_id, 1
        while run_id in self._runs:
            number += 1
            run_id = number_id(header.run_id, number)
        kept = header.model_copy(update={"run_id": run_id})
        self._runs[run_id] = _RunData(kept)
        return kept

    async def list_ids(self) -> list[str]:
        return sorted(self._runs)

    async def list_runs(self, query: RunQuery) -> RunPage:
        wanted = sorted((each for each in self._runs if query.cursor is None or each < query.cursor), reverse=True)
        return take_page((self._list_run(self._runs[run_id]) for run_id in wanted), query)

    def _list_run(self, run: _RunData) -> ListedRun:
        holder = run.find_holder(self._now)
        listed = describe_run(
            run.header,
            _decode(run, -1) if run.events else None,
            spent=run.calls.add_up().total,
            holder=holder,
            is_cancelled=run.is_cancel_requested,
            is_queued=run.is_queued,
        )
        return listed._replace(is_abandoned=holder is None and run.holder is not None)

    @asynccontextmanager
    async def open(self, run_id: str) -> AsyncIterator[MemoryRun]:
        lease = _Lease(self._find(run_id), self._lease_s, self._now)
        renewing = asyncio.create_task(lease.keep_renewing())
        try:
            yield MemoryRun(lease)
        finally:
            renewing.cancel()
            lease.release()

    async def view(self, run_id: str) -> MemoryView:
        return MemoryView(self._find(run_id), self._now)

    async def request_stop(self, run_id: str, *, cancel: bool = False) -> None:
        run = self._find(run_id)
        if cancel and run.events and is_finished(_decode(run, -1)):
            raise RunEndedError(run_id)
        run.is_stop_requested, run.is_cancel_requested = not cancel, cancel or run.is_cancel_requested

    async def request_resume(self, run_id: str) -> None:
        run = self._find(run_id)
        if run.events and is_finished(_decode(run, -1)):
            raise RunEndedError(run_id)
        run.is_cancel_requested, run.queued_after = False, len(run.events)

    async def delete(self, run_id: str, *, only_ended: bool = False) -> None:
        run = self._find(run_id)
        if (holder := run.find_holder(self._now)) is not None:
            raise RunLockedError(f"the run {run_id!r} is locked by process {holder.pid}: it is open")
        if only_ended:
            check_ended(run_id, run.find_status(self._now))
        run.lease, run.holder, run.is_deleted = None, None, True  # a suspended holder writes no more
        del self._runs[run_id]

    def _find(self, run_id: str) -> _RunData:
        if run_id not in self._runs:
            raise UnknownRunError(f"there is no run {run_id!r} in this store")
        return self._runs[run_id]


class _MemoryEvents:
    def __init__(self, run: _RunData) -> None:
        self._run = run

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        for event in self.reader().read(start):
            yield event

    async def last(self) -> Event | None:
        return _decode(self._run, -1) if self._run.events else None

    def reader(self) -> _MemoryReader:
        return _MemoryReader(self._run)


class MemoryRun:
    """A run in memory that is open."""

    def __init__(self, lease: _Lease) -> None:
        self._lease = lease
        self._run = lease.run
        self._run.is_stop_requested = False
        self.was_waiting = lease.status_before in WAITING
        self.name = f"{self._run.header.run_id} in memory at {id(self._run):#x}"
        self.notes: Sequence[str] = ()
        self.journal = _MemoryRunJournal(lease)
        self.answers = MemoryAnswers(self._run.calls)
        self.traces = _MemoryTraces(self._run.traces)

    def find_stop_request(self) -> str | None:
        return "a request to the store" if self._run.is_stop_requested else None

    def is_cancel_requested(self) -> bool:
        return self._run.is_cancel_requested

    async def write_result(self, result: RunResult, *, keep_traces: KeepTraces) -> None:  # noqa: ARG002
        """Nothing needs to be kept: the result follows from the events. All traces stay."""
        self._lease.renew()


class MemoryView(_MemoryEvents):
    """A run in memory, for reading."""

    def __init__(self, run: _RunData, now: Callable[[], float]) -> None:
        super().__init__(run)
        self._now = now

    @property
    def header(self) -> RunHeader:
        return self._run.header

    async def read_trace(self, trace_digest: str) -> ExecutionTrace:
        return await _MemoryTraces(self._run.traces).get(trace_digest)

    async def read_ledger(self) -> LedgerSnapshot:
        return self._run.calls.add_up()

    async def find_status(self) -> ListedStatus:
        if self._run.is_deleted:
            raise UnknownRunError(f"the run {self.header.run_id!r} was deleted")
        return self._run.find_status(self._now)

    async def find_holder(self) -> Holder | None:
        return self._run.find_holder(self._now)

    async def is_cancel_requested(self) -> bool:
        return self._run.is_cancel_requested


@dataclass(eq=False)
class _RunData:
    """What is kept of a run. `queued_after` is the number of events after which it was to be resumed."""

    header: RunHeader
    events: list[bytes] = field(default_factory=list)
    calls: RecordedCalls = field(default_factory=RecordedCalls)
    traces: dict[str, bytes] = field(default_factory=dict)
    holder: Holder | None = None
    lease: _Lease | None = None
    is_stop_requested: bool = False
    is_cancel_requested: bool = False
    is_deleted: bool = False
    queued_after: int | None = None

    @property
    def is_queued(self) -> bool:
        return self.queued_after == len(self.events)

    def find_status(self, now: Callable[[], float]) -> ListedStatus:
        return find_status(
            self.header,
            _decode(self, -1) if self.events else None,
            is_held=self.find_holder(now) is not None,
            is_cancelled=self.is_cancel_requested,
            is_queued=self.is_queued,
        )

    def find_holder(self, now: Callable[[], float]) -> Holder | None:
        return self.holder if self.holder is not None and self.holder.expires_at > now() else None


class _Lease:
    """The right to work on a run. A new one ends an expired one."""

    def __init__(self, run: _RunData, lease_s: float, now: Callable[[], float]) -> None:
        self.run = run
        self._lease_s = lease_s
        self._now = now
        since = now()
        if (holder := run.find_holder(now)) is not None:
            raise RunLockedError(f"the run {run.header.run_id!r} is locked by process {holder.pid}: it is open")
        self.status_before = run.find_status(now)
        run.lease = self
        run.holder = Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=this_machine(),
            since=since,
            expires_at=since + lease_s,
        )

    def renew(self) -> None:
        """Extend the lease. RunLockedError if the run was opened again since it expired, or was deleted."""
        if self.run.lease is not self or self.run.holder is None:
            raise RunLockedError(
                f"the run {self.run.header.run_id!r} was taken over or deleted; this process stops working on it"
            )
        self.run.holder = replace(self.run.holder, expires_at=self._now() + self._lease_s)

    async def keep_renewing(self) -> None:
        with suppress(RunLockedError):
            while True:
                await asyncio.sleep(self._lease_s / RENEWALS)
                self.renew()

    def release(self) -> None:
        if self.run.lease is self:
            self.run.lease, self.run.holder = None, None


class _MemoryRunJournal(_MemoryEvents):
    def __init__(self, lease: _Lease) -> None:
        super().__init__(lease.run)
        self._lease = lease

    async def append(self, event: Event) -> None:
        self._lease.renew()
        if event.seq != len(self._run.events):
            raise JournalError(
                f"the run {self._run.header.run_id!r} has {len(self._run.events)} events, and the next to append has "
                f"number {event.seq}: the run does not continue where its journal ends; resume it"
            )
        check_not_cancelled(event, is_cancelled=self._run.is_cancel_requested)
        self._run.events.append(encode_event(event))


class _MemoryReader:
    def __init__(self, run: _RunData) -> None:
        self._run = run

    def read(self, start: int = 0) -> Iterator[Event]:
        for seq in range(start, len(self._run.events)):
            yield _decode(self._run, seq)


class _MemoryTraces:
    def __init__(self, kept: dict[str, bytes]) -> None:
        self._kept = kept

    async def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        name, raw = encode_trace(trace, redactor)
        self._kept.setdefault(name, raw)
        return name

    async def get(self, name: str) -> ExecutionTrace:
        if name not in self._kept:
            raise SetupError(f"the trace {name[:12]}… cannot be read: it is not stored")
        return from_json(self._kept[name])

    async def has(self, name: str) -> bool:
        return name in self._kept

    async def sync(self) -> None:
        """Nothing is on disk."""


def _decode(run: _RunData, seq: int) -> Event:
    return decode_event(run.events[seq], where=f"event {seq} of the run {run.header.run_id!r}")
