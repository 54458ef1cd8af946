"""SourceUse: how the runs of one event loop share the sources of an in-place agent."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from promptiter.agents.in_place.source_lock import FolderLock
from promptiter.concurrency import call_in_loop, call_in_thread

_log = logging.getLogger(__name__)


class SourceUse:
    """How one event loop uses the sources: its number of runs, and the values they need."""

    def __init__(self, folder: Path) -> None:
        self.lock = FolderLock(folder)
        self.turn = asyncio.Lock()
        self.idle = asyncio.Event()
        self.idle.set()
        self.runs = 0
        self.wanted: Mapping[str, str] = {}

    def enter(self) -> None:
        self.runs += 1
        self.idle.clear()

    def leave(self) -> None:
        self.runs -= 1
        if not self.runs:
            self.lock.release()
            self.idle.set()


current_use: contextvars.ContextVar[SourceUse | None] = contextvars.ContextVar("promptiter_source_use", default=None)
"""The sources that the running in-place agent holds."""


async def call_with_sources(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a synchronous function in a thread, which keeps the sources of an in-place agent in use until it returns."""
    use, loop = current_use.get(), asyncio.get_running_loop()
    if use is None:
        return await call_in_thread(function, *arguments, **keywords)
    use.enter()
    work = _threads().submit(contextvars.copy_context().run, partial(function, *arguments, **keywords))

    def leave(_: object) -> None:
        if not call_in_loop(loop, use.leave):
            use.leave()  # the loop has ended

    work.add_done_callback(leave)
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        if not work.done():
            _log.warning("a run was cancelled, but its function still runs; other profiles wait until it returns")
        raise


@cache
def _threads() -> ThreadPoolExecutor:
    """Not asyncio's own pool, which is small: a switch must not wait behind functions that hang."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="promptiter-in-place")
