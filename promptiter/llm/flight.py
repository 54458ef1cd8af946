"""Flight: one call that is under way. Who asks for the same meanwhile waits for it, and nothing is asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptiter.llm.answers import StoredAnswer


class Flight:
    """One execution that several callers wait for; it is given up only when the last of them is."""

    def __init__(self, task: asyncio.Future[StoredAnswer], land: Callable[[], None]) -> None:
        self.task = task
        self.land = land
        self.waiting = 0

    async def join(self) -> StoredAnswer:
        self.waiting += 1
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.waiting == 1:
                self.land()  # nobody may join a call that is given up
                self.task.cancel()
            raise
        finally:
            self.waiting -= 1
