"""Journal: the append-only log of a run, which a resumed run reads first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from promptiter.errors import JournalError
from promptiter.runlog.event_json import encode_event
from promptiter.runlog.events import Event

DECISIONS: frozenset[str] = frozenset(
    ("decision", "round_completed", "run_completed", "stop", "final_test_begun", "final_test")
)
"""Types of events that survive a power failure once they are appended; the others survive the end of the process."""


class EventReader(Protocol):
    """Reads the events of a run in blocking code. Results read their rounds through it, from any thread."""

    def read(self, start: int = 0) -> Iterator[Event]:
        """Yield the events from a sequence number on, in order. Skipping events should be cheap."""


class EventSource(Protocol):
    """The events of one run. The engine reads them on the event loop, so no method may block it."""

    def read(self, start: int = 0) -> AsyncIterator[Event]:
        """Yield the events from a sequence number on, in order. A resumed run reads them all before it appends."""

    async def last(self) -> Event | None:
        """Return the last event, without reading the others; None if there is none.

        The engine calls this before a run, to see whether the run is already complete.
        """

    def reader(self) -> EventReader:
        """Return a reader of the same events that works without an event loop.

        The engine uses it in a thread, and hands it to the result of the run, which outlives the journal.
        """


class Journal(EventSource, Protocol):
    """The log of one run. The engine appends one event at a time, on the event loop."""

    async def append(self, event: Event) -> None:
        """Store an event. Once this returns, the event survives the process. A failure ends the run.

        The sequence numbers of a journal are 0, 1, 2 and so on. JournalError if another one is appended. If the call is
        cancelled, the event is stored completely or not at all.
        """


class MemoryJournal:
    """A journal for one process, gone when it ends. `events` are its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def append(self, event: Event) -> None:
        if event.seq != len(self.events):
            raise JournalError(f"the journal has {len(self.events)} events, and the next has number {event.seq}")
        encode_event(event)  # what a file could not keep is refused here too
        self.events.append(event)

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        for event in self.reader().read(start):
            yield event

    async def last(self) -> Event | None:
        return self.events[-1] if self.events else None

    def reader(self) -> EventReader:
        return _ListReader(self.events)


class _ListReader:
    """Reads events from a list, which may grow meanwhile."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def read(self, start: int = 0) -> Iterator[Event]:
        for seq in range(start, len(self._events)):
            yield self._events[seq]
