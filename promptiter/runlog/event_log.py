"""The event log of a run in flight: answers from the journal while it has events, and writes new ones behind them.

This is what makes a run that goes on after a crash the same run: the search is executed again from the start, and
everything that it asks for is answered by what the journal holds, as long as it asks for the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from promptiter.errors import BudgetEndedError, NonDeterministicSearchError
from promptiter.runlog.events import Event, EventType, Observer, Phase
from promptiter.runlog.journal import Journal
from promptiter.runlog.meter import Meter
from traces.model import Json

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EventLog:
    """Numbers the events of one run, keeps them in its journal, and shows new ones to the observers.

    An earlier end of the run (it failed, was cancelled, or a user asked it to stop) is passed over: the run goes on
    behind it. Each event says how long the run has worked when it was written.
    """

    def __init__(
        self,
        run_id: str,
        journal: Journal,
        observers: Sequence[Observer] = (),
        *,
        meter: Meter | None = None,
        redact: Callable[[str], str] = lambda text: text,
        redact_data: Callable[[Json], Json] = lambda data: data,
    ) -> None:
        self.run_id = run_id
        self.round = 0
        self.phase: Phase = "start"
        self.problems: list[str] = []
        self.journal = journal
        self._observers = list(observers)
        self._meter = meter
        self._redact = redact
        self._redact_data = redact_data
        self._seq = 0
        self._prior = journal.read()
        self._next = self._following()

    @property
    def is_replaying(self) -> bool:
        """Whether the journal still knows what comes next; nothing is written before that is told."""
        return self._next is not None

    def take(self, kind: EventType, *, request: str | None = None) -> Event | None:
        """The next event of the journal, which must be this one; None when the journal is at its end.

        BudgetEndedError: the budget cut the search at this place.
        """
        event = self._next
        if event is None:
            return None
        if event.type == "search_cut" != kind:
            raise BudgetEndedError(event.data["told"], cap=event.data["cap"])
        if event.type != kind or (request is not None and event.data.get("request") != request):
            raise NonDeterministicSearchError(
                f"event {event.seq} of the journal is {event.type!r}, but this time the run asks for {kind!r}"
                + (" with another request" if event.type == kind else "")
                + "; the agent, the search or the inputs have changed since it began"
            )
        self._continue_from(event)
        self._next = self._following()
        return event

    def take_any(self, kind: EventType) -> Event | None:
        """The next event of the journal, if it is of this type."""
        return self.take(kind) if self._next is not None and self._next.type == kind else None

    async def note(self, kind: EventType, data: dict[str, Json]) -> Event:
        """A fact that follows from what is known: as the journal has it, or written down now."""
        return self.take(kind, request=data.get("request")) or await self.append(kind, data)

    def _following(self) -> Event | None:
        for event in self._prior:
            self._seq = event.seq + 1
            if not is_end(event):
                return event
            self._continue_from(event)
        return None

    def _continue_from(self, event: Event) -> None:
        if self._meter is not None:
            self._meter.continue_from(event.data.get("measured", {}))

    async def append(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Write an event: the journal first, then those who watch. A cancellation waits until it is written.

        The event that is given back is what was written, without secrets: whoever goes on with it does so in a replay.
        """
        data = self._redact_data(data)
        if self._meter is not None:
            data = {**data, "measured": {**data.get("measured", {}), "elapsed_s": round(self._meter.elapsed_s, 3)}}
        event = Event(seq=self._seq, run_id=self.run_id, round=self.round, phase=self.phase, type=kind, data=data)
        await finish_before_cancel(self._write(event))
        for observer in list(self._observers):
            await self._show(observer, event)
        return event

    async def _write(self, event: Event) -> None:
        await self.journal.append(event)
        self._seq += 1

    async def _show(self, observer: Observer, event: Event) -> None:
        try:
            await observer.observe(event)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if is_cancelled(error):
                raise
            self._observers.remove(observer)
            told = self._redact(repr(error))
            name = type(observer).__qualname__
            problem = f"observer {name} failed at event {event.seq} and is not called again: {told}"
            self.problems.append(problem)
            logger.warning(problem)


def is_end(event: Event) -> bool:
    """Whether an event only says that the run ended there, so that it can go on as if it had not."""
    if event.type == "run_completed":
        return True
    return event.type == "stop" and is_user_stop(event.data["value"])


def is_finished(last: Event | None) -> bool:
    """Whether a run with this last event has come to its own end; any other may go on."""
    return last is not None and last.type == "run_completed" and bool(last.data["is_final"])


def is_user_stop(decision: Json) -> bool:
    """Whether nothing but a user's wish stopped a run; `decision` is a StopDecision as an event holds it."""
    return bool(decision["reasons"]) and all(reason["kind"] == "user_stop" for reason in decision["reasons"])


async def finish_before_cancel(work: Awaitable[T]) -> T:
    """Finish some work, and be cancelled only then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - it is the task's own, and raised below
            break
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def is_cancelled(error: BaseException) -> bool:
    """Whether an error is a cancellation that somebody asked for, not one that a part of the run made up."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
