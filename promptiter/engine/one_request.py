"""OneRequest: a search makes one request of its session at a time, so that a resumed run asks in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OneRequest:
    """The request in progress, by the task that makes it. Requests that it makes itself are part of it."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._is_working = False

    @contextmanager
    def make(self) -> Iterator[None]:
        """Make a request. Raises if another task's request, or recorded work, is in progress."""
        task, outer = asyncio.current_task(), self._task
        if outer is not None and outer is not task:
            raise RuntimeError(
                "a request of this session is in progress; await it before the next. "
                "Several evaluations at once are one request: session.evaluate_many"
            )
        if self._is_working:
            raise RuntimeError(
                "the work of session.record made a request of its session; a resumed run does not repeat the work, so "
                "make requests before it or after it"
            )
        self._task = task
        try:
            yield
        finally:
            self._task = outer

    async def cancel(self) -> bool:
        """Cancel the request that another task has in progress, and wait for its end; False if there is none."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    @contextmanager
    def work(self) -> Iterator[None]:
        """Do recorded work, which makes no request."""
        self._is_working = True
        try:
            yield
        finally:
            self._is_working = False
