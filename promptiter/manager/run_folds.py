"""RunFolds: the results of runs in progress, so far. Only events that are new since the last look are read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from promptiter.concurrency import run_in_thread
from promptiter.runlog.events import Event
from promptiter.runlog.fold import build_result
from promptiter.runlog.journal import EventReader
from promptiter.runlog.results import RunResult
from promptiter.runlog.run_state import RunState

KEPT = 64
"""The most runs whose state is kept; the one that was not looked at for the longest time is forgotten."""


@dataclass(eq=False)
class _Fold:
    state: RunState = field(default_factory=RunState)
    events: int = 0
    last: Event | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def catch_up(self, reader: EventReader) -> None:
        for event in reader.read(self.events):
            self.state.take(event)
            self.events += 1
            self.last = event


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """A run after its `events`: its result, None before the first event, and the last event."""

    result: RunResult | None
    last: Event | None
    events: int


class RunFolds:
    """The states of the runs of one store, as far as they were read."""

    def __init__(self) -> None:
        self._folds: OrderedDict[str, _Fold] = OrderedDict()

    async def read(self, run_id: str, reader: EventReader, *, count: int | None = None) -> RunSoFar:
        """The result of a run so far. With the number of its events, they are only read if some are new."""
        fold = self._folds.setdefault(run_id, _Fold())
        self._folds.move_to_end(run_id)
        while len(self._folds) > KEPT:
            self._folds.popitem(last=False)
        async with fold.turn:
            if fold.events != count:
                try:
                    await run_in_thread(lambda: fold.catch_up(reader))
                except BaseException:
                    self._folds.pop(run_id, None)  # it may have taken a part of an event
                    raise
            result = build_result(fold.state, reader) if fold.events else None
            return RunSoFar(result, fold.last, fold.events)

    def forget(self, run_id: str) -> None:
        """Forget a run that was deleted."""
        self._folds.pop(run_id, None)
