"""TaskPortal: lets a synchronous library make async calls: it runs in a thread, and its calls in the caller's task.

    portal = TaskPortal()
    result = await portal.serve(lambda: library.run(adapter))     # adapter.evaluate: portal.call(lambda: evaluate(...))

The calls are made one at a time, in the task that awaits `serve`. If one of them raises, or the task is cancelled,
`serve` raises that, and the thread ends at its current or next call with ThreadEnded, which `except Exception` of the
library does not catch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from promptiter.concurrency import call_in_thread, finish_before_cancel

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[], Coroutine[Any, Any, Any]], "Future[Any]"]


class ThreadEnded(BaseException):
    """Ends the thread of a library whose calls are no longer answered."""


class TaskPortal:
    """Where one thread makes calls on the event loop that creates this object."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: asyncio.Queue[_Call | None] = asyncio.Queue()
        self.is_over = False

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call and wait for its result. Only the thread of `serve` may call this."""
        answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._calls.put_nowait, (make, answer))
        return answer.result()

    async def serve(self, work: Callable[[], T]) -> T:
        """Do the work in a thread, make its calls, and return its result. Serves one thread."""
        thread = asyncio.ensure_future(call_in_thread(work))
        thread.add_done_callback(lambda _: self._calls.put_nowait(None))
        try:
            while (call := await self._calls.get()) is not None:
                make, answer = call
                try:
                    result = await make()
                except BaseException:
                    answer.set_exception(ThreadEnded())
                    raise
                answer.set_result(result)
        except BaseException:
            self.is_over = True
            await finish_before_cancel(self._refuse_calls(thread))
            raise
        finished: T = await thread
        return finished

    async def _refuse_calls(self, thread: asyncio.Future[Any]) -> None:
        """End the thread at its next call, and wait for its end."""
        while not thread.done():
            if (call := await self._calls.get()) is not None:
                call[1].set_exception(ThreadEnded())
        with suppress(BaseException):
            thread.result()
