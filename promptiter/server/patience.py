"""Patience: how long a client waits for a server that is being restarted, or that asks to try again later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from promptiter.server.client_errors import ServerError

logger = logging.getLogger(__name__)

PATIENCE_S = 120.0
FIRST_PATIENCE_S = 10.0
"""The patience with a server that this client has never reached: its URL may be wrong."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 5.0
PASSING = frozenset((0, 429, 502, 503, 504))
"""Statuses that pass by themselves: no answer, too many requests, and those of a proxy whose server is away."""


def describe_wait(error: ServerError) -> str:
    """What a client waits for."""
    what = f"answered {error.status}" if error.status else "cannot be reached"
    return f"the server {what}; waiting for it"


def log_wait(error: ServerError) -> None:
    """Log what a client waits for."""
    logger.warning("%s", describe_wait(error))


@dataclass(eq=False)
class Patience:
    """The attempts of one request. `on_wait` is called once, when the server is away.

    `was_reached` says whether the client has reached the server before.
    """

    patience_s: float = PATIENCE_S
    on_wait: Callable[[ServerError], None] = log_wait
    was_reached: bool = True
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _since: float | None = None
    _pause_s: float = FIRST_PAUSE_S

    def reached(self) -> None:
        """The server has answered."""
        self.was_reached, self._since, self._pause_s = True, None, FIRST_PAUSE_S

    async def wait(self, error: ServerError) -> None:
        """Wait for the next attempt. Raises the error if it does not pass, or has lasted too long."""
        if error.status not in PASSING:
            raise error
        now = self.now()
        begins = self._since is None
        since = now if self._since is None else self._since
        self.was_reached = self.was_reached or error.status != 0
        patience_s = self.patience_s if self.was_reached else min(self.patience_s, FIRST_PATIENCE_S)
        left = since + patience_s - now
        asked = error.retry_after_s or 0.0
        if left <= 0 or asked > left:
            raise error
        if begins:
            self._since = now
            self.on_wait(error)
        await self.sleep(min(max(self._pause_s, asked), left))
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
