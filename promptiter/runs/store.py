"""Store: keeps runs, so that they survive the process and can be resumed. A folder is one store; SQL may be another.

What a store promises; `promptiter.testing.store_contract` tests it, except for power failures:

- Events are numbered 0, 1, 2 and so on, without gaps. They are read in that order.
- What was appended or put survives a kill of the process, as soon as the call has returned.
- A decision survives a power failure, as soon as its append has returned, and so does everything that it rests on:
  the events before it, and all answers and traces that were put before it. It is never stored without these.
- One process at a time has a run open. It holds a lease, which the store renews. If the process is gone or suspended,
  the lease expires, and another process may open the run. The former holder can append no more events.
- The first answer of a key is kept.
- A run that was cancelled does not succeed: its end is stored as cancelled, or not at all.
- The uses of cases outlive the runs.
- Runs share nothing else. Runs of one store can be open at the same time, in one process or in several.

The engine calls a store on its event loop, so no method may block; the tests cannot see that. The methods of an
`EventReader` may block, and so may `RunAnswers.stats`, which the engine calls in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from promptiter.evaluation.trace_store import TraceStore
from promptiter.llm.cache.cache import RunAnswers
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.runlog.case_uses import CaseUses
from promptiter.runlog.journal import EventSource, Journal
from promptiter.runlog.results import RunResult
from promptiter.runs.artifacts import KeepTraces
from promptiter.runs.header import RunHeader
from promptiter.runs.lock import Holder
from promptiter.runs.run_list import ListedStatus, RunPage, RunQuery
from traces import ExecutionTrace


class Store(Protocol):
    """Keeps runs. SetupError if it cannot be used, UnknownRunError if it has no run with an id."""

    @property
    def case_uses(self) -> CaseUses:
        """The uses of cases by all runs, also by those that were deleted since."""
        ...

    def for_app(self, name: str) -> Store:
        """Return the store of an app in the same place. The runs of an app, and their case uses, are its own."""
        ...

    async def create(self, header: RunHeader) -> RunHeader:
        """Create a run, and return its header. If there is a run with this id, the new one gets a number: `id~2`.

        See `number_id`: it comes after the others with this id.
        """
        ...

    async def list_ids(self) -> list[str]:
        """Return the ids of all runs, sorted. Ids begin with the time of the start, unless the user chose them."""
        ...

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Return a page of the runs that are asked for."""
        ...

    def open(self, run_id: str) -> AbstractAsyncContextManager[OpenRun]:
        """Open a run to work on it. RunLockedError, with the holder, if another process does.

        The stop request of an earlier process is removed; that the run was cancelled stays. If a process ends without
        leaving the context, the run can be opened again once its lease has expired, or earlier if the store can see
        that the process is gone.
        """
        ...

    async def view(self, run_id: str) -> RunView:
        """Return a view of a run, also while a process works on it."""
        ...

    async def request_stop(self, run_id: str, *, cancel: bool = False) -> None:
        """Ask the process that works on a run to stop after the work in progress, or cancel the run.

        RunEndedError if a run to cancel has ended for good. Others are cancelled, also if no process works on them.
        """
        ...

    async def request_resume(self, run_id: str) -> None:
        """Queue a run that is to be continued, also one that was cancelled. RunEndedError if it has ended for good.

        It is queued until a process that has opened it appends an event, or until it is cancelled.
        """
        ...

    async def delete(self, run_id: str, *, only_ended: bool = False) -> None:
        """Delete a run; RunLockedError if a process works on it. Its uses of cases stay.

        With `only_ended`, RunLockedError also if it waits for a process: it was resumed since it was listed, perhaps.
        Views and a suspended holder of it may be left over: a new run shares nothing with them.
        """
        ...


class OpenRun(Protocol):
    """A run that this process works on, until it leaves the context of `Store.open`."""

    @property
    def name(self) -> str:
        """Names the run in messages. No other run, of any store, has this name."""
        ...

    @property
    def was_waiting(self) -> bool:
        """Whether the run was queued or interrupted when it was opened, so that it had not ended."""
        ...

    @property
    def journal(self) -> Journal:
        """The events. The reader outlives the open run.

        `append` raises RunLockedError if the lease was lost, and RunCancelledError for the success of a cancelled run.
        """
        ...

    @property
    def answers(self) -> RunAnswers:
        """The answers of models and tools, and what they cost."""
        ...

    @property
    def traces(self) -> TraceStore:
        """The traces of all case runs."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Messages that the user should see, such as that a damaged part was dropped."""
        ...

    def find_stop_request(self) -> str | None:
        """Return how a stop was requested; None if it was not. Asked before each case run; this must not block."""
        ...

    def is_cancel_requested(self) -> bool:
        """Return whether the run was cancelled. This must not block, and may be a second late."""
        ...

    async def write_result(self, result: RunResult, *, keep_traces: KeepTraces) -> None:
        """Store the result, as often as the run ends. Once it is final, traces that are not kept may be deleted.

        Everything follows from the events, so a failure loses nothing. RunLockedError if the lease was lost.
        """
        ...


class RunView(EventSource, Protocol):
    """A run and its events, for reading. Another process may be working on it."""

    @property
    def header(self) -> RunHeader:
        """The inputs of the run."""
        ...

    async def read_trace(self, trace_digest: str) -> ExecutionTrace:
        """Return a trace. SetupError if it is not stored."""
        ...

    async def read_ledger(self) -> LedgerSnapshot:
        """Return what the run has paid so far. Calls of the process that works on it may count as lost."""
        ...

    async def find_status(self) -> ListedStatus:
        """Return the status that lists show. UnknownRunError if the run was deleted."""
        ...

    async def find_holder(self) -> Holder | None:
        """Return the process that is working on the run; None if there is none."""
        ...

    async def is_cancel_requested(self) -> bool:
        """Return whether the run was cancelled."""
        ...
