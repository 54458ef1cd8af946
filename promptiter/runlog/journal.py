"""Journal: the append-only log of a run. What is in it has happened, and a run that goes on reads it first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from promptiter.runlog.events import Event


class Journal(Protocol):
    """The log of one run. Its event log appends, one event at a time; a result reads its rounds from here."""

    async def append(self, event: Event) -> None:
        """Keep an event; when this returns, it survives the process. A failure ends the run."""

    def read(self, start: int = 0) -> Iterator[Event]:
        """The events from a sequence number on, as they were appended. Events that are passed over cost little."""

    def last(self) -> Event | None:
        """The last event, without reading the others; None if there is none.

        The engine asks for it before a run, to see whether the run has come to its end already.
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
