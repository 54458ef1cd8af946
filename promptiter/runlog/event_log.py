"""The event log of a run in progress: replays the events of the journal, then appends new ones.

This is what makes a resumed run the same run: the search is executed again from the start, and its requests are
answered from the journal as long as they are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

from promptiter.concurrency import call_any, finish_before_cancel, is_cancelled
from promptiter.errors import BudgetEndedError, JournalError, NonDeterministicSearchError, SetupError
from promptiter.llm.redaction import Redactor
from promptiter.runlog.codec import to_short_plain
from promptiter.runlog.events import (
    Event,
    EventMeasured,
    Observer,
    Payload,
    Phase,
    UnknownPayload,
    check_payload_class,
)
from promptiter.runlog.journal import Journal
from promptiter.runlog.meter import Meter
from promptiter.runlog.payloads import BudgetEnded, RunCompleted, StopDecided, ValidationRead
from promptiter.runlog.run_state import RunState

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Payload)


class EventLog:
    """Numbers the events of one run, stores them in its journal, and passes new ones to the observers.

    An earlier end of the run (it failed, was cancelled, or was stopped by the user) is skipped: the run continues after
    it. `state` is the run after the events so far. Each event has the working time of the run so far.
    """

    def __init__(
        self,
        run_id: str,
        journal: Journal,
        observers: Sequence[Observer] = (),
        *,
        meter: Meter,
        redactor: Redactor,
    ) -> None:
        self.run_id = run_id
        self.round = 0
        self.phase: Phase = "start"
        self.problems: list[str] = []
        self.state = RunState()
        self.journal = journal
        self.meter = meter
        self._observers = list(observers)
        self._redactor = redactor
        self._seq = 0
        self._prior = journal.read()
        self._next: Event | None = None
        self._is_at_end = False
        self._when_live: Payload | None = None

    async def is_replaying(self) -> bool:
        """Whether there are events left to replay. Nothing is written before that."""
        return await self._peek() is not None

    async def take(self, kind: type[P], *, request: str | None = None) -> P | None:
        """Return the next payload of the journal, or None at its end. Raises if it is not the expected one.

        Raises BudgetEndedError where the budget ended the search or the ablation.
        """
        event = await self._peek()
        if event is None:
            return None
        payload = event.payload
        if isinstance(payload, BudgetEnded) and kind is not BudgetEnded:
            raise BudgetEndedError(payload.message, cap=payload.cap)
        if isinstance(payload, UnknownPayload) and event.type == kind.event_type:
            raise JournalError(f"event {event.seq} of the journal cannot be read: {payload.problem}")
        if not isinstance(payload, kind) or (request is not None and event.request != request):
            raise NonDeterministicSearchError(
                f"event {event.seq} of the journal is {event.type!r}, but this time the run asks for "
                f"{kind.event_type!r}"
                + (" with another request" if event.type == kind.event_type else "")
                + "; the agent, the search or the inputs have changed since the run started"
            )
        self._replay(event)
        self._next = None
        return payload

    async def is_next(self, kind: type[Payload]) -> bool:
        """Whether the next payload of the journal is of this type."""
        event = await self._peek()
        return event is not None and event.type == kind.event_type

    async def take_any(self, kind: type[P]) -> P | None:
        """Return the next payload of the journal if it is of this type."""
        return await self.take(kind) if await self.is_next(kind) else None

    async def note(self, payload: P, *, request: str | None = None) -> P:
        """Return a fact that follows from earlier ones as the journal has it: replayed, or appended now."""
        check_payload_class(type(payload))
        return await self.take(type(payload), request=request) or await self.append(payload, request=request)

    async def append_when_live(self, payload: Payload) -> None:
        """Write an event that replays skip (see `is_skipped`): now, or before the first event that is not replayed.

        It is not written if the journal has one of its type, or if it is withdrawn before.
        """
        self._when_live = payload
        if not await self.is_replaying():
            await self._append_now_live()

    def withdraw(self) -> None:
        """Do not write the event of `append_when_live`, if it is not written yet."""
        self._when_live = None

    async def _append_now_live(self) -> None:
        payload, self._when_live = self._when_live, None
        if payload is not None:
            await self.append(payload)

    async def _peek(self) -> Event | None:
        """Return the next event to replay, without taking it; None after the last."""
        if self._next is None and not self._is_at_end:
            try:
                self._next = await self._read_next()
            except BaseException:
                self._prior = self.journal.read(self._seq)  # an iterator that was cancelled has ended
                raise
            self._is_at_end = self._next is None
        return self._next

    async def _read_next(self) -> Event | None:
        async for event in self._prior:
            self._seq = event.seq + 1
            if not is_skipped(event):
                return event
            self._replay(event)
        return None

    def _replay(self, event: Event) -> None:
        self.state.take(event)
        if self._when_live is not None and self._when_live.event_type == event.type:
            self._when_live = None
        spent = event.payload.measured.spent if isinstance(event.payload, StopDecided) else None
        self.meter.continue_from(elapsed_s=event.measured.elapsed_s, spent=spent)

    async def append(self, payload: P, *, request: str | None = None) -> P:
        """Write an event to the journal, then pass it to the observers. A cancellation waits until it is written.

        Returns the payload as written, without secrets, so that callers continue with the same data as in a replay.
        """
        check_payload_class(type(payload))
        await self._peek()  # reads an earlier end of the run, after which this event is written
        await self._append_now_live()
        name = type(payload).__qualname__
        try:
            event = self._build_event(payload, request)
        except ValueError as error:  # errors of pydantic are ValueErrors
            raise SetupError(f"{name} cannot be recorded as JSON: {error}; give its fields plain values") from error
        written = event.payload
        if isinstance(written, UnknownPayload):
            raise SetupError(f"{name} cannot be read back: {written.problem}; give its fields values of their types")
        assert isinstance(written, type(payload)), "a registered class is read back as itself"
        await self._write(event)
        for observer in list(self._observers):
            await self._notify(observer, event)
        return written

    def _build_event(self, payload: Payload, request: str | None) -> Event:
        return Event(
            seq=self._seq,
            run_id=self.run_id,
            round=self.round,
            phase=self.phase,
            type=payload.event_type,
            version=payload.version,
            request=request,
            data=self._redactor.redact_known_json(to_short_plain(payload)),
            measured=EventMeasured(elapsed_s=round(self.meter.elapsed_s, 3)),
        )

    async def _write(self, event: Event) -> None:
        """Append an event. If that is cancelled, it is finished first."""
        try:
            await self.journal.append(event)
        except asyncio.CancelledError:
            await finish_before_cancel(self._write_again(event))
            raise
        self._keep(event)

    async def _write_again(self, event: Event) -> None:
        """Append an event unless the journal has it already."""
        last = await self.journal.last()
        if last is None or last.seq < event.seq:
            await self.journal.append(event)
        self._keep(event)

    def _keep(self, event: Event) -> None:
        self._seq += 1
        self.state.take(event)

    async def _notify(self, observer: Observer, event: Event) -> None:
        try:
            await call_any(observer.observe, event)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if is_cancelled(error):
                raise
            self._observers.remove(observer)
            name, message = type(observer).__qualname__, self._redactor.redact_text(repr(error))
            problem = f"observer {name} failed at event {event.seq} and is not called again: {message}"
            self.problems.append(problem)
            logger.warning(problem)


def is_skipped(event: Event) -> bool:
    """Whether a replay skips an event: an end of the run, or that a reviewer joined it, at whatever event."""
    match event.payload:
        case RunCompleted():
            return True
        case StopDecided(decision=decision):
            return decision.is_user_stop
        case ValidationRead(by=reader):
            return reader == "reviewer"
        case _:
            return False


def is_finished(last: Event | None) -> bool:
    """Whether a run with this last event is complete. Any other run can be resumed."""
    return last is not None and isinstance(last.payload, RunCompleted) and last.payload.is_final
