"""What the events of a run tell this process: News wakes up those who wait for them, Progress logs the first one."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from promptiter.manager.store_outage import StoreOutage
from promptiter.runlog.events import Event

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often one looks for events of a run that another process works on."""


class News:
    """Wakes up those who wait for events of runs that this process works on. It is an observer of these runs."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._counts: dict[str, int] = {}

    async def observe(self, event: Event) -> None:
        self._counts[event.run_id] = event.seq + 1
        self.tell(event.run_id)

    def count_events(self, run_id: str) -> int | None:
        """The number of events of a run, if this process has written the last one."""
        return self._counts.get(run_id)

    def forget(self, run_id: str) -> None:
        """This process does not work on a run any more."""
        self._counts.pop(run_id, None)
        self.tell(run_id)

    def tell(self, run_id: str) -> None:
        for each in self._waiting.pop(run_id, ()):
            if not each.done():
                each.set_result(None)

    def tell_all(self) -> None:
        for run_id in list(self._waiting):
            self.tell(run_id)

    async def wait(self, run_id: str) -> None:
        """Wait for the next event of a run; not for long, since another process may work on it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(turn)
        with suppress(TimeoutError):
            await asyncio.wait_for(turn, LOOK_S)
        if (others := self._waiting.get(run_id)) is not None:
            others.discard(turn)
            if not others:
                del self._waiting[run_id]


@dataclass(eq=False)
class Progress:
    """An observer of the work on a run: it logs the first event, and each event shows that the store works."""

    app: str
    outage: StoreOutage
    has_events: bool = False

    async def observe(self, event: Event) -> None:
        self.outage.end()
        if not self.has_events:
            self.has_events = True
            logger.info("%s: run %s %s", self.app, event.run_id, "started" if event.seq == 0 else "continued")
