"""Journal: the append-only log of a run. What is in it has happened, and a run that goes on reads it first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from promptiter.engine.events import Event


class Journal(Protocol):
    """The log of one run. Called by the session alone, one event at a time."""

    async def append(self, event: Event) -> None:
        """Keep an event; when this returns, it survives the process. A failure ends the run."""

    def read(self, start: int = 0) -> Iterator[Event]:
        """The events from a sequence number on, as they were appended."""


class MemoryJournal:
    """A journal for one process, gone when it ends."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    async def append(self, event: Event) -> None:
        self._events.append(event)

    def read(self, start: int = 0) -> Iterator[Event]:
        yield from self._events[start:]
