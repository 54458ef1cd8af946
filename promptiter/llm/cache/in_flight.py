"""A call that is under way: equal calls made meanwhile wait for its answer instead of asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptiter.llm.cache.keys import StoredAnswer


class InFlightCall:
    """One call that several callers wait for. It is cancelled only when the last of them is.

    `forget` is called before it is cancelled, so that no new caller can join it.
    """

    def __init__(self, task: asyncio.Future[StoredAnswer], forget: Callable[[], None]) -> None:
        self.task = task
        self._forget = forget
        self._callers = 0

    async def join(self) -> StoredAnswer:
        self._callers += 1
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self._callers == 1:
                self._forget()
                self.task.cancel()
            raise
        finally:
            self._callers -= 1
