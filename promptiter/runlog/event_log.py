"""The event log of a run in progress: replays the events of the journal, then appends new ones.

This is what makes a resumed run the same run: the search is executed again from the start, and its requests are
answered from the journal as long as they are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from promptiter.concurrency import finish_before_cancel, is_cancelled
from promptiter.errors import BudgetEndedError, NonDeterministicSearchError
from promptiter.llm.redaction import Redactor
from promptiter.runlog.events import Event, EventType, Observer, Phase
from promptiter.runlog.journal import Journal
from promptiter.runlog.meter import Meter
from traces.model import Json

logger = logging.getLogger(__name__)


class EventLog:
    """Numbers the events of one run, stores them in its journal, and passes new ones to the observers.

    An earlier end of the run (it failed, was cancelled, or was stopped by the user) is skipped: the run continues after
    it. Each event has the working time of the run so far.
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
        self.journal = journal
        self.meter = meter
        self._observers = list(observers)
        self._redactor = redactor
        self._seq = 0
        self._prior = journal.read()
        self._next = self._read_next()

    @property
    def is_replaying(self) -> bool:
        """Whether there are events left to replay. Nothing is written before that."""
        return self._next is not None

    def take(self, kind: EventType, *, request: str | None = None) -> Event | None:
        """Return the next event of the journal, or None at its end. Raises if it is not the expected one.

        Raises BudgetEndedError where the budget ended the search or the ablation.
        """
        event = self._next
        if event is None:
            return None
        if event.type == "search_cut" != kind:
            raise BudgetEndedError(event.data["message"], cap=event.data["cap"])
        if event.type != kind or (request is not None and event.data.get("request") != request):
            raise NonDeterministicSearchError(
                f"event {event.seq} of the journal is {event.type!r}, but this time the run asks for {kind!r}"
                + (" with another request" if event.type == kind else "")
                + "; the agent, the search or the inputs have changed since the run started"
            )
        self._continue_from(event)
        self._next = self._read_next()
        return event

    def take_any(self, kind: EventType) -> Event | None:
        """Return the next event of the journal if it is of this type."""
        return self.take(kind) if self._next is not None and self._next.type == kind else None

    async def note(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Return the event of a fact that follows from earlier ones: replayed, or appended now."""
        return self.take(kind, request=data.get("request")) or await self.append(kind, data)

    def _read_next(self) -> Event | None:
        for event in self._prior:
            self._seq = event.seq + 1
            if not is_end(event):
                return event
            self._continue_from(event)
        return None

    def _continue_from(self, event: Event) -> None:
        self.meter.continue_from(event.data.get("measured", {}))

    async def append(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Write an event to the journal, then pass it to the observers. A cancellation waits until it is written.

        Returns the event as written, without secrets, so that callers continue with the same data as in a replay.
        """
        data = self._redactor.redact_known_json(data)
        data = {**data, "measured": {**data.get("measured", {}), "elapsed_s": round(self.meter.elapsed_s, 3)}}
        event = Event(seq=self._seq, run_id=self.run_id, round=self.round, phase=self.phase, type=kind, data=data)
        await finish_before_cancel(self._write(event))
        for observer in list(self._observers):
            await self._notify(observer, event)
        return event

    async def _write(self, event: Event) -> None:
        await self.journal.append(event)
        self._seq += 1

    async def _notify(self, observer: Observer, event: Event) -> None:
        try:
            await observer.observe(event)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if is_cancelled(error):
                raise
            self._observers.remove(observer)
            name, message = type(observer).__qualname__, self._redactor.redact_text(repr(error))
            problem = f"observer {name} failed at event {event.seq} and is not called again: {message}"
            self.problems.append(problem)
            logger.warning(problem)


def is_end(event: Event) -> bool:
    """Whether an event only marks an end of the run, which a resumed run skips."""
    if event.type == "run_completed":
        return True
    return event.type == "stop" and is_user_stop(event.data["value"])


def is_finished(last: Event | None) -> bool:
    """Whether a run with this last event is complete. Any other run can be resumed."""
    return last is not None and last.type == "run_completed" and bool(last.data["is_final"])


def is_user_stop(decision: Json) -> bool:
    """Whether only the user stopped a run. `decision` is a StopDecision as plain data."""
    return bool(decision["reasons"]) and all(reason["kind"] == "user_stop" for reason in decision["reasons"])
