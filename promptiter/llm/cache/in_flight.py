"""Calls that are under way: equal calls made meanwhile wait for their answers instead of asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from promptiter.llm.cache.keys import CacheKey, StoredAnswer


class InFlightCall:
    """One call that several callers wait for. It is cancelled only when the last of them is.

    `forget` is called before it is cancelled, so that no new caller can join it. It `is_sent` while an attempt of it
    waits for an answer.
    """

    def __init__(self, task: asyncio.Future[StoredAnswer], forget: Callable[[], None]) -> None:
        self.task = task
        self.is_sent = False
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


class CallsInFlight:
    """The calls of one run that are under way, by key."""

    def __init__(self) -> None:
        self._calls: dict[CacheKey, InFlightCall] = {}

    def find(self, key: CacheKey) -> InFlightCall | None:
        """An equal call in flight on this event loop. One on a loop that may end first cannot be waited for."""
        call = self._calls.get(key)
        return call if call is not None and call.task.get_loop() is asyncio.get_running_loop() else None

    def start(self, key: CacheKey, work: Coroutine[Any, Any, StoredAnswer]) -> InFlightCall:
        """Start a call, which others can join until it ends."""

        def forget() -> None:
            if self._calls.get(key) is call:
                del self._calls[key]

        call = self._calls[key] = InFlightCall(asyncio.ensure_future(work), forget)
        call.task.add_done_callback(lambda _: forget())
        # Retrieve the error even if no caller waits any more; otherwise asyncio logs it as never retrieved.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return call

    @contextmanager
    def sending(self, key: CacheKey) -> Iterator[None]:
        """In this block, an attempt of a call waits for its answer."""
        call = self._calls.get(key)
        if call is not None:
            call.is_sent = True
        try:
            yield
        except BaseException:
            if call is not None:
                call.is_sent = False
            raise

    async def finish(self) -> None:
        """Wait until the calls that have been sent have ended, and their answers are stored."""
        found = [self.find(key) for key in list(self._calls)]
        if tasks := [call.task for call in found if call is not None and call.is_sent]:
            await asyncio.wait(tasks)
