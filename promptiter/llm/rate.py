"""Rate limits: how many calls, and how many tokens, may start in any minute.

It is a sliding window, not a bucket: no 60 seconds see more than the limit, also across the turn of a minute. Who comes
first starts first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from promptiter.errors import SetupError

WINDOW_S = 60
"""The window is half open: a call may start exactly 60 seconds after the one whose place it takes."""

_FORGOTTEN_S = 10 * WINDOW_S  # a call that failed is never settled


class RateLimit:
    """At most so many calls and estimated tokens start within 60 seconds; None is no limit.

    A call larger than `tokens_per_minute` counts as exactly that: it has a minute to itself. A limit belongs to one
    event loop.
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
        self._window: deque[_Start] = deque()  # those of the last 60 seconds, oldest first
        self._tokens_in_window = 0
        self._unsettled: dict[int, deque[_Start]] = {}  # by estimate, oldest first
        self._swept_at = clock()
        self._paused_until = float("-inf")
        self._turn = asyncio.Lock()  # fair: who waits longest is next
        self._sleeper: asyncio.Future[None] | None = None

    def bind_to_running_loop(self) -> None:
        """Move to the running event loop; called when the one before has ended."""
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int = 0) -> None:
        """Wait until a call of at most so many tokens may start."""
        async with self._turn:
            while (at := self._earliest(self._counted(tokens))) > (now := self._clock()):
                await self._sleep_unless_woken(at - now)
            start = _Start(now, self._counted(tokens))
            self._window.append(start)
            self._tokens_in_window += start.tokens
            self._remember(tokens, start)

    def settle(self, estimated: int, actual: int) -> None:
        """Give back the tokens that a call of this estimate did not use, if its minute is not over.

        Of several calls in flight with the same estimate, the one that started first is settled first.
        """
        waiting = self._unsettled.get(estimated)
        if not waiting:
            return
        start = waiting.popleft()
        if not waiting:
            del self._unsettled[estimated]
        if start.is_in_window:
            self._tokens_in_window += self._counted(actual) - start.tokens
            start.tokens = self._counted(actual)
            self._wake()

    def pause(self, seconds: float) -> None:
        """Let nobody start before so many seconds have passed, as a server asks by Retry-After."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def _counted(self, tokens: int) -> int:
        return tokens if self._tokens is None else min(tokens, self._tokens)

    def _earliest(self, tokens: int) -> float:
        """When a call may start, as far as is known now."""
        now = self._clock()
        while self._window and self._window[0].at + WINDOW_S <= now:
            self._forget_first()
        earliest = max(now, self._paused_until)
        if self._requests is not None and len(self._window) >= self._requests:
            earliest = max(earliest, self._window[-self._requests].at + WINDOW_S)
        if self._tokens is not None:
            left = self._tokens_in_window
            starts = iter(self._window)
            while left + tokens > self._tokens:
                start = next(starts)
                left -= start.tokens
                earliest = max(earliest, start.at + WINDOW_S)
        return earliest

    def _forget_first(self) -> None:
        start = self._window.popleft()
        start.is_in_window = False
        self._tokens_in_window -= start.tokens

    def _remember(self, tokens: int, start: _Start) -> None:
        """Keep a start until it is settled, or so old that it never will be."""
        if self._swept_at + _FORGOTTEN_S <= start.at:
            self._swept_at = start.at
            young = {
                estimate: deque(old for old in starts if old.at + _FORGOTTEN_S > start.at)
                for estimate, starts in self._unsettled.items()
            }
            self._unsettled = {estimate: starts for estimate, starts in young.items() if starts}
        self._unsettled.setdefault(tokens, deque()).append(start)

    async def _sleep_unless_woken(self, seconds: float) -> None:
        """The sleep is a task of its own, which `settle` ends early: what was given back may be enough."""
        self._sleeper = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait([self._sleeper])
            if not self._sleeper.cancelled():
                self._sleeper.result()
        finally:
            self._sleeper.cancel()
            self._sleeper = None

    def _wake(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()


@dataclass(slots=True)
class _Start:
    at: float
    tokens: int
    is_in_window: bool = True
