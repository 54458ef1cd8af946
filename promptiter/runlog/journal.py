"""Journal: the append-only log of a run, which a resumed run reads first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from promptiter.runlog.events import Event


class Journal(Protocol):
    """The log of one run. The event log appends one event at a time; results read their rounds from here."""

    async def append(self, event: Event) -> None:
        """Store an event. Once this returns, the event survives the process. A failure ends the run."""

    def read(self, start: int = 0) -> Iterator[Event]:
        """Yield the events from a sequence number on, in order. Skipping events should be cheap."""

    def last(self) -> Event | None:
        """Return the last event, without reading the others; None if there is none.

        The engine calls this before a run, to see whether the run is already complete.
        """


class MemoryJournal:
    """A journal for one process, gone when it ends."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    async def append(self, event: Event) -> None:
        self._events.append(event)

    def read(self, start: int = 0) -> Iterator[Event]:
        for seq in range(start, len(self._events)):
            yield self._events[seq]

    def last(self) -> Event | None:
        return self._events[-1] if self._events else None
