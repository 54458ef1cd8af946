"""Calls that are under way: equal calls made meanwhile wait for their answers instead of asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.llm.cache.keys import CacheKey, StoredAnswer

Work: TypeAlias = Callable[[], Awaitable[StoredAnswer]]
"""Makes a call and stores its answer."""


class InFlightCall:
    """One call that several callers wait for, each in a future of its own. It is cancelled only when the last is.

    It removes itself from the `calls` under way before it ends, so that no new caller can join it. It `is_sent` while
    an attempt of it waits for an answer.
    """

    __slots__ = ("_callers", "_calls", "_key", "is_sent", "task")

    def __init__(self, work: Work, *, key: CacheKey, calls: dict[CacheKey, InFlightCall]) -> None:
        self.is_sent = False
        self._key = key
        self._calls = calls
        self._callers: set[asyncio.Future[StoredAnswer]] = set()
        self.task = asyncio.get_running_loop().create_task(self._answer(work))

    async def join(self) -> StoredAnswer:
        caller: asyncio.Future[StoredAnswer] = self.task.get_loop().create_future()
        self._callers.add(caller)
        try:
            return await caller
        except asyncio.CancelledError:
            if self._callers == {caller}:
                self._forget()
                self.task.cancel()
            raise
        finally:
            self._callers.discard(caller)

    async def _answer(self, work: Work) -> None:
        """Make the call and give its answer, or its error, to all callers."""
        try:
            answer = await work()
        except asyncio.CancelledError:
            for caller in self._end():
                caller.cancel()
            raise
        except BaseException as error:
            for caller in self._end():
                caller.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for caller in self._end():
                caller.set_result(answer)

    def _forget(self) -> None:
        if self._calls.get(self._key) is self:
            del self._calls[self._key]

    def _end(self) -> list[asyncio.Future[StoredAnswer]]:
        """Let no other caller join. Returns the callers that still wait."""
        self._forget()
        return [caller for caller in self._callers if not caller.done()]


class CallsInFlight:
    """The calls of one run that are under way, by key."""

    def __init__(self) -> None:
        self._calls: dict[CacheKey, InFlightCall] = {}

    def find(self, key: CacheKey) -> InFlightCall | None:
        """An equal call in flight on this event loop. One on a loop that may end first cannot be waited for."""
        call = self._calls.get(key)
        return call if call is not None and call.task.get_loop() is asyncio.get_running_loop() else None

    def start(self, key: CacheKey, work: Work) -> InFlightCall:
        """Start a call, which others can join until it ends."""
        call = self._calls[key] = InFlightCall(work, key=key, calls=self._calls)
        return call

    def mark_sent(self, key: CacheKey, *, is_sent: bool) -> None:
        """Note that an attempt of a call waits for its answer, or has failed."""
        if (call := self._calls.get(key)) is not None:
            call.is_sent = is_sent

    async def finish(self) -> None:
        """Wait until the calls that have been sent have ended, and their answers are stored."""
        found = [self.find(key) for key in list(self._calls)]
        if tasks := [call.task for call in found if call is not None and call.is_sent]:
            await asyncio.wait(tasks)
