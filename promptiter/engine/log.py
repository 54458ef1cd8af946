"""The event log of a run in flight: answers from the journal while it has events, and writes new ones behind them.

This is what makes a run that goes on after a crash the same run: the strategy is executed again from the start, and
everything that it asks for is answered by what the journal holds, as long as it asks for the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from promptiter.engine.events import Event, EventType, Observer, Phase
from promptiter.engine.journal import Journal
from promptiter.errors import NonDeterministicStrategyError
from traces.model import Json

logger = logging.getLogger(__name__)


class EventLog:
    """Numbers the events of one run, keeps them in its journal, and shows new ones to the observers."""

    def __init__(self, run_id: str, journal: Journal, observers: Sequence[Observer] = ()) -> None:
        self.run_id = run_id
        self.round = 0
        self.phase: Phase = "start"
        self.problems: list[str] = []
        self._journal = journal
        self._observers = list(observers)
        self._prior = journal.read()
        self._next: Event | None = next(self._prior, None)
        self._seq = 0

    @property
    def is_replaying(self) -> bool:
        return self._next is not None

    def take(self, kind: EventType, *, request: str | None = None) -> Event | None:
        """The next event of the journal, which must be this one; None when the journal is at its end."""
        event = self._next
        if event is None:
            return None
        if event.type != kind or (request is not None and event.data.get("request") != request):
            raise NonDeterministicStrategyError(
                f"event {event.seq} of the journal is {event.type!r}, but this time the run asks for {kind!r}"
                + (" with another request" if event.type == kind else "")
                + "; the agent, the strategy or the inputs have changed since it began"
            )
        return self._advance(event)

    def take_any(self, kind: EventType) -> Event | None:
        """The next event of the journal, if it is of this type."""
        return self._advance(self._next) if self._next is not None and self._next.type == kind else None

    def _advance(self, event: Event) -> Event:
        self._next = next(self._prior, None)
        self._seq = event.seq + 1
        return event

    async def append(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Write an event: the journal first, then those who watch."""
        event = Event(seq=self._seq, run_id=self.run_id, round=self.round, phase=self.phase, type=kind, data=data)
        await self._journal.append(event)
        self._seq += 1
        for observer in list(self._observers):
            await self._show(observer, event)
        return event

    async def _show(self, observer: Observer, event: Event) -> None:
        try:
            await observer.observe(event)
        except Exception as error:  # noqa: BLE001 - an observer is the user's code, and must not end a run
            self._observers.remove(observer)
            problem = f"observer {_name(observer)} failed at event {event.seq} and is not called again: {error!r}"
            self.problems.append(problem)
            logger.warning(problem)

    def read(self) -> Any:
        """All events so far."""
        return self._journal.read()


def _name(observer: Callable[..., Any] | object) -> str:
    return type(observer).__qualname__
