"""ModelPool: the models of a process, and what all runs share to call them.

Keys, prices, rate limits, free slots and retries belong to the pool. What a run has of its own (cache, ledger, budget,
seed, event loop) belongs to its gateway.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

import orjson

from promptiter.concurrency import Slots
from promptiter.context import ContextValue
from promptiter.errors import ModelTimeoutError, SetupError
from promptiter.llm.attempts import CallAttempts
from promptiter.llm.catalog import ModelCatalog
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import GivenModel, Model
from promptiter.llm.options import OUTPUT_BOUNDS, count_choices
from promptiter.llm.prices import Prices
from promptiter.llm.rate import Grant, RateLimit
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.retries import Retrier, Retries
from traces import Usage

CONCURRENCY = 64
"""Maximum number of calls at the same time, if none is given: as many as a backward walk makes."""


_is_calling: ContextVar[bool] = ContextVar("promptiter_is_calling_model", default=False)


def is_calling_model() -> bool:
    """Whether this code runs inside of a model that a gateway calls, including its tasks and threads."""
    return _is_calling.get()


class ModelPool:
    """Calls models, thousands at once under asyncio, for any number of runs in any number of threads."""

    def __init__(
        self,
        *,
        models: Mapping[str, GivenModel] | None = None,
        rates: Mapping[str, RateLimit] | None = None,
        prices: Prices | None = None,
        redactor: Redactor | None = None,
        retries: Retries | None = None,
        concurrency: int = CONCURRENCY,
        timeout_s: float = 120.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        others: Model | None = None,
    ) -> None:
        self.redactor = redactor or Redactor(secrets_from_environment(os.environ))
        self.catalog = ModelCatalog(models, prices=prices, timeout_s=timeout_s, others=others)
        self.redactor.learn(self.catalog.secrets())
        self.timeout_s = timeout_s
        self._rates = dict(rates or {})
        self._retrier = Retrier(retries or Retries(), redactor=self.redactor, sleep=sleep)
        if concurrency < 1:
            raise SetupError(f"concurrency is {concurrency!r}; give a whole number of at least 1")
        self._slots = Slots(concurrency)

    def add_model(self, name: str, model: GivenModel) -> None:
        """Serve a name by this model. Its key and other secrets are redacted everywhere."""
        self.catalog.add(name, model)
        self.redactor.learn(self.catalog.secrets())

    def limit_output(self, request: ModelRequest, *, default: int, doublings: int = 0) -> ModelRequest:
        """The request with a limit of the tokens of its answer: its own or the default, doubled this many times.

        A model that thinks before it answers gets more than the default, and none more than it can write.
        """
        return request.with_options(**self.find_output_limits(request, default=default, doublings=doublings))

    def find_output_limits(self, request: ModelRequest, *, default: int, doublings: int = 0) -> dict[str, int]:
        """The options that limit the tokens of an answer, with their values; see `limit_output`."""
        limits = list_output_limits(request)
        if not limits:
            limits = {"max_tokens": self.catalog.limit_output(request, default=default)}
        if not doublings:
            return limits
        most = self.catalog.most_output_tokens(request.model) or math.inf
        return {name: int(max(limit, min(limit * 2**doublings, most))) for name, limit in limits.items()}

    async def call(
        self, request: ModelRequest, *, repeat: int, seed: int, bound: int, attempts: CallAttempts
    ) -> tuple[ModelReply, int]:
        """Call a model, again if it fails for a transient reason. Returns its reply and the number of attempts.

        `bound` is the most tokens that one attempt may take.
        """
        rate = self._rates.get(request.model) or self._rates.get("*")
        timeout_s = request.options.get("timeout") or self.timeout_s
        grant: Grant | None = None
        self.catalog.prepare(request.model)

        async def attempt(_: int) -> ModelReply:
            nonlocal grant
            if not attempts.is_reserved:
                await attempts.reserve()  # without a slot, which a call with a reservation may wait for
            async with self._slots:
                if rate is not None:
                    grant = await rate.acquire(bound)
                if (stop_request := attempts.find_stop_request()) is None:
                    return await attempts.make(send)  # not earlier: a call that waits has not been sent yet
            return await attempts.stop(stop_request)

        async def send() -> ModelReply:
            try:
                async with asyncio.timeout(timeout_s):
                    with ContextValue(_is_calling, True):
                        return await self.catalog.call(request, repeat=repeat, seed=seed)
            except TimeoutError:
                raise ModelTimeoutError(f"no answer from {request.model!r} in {timeout_s} s") from None

        reply, number = await self._retrier.call(attempt, model=request.model, rate=rate)
        if rate is not None and grant is not None and is_counted(reply.usage):
            rate.settle(grant, reply.usage.tokens)
        return reply, number


def bound_tokens(request: ModelRequest) -> int:
    """The most tokens that one attempt of a request may take: a token has at least one byte."""
    return len(orjson.dumps(request)) + bound_output_tokens(request)


def bound_output_tokens(request: ModelRequest) -> int:
    """The most tokens that the answer of a request may have, or all its answers together."""
    return int(max(list_output_limits(request).values())) * count_choices(request.options)


def list_output_limits(request: ModelRequest) -> dict[str, int]:
    """The options of a request that limit the tokens of its answer, with their values."""
    if not (options := request.options):
        return {}
    return {name: options[name] for name in OUTPUT_BOUNDS if options.get(name) is not None}


def is_counted(usage: Usage) -> bool:
    """Whether the tokens of a call are known."""
    return usage.input_tokens is not None and usage.output_tokens is not None
