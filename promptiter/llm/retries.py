"""Retries: a model call that failed for a transient reason is made again, after a pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from promptiter.errors import ModelError, RateLimitedError, TransientModelError
from promptiter.llm.rate import RateLimit
from promptiter.llm.redaction import Redactor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a failed call is retried, and the pause before each retry: doubling, with jitter.

    A server that asks for a longer pause gets it, up to `longest_retry_after_s`.
    """

    attempts: int = 6
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    longest_retry_after_s: float = 600.0

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        longest = min(self.max_delay_s, self.first_delay_s * 2 ** (attempt - 1))
        return float(longest * rng.uniform(0.5, 1.0))


class Retrier:
    """Makes calls by the rules of `Retries`. The errors it raises hold no secrets and no cause."""

    def __init__(
        self,
        retries: Retries,
        *,
        redactor: Redactor,
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.retries = retries
        self._redactor = redactor
        self._rng = random.Random(seed)
        self._sleep = sleep

    async def call(
        self, attempt: Callable[[int], Awaitable[T]], *, model: str, rate: RateLimit | None = None
    ) -> tuple[T, int]:
        """Call `attempt` with 1, 2, … until it returns. Returns its result and the number of attempts.

        Only a TransientModelError is retried. A rate limit is paused for as long as the server asks.
        """
        last = self.retries.attempts
        for number in range(1, last + 1):
            try:
                return await attempt(number), number
            except TransientModelError as error:
                failure = error
            except ModelError as error:
                raised = type(error)(self._redactor.redact_text(str(error)))
                raised.status = error.status
                raise raised from None
            if number < last:
                await self._back_off(failure, number, rate)
        message = self._redactor.redact_text(str(failure))
        raise type(failure)(f"{model!r} failed {last} times, last: {message}") from None

    async def _back_off(self, failure: TransientModelError, attempt: int, rate: RateLimit | None) -> None:
        delay = self.retries.delay_s(attempt, self._rng)
        if failure.retry_after_s is not None:
            longest = self.retries.longest_retry_after_s
            if failure.retry_after_s > longest:
                message = self._redactor.redact_text(str(failure))
                asked = f"the server asks to wait {failure.retry_after_s:.0f} s, longer than {longest:.0f} s"
                raise type(failure)(f"{asked}: {message}") from None
            delay = max(delay, failure.retry_after_s)
            if rate is not None and isinstance(failure, RateLimitedError):
                rate.pause(failure.retry_after_s)
        await self._sleep(delay)
