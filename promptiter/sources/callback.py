"""Source, the protocol of stored values, and CallbackSource: a value behind a pair of functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from promptiter.errors import SetupError
from promptiter.wording import shorten


class Source(Protocol):
    """One stored value. Both methods may block, and are called by one thread at a time; errors are reported."""

    def read(self) -> str:
        """Return the current value."""

    def write(self, value: str) -> None:
        """Store a value; `read` returns exactly this value from then on."""


class CallbackSource:
    """A value behind two functions, such as a key of a remote store.

    They may be asynchronous; each call then gets its own event loop.
    """

    def __init__(self, read: Callable[[], str | Awaitable[str]], write: Callable[[str], object]) -> None:
        self._read = read
        self._write = write

    def read(self) -> str:
        value = _wait_for(self._read())
        if not isinstance(value, str):
            raise SetupError(f"the read callback of a source must return a string, not {shorten(value)}")
        return value

    def write(self, value: str) -> None:
        _wait_for(self._write(value))


def _wait_for(value: Any) -> Any:
    """Return the result of a callback, also of an asynchronous one."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as worker:  # this thread's loop is waiting for us
        return worker.submit(asyncio.run, wait()).result()
