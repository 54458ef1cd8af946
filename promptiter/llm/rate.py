"""Rate limits: how many calls, and how many tokens, may start in any minute.

The window slides, so no 60 seconds have more than the limit, wherever they begin. Calls start in order of arrival.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from promptiter.concurrency import Slots, call_in_loop
from promptiter.errors import SetupError

WINDOW_S = 60
"""Length of the window. A call may start exactly 60 seconds after the one that it replaces."""


class RateLimit:
    """Limits the calls, and their estimated tokens, that start within 60 seconds; None means no limit.

    A call with more tokens than `tokens_per_minute` counts as exactly that many, so it gets a whole minute. One limit
    serves the event loops of all threads.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        for name, limit in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if limit is not None and limit < 1:
                raise SetupError(f"{name} is {limit!r}; give 1 or more, or None for no limit")
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._clock = clock
        self._sleep = sleep
        self._window: deque[Grant] = deque()  # of the last 60 seconds, oldest first
        self._tokens_in_window = 0
        self._paused_until = float("-inf")
        self._lock = threading.Lock()
        self._turn = Slots(1)  # fair: waiters get it in order
        self._sleeper: asyncio.Future[None] | None = None

    async def acquire(self, tokens: int = 0) -> Grant:
        """Wait until a call of this many tokens, by estimate, may start."""
        async with self._turn:
            while True:
                with self._lock:
                    at, now = self._find_earliest_start(self._clip(tokens)), self._clock()
                    if at <= now:
                        grant = Grant(now, self._clip(tokens))
                        self._window.append(grant)
                        self._tokens_in_window += grant.tokens
                        return grant
                await self._sleep_unless_woken(at - now)

    def settle(self, grant: Grant, actual: int) -> None:
        """Replace the estimate of a call by the tokens that it used, if its minute is not over."""
        with self._lock:
            if not grant.is_in_window:
                return
            self._tokens_in_window += self._clip(actual) - grant.tokens
            grant.tokens = self._clip(actual)
            sleeper = self._sleeper
        if sleeper is not None:
            call_in_loop(sleeper.get_loop(), sleeper.cancel)  # the returned tokens may be enough

    def pause(self, seconds: float) -> None:
        """Start no call for this many seconds, as a server asks by Retry-After."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def _clip(self, tokens: int) -> int:
        return tokens if self._tokens is None else min(tokens, self._tokens)

    def _find_earliest_start(self, tokens: int) -> float:
        """The earliest time that a call may start, by what is known now."""
        now = self._clock()
        while self._window and self._window[0].at + WINDOW_S <= now:
            self._forget_first()
        earliest = max(now, self._paused_until)
        if self._requests is not None and len(self._window) >= self._requests:
            earliest = max(earliest, self._window[-self._requests].at + WINDOW_S)
        if self._tokens is not None:
            left = self._tokens_in_window
            grants = iter(self._window)
            while left + tokens > self._tokens:
                grant = next(grants)
                left -= grant.tokens
                earliest = max(earliest, grant.at + WINDOW_S)
        return earliest

    def _forget_first(self) -> None:
        grant = self._window.popleft()
        grant.is_in_window = False
        self._tokens_in_window -= grant.tokens

    async def _sleep_unless_woken(self, seconds: float) -> None:
        """Sleep in a task of its own, which `settle` may cancel."""
        self._sleeper = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait([self._sleeper])
            if not self._sleeper.cancelled():
                self._sleeper.result()
        finally:
            self._sleeper.cancel()
            self._sleeper = None


@dataclass(slots=True)
class Grant:
    """The permission to start a call. It counts for a minute."""

    at: float
    tokens: int
    is_in_window: bool = True
