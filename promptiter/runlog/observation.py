"""What an observer may want besides events: the record of the run so far, its folder, and its end.

A tracker needs them: the events from before a resume, the files of the run, and time to send what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from promptiter.runlog.events import Observer
from promptiter.runlog.journal import EventReader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """A run in this process: `events` reads its journal, from the first process on. `folder` is None in memory."""

    run_id: str
    events: EventReader
    folder: Path | None = None


@runtime_checkable
class RunObserver(Observer, Protocol):
    """An observer with a method for the begin and the end of a process's work on a run. It may watch several runs."""

    async def begin_run(self, run: ObservedRun) -> None:
        """Prepare for the events of a run. Called before the first one of this process; it must not block."""

    async def end_run(self, run: ObservedRun) -> None:
        """Finish. Called once the files of the run are written, however it ended. The process waits for this."""


@asynccontextmanager
async def observing(
    observers: Sequence[Observer], run: ObservedRun, *, redact: Callable[[str], str]
) -> AsyncIterator[list[Observer]]:
    """Begin and end the run for those observers that want this. A failure is a warning, never an error of the run.

    Yields the observers without those that failed to begin.
    """

    def warn(observer: Observer, error: BaseException) -> None:
        logger.warning("observer %s: %s", type(observer).__qualname__, redact(str(error) or repr(error)))

    ready: list[Observer] = []
    begun: list[RunObserver] = []
    for each in observers:
        if isinstance(each, RunObserver):
            try:
                await each.begin_run(run)
            except Exception as error:  # noqa: BLE001 - a run does not depend on its observers
                warn(each, error)
                continue
            begun.append(each)
        ready.append(each)
    try:
        yield ready
    finally:
        with suppress(asyncio.CancelledError):  # the run has its outcome, which does not wait for observers then
            endings = await asyncio.gather(*(each.end_run(run) for each in begun), return_exceptions=True)
            for observer, ending in zip(begun, endings, strict=True):
                if isinstance(ending, Exception):
                    warn(observer, ending)
