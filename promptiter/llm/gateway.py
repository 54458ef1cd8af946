"""The one door through which every model call and declared tool call goes, of every role.

On the way in: the cache (an answer that is known is not paid again), the budget (a call that does not fit is not made),
the rate limit, the concurrency limit. On the way out: retries, the ledger, and the cache again, before anyone uses it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import orjson

from promptiter.errors import (
    BadAnswerError,
    ModelError,
    ModelTimeoutError,
    PromptiterError,
    RateLimitedError,
    SetupError,
    ToolFailedError,
    TransientModelError,
)
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.cache import Cache, CacheKey, MemoryCache
from promptiter.llm.cache.in_flight import InFlightCall
from promptiter.llm.cache.keys import FREE, StoredAnswer, ToolAnswer
from promptiter.llm.call_counter import record_call
from promptiter.llm.ledger import FROM_CACHE, TOOL, Ledger, LedgerEntry, Spending
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.llm.models import Function, Model, as_model
from promptiter.llm.prices import Price, PricedModel, Prices, priced
from promptiter.llm.rate import RateLimit
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.registry import MODELS
from traces import Usage, digest
from traces.model import Json

T = TypeVar("T")
_Asking: TypeAlias = AbstractAsyncContextManager[None]
_Answered: TypeAlias = tuple[StoredAnswer, LedgerEntry]

_active: ContextVar[Gateway | None] = ContextVar("promptiter_gateway", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a failed call is tried again, and how long to wait: doubling, with jitter, or what the server asks."""

    attempts: int = 6
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    longest_retry_after_s: float = 600.0

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        longest = min(self.max_delay_s, self.first_delay_s * 2 ** (attempt - 1))
        return float(longest * rng.uniform(0.5, 1.0))


class Gateway:
    """Shared by all that a run does; safe under asyncio, with thousands of calls at once.

    It lives in the event loop that uses it first; calls from other threads' loops are made there.
    """

    def __init__(
        self,
        *,
        models: Mapping[str, Model | Function] | None = None,
        cache: Cache | None = None,
        budget: Budget | Budgets | None = None,
        rates: Mapping[str, RateLimit] | None = None,
        prices: Prices | None = None,
        redactor: Redactor | None = None,
        retries: Retries | None = None,
        concurrency: int = 16,
        timeout_s: float = 120.0,
        max_output_tokens: int = 4096,
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.ledger = Ledger()
        self.cache = cache if cache is not None else MemoryCache()
        self.budget = budget
        self.prices = prices or Prices()
        self.redactor = redactor or Redactor(secrets_from_environment(os.environ))
        self.retries = retries or Retries()
        self.timeout_s = timeout_s
        self.max_output_tokens = max_output_tokens
        self._models: dict[str, Model] = {}
        for name, model in (models or {}).items():
            self.add_model(name, model)
        self._rates = dict(rates or {})
        self.concurrency = concurrency
        self._home: asyncio.AbstractEventLoop | None = None
        self._seed = seed
        self._rng = random.Random(seed)
        self._sleep = sleep
        self._in_flight: dict[CacheKey, InFlightCall] = {}
        self.recent_from: int | None = None
        """A mark of the cache: what was paid since counts as paid, also if a killed process did it."""

    async def ask(
        self, request: ModelRequest, site: CallSite, *, node_id: str = "", is_live: bool = False
    ) -> ModelReply:
        """Answer a request: from the cache, or by the model. A live node is never served from the cache.

        Raises a ModelError when all attempts failed, BudgetEndedError when it does not fit into the budget.
        """
        return await self._at_home(self._ask(request, site, node_id, is_live=is_live))

    async def _ask(self, request: ModelRequest, site: CallSite, node_id: str, *, is_live: bool) -> ModelReply:
        if not any(request.options.get(name) for name in _OUTPUT_BOUNDS):
            request = replace(request, options={**request.options, "max_tokens": self.max_output_tokens})

        async def execute(asking: _Asking) -> _Answered:
            return await self._paid(request, site, node_id, asking=asking)

        key, answered = CacheKey.of(site, request.digest), self._anew if is_live else self._once
        reply = await answered(key, execute, model=request.model, node_id=node_id)
        if not isinstance(reply, ModelReply):
            raise BadAnswerError(f"the cache holds a tool's answer under the key of a model call of node {node_id!r}")
        return reply

    async def call_tool(
        self,
        name: str,
        arguments: Json,
        function: Callable[..., Json | Awaitable[Json]],
        site: CallSite,
        *,
        node_id: str = "",
        is_live: bool = False,
    ) -> Json:
        """Call a declared tool; equal calls at the same place are answered by the cache. Its error is a ModelError."""
        return await self._at_home(self._call_tool(name, arguments, function, site, node_id, is_live=is_live))

    async def _call_tool(
        self,
        name: str,
        arguments: Json,
        function: Callable[..., Json | Awaitable[Json]],
        site: CallSite,
        node_id: str,
        *,
        is_live: bool,
    ) -> Json:
        model = f"{TOOL}{name}"

        async def execute(asking: _Asking) -> _Answered:
            started = time.perf_counter()
            async with asking:
                answer = await self._tool_answer(arguments, function)
            spent = Spending.of_call(FREE, seconds=time.perf_counter() - started)
            return answer, LedgerEntry(role=site.role, model=model, node_id=node_id, spent=spent)

        key, answered = CacheKey.of(site, digest(["tool", name, arguments])), self._anew if is_live else self._once
        answer = await answered(key, execute, model=model, node_id=node_id)
        if not isinstance(answer, ToolAnswer):
            raise BadAnswerError(f"the cache holds a model's answer under the key of a call of tool {name!r}")
        if answer.error is not None:
            raise ToolFailedError(name, answer.error)
        return answer.value

    async def _tool_answer(self, arguments: Json, function: Callable[..., Json | Awaitable[Json]]) -> ToolAnswer:
        try:
            keywords = arguments if isinstance(arguments, dict) else {"argument": arguments}
            if inspect.iscoroutinefunction(function):
                value = await function(**keywords)
            else:
                value = await asyncio.to_thread(function, **keywords)
            return ToolAnswer(value=value, error=None)
        except PromptiterError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent must hear of it, whatever it is
            return ToolAnswer(value=None, error=self.redactor.redact_text(f"{type(error).__name__}: {error}"))

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        self.settle_here()
        if self._home is None or asyncio.get_running_loop() is self._home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def _once(
        self,
        key: CacheKey,
        execute: Callable[[_Asking], Awaitable[_Answered]],
        *,
        model: str,
        node_id: str,
    ) -> StoredAnswer:
        """The answer under a key; equal calls at one time share one execution. Only here an answer enters the cache."""
        known = await self._known(key)
        if known is not None:
            self.ledger.count(LedgerEntry(role=key.role, model=model, node_id=node_id, spent=FROM_CACHE))
            record_call(paid=self.recent_from is not None and self.cache.is_since(key, self.recent_from))
            return known

        async def execute_and_keep() -> StoredAnswer:
            answer, paid = await execute(self.cache.asking(key, model=model, node_id=node_id))
            return await self.cache.put(key, self._counted((answer, paid)), paid=paid)

        def forget() -> None:
            if self._in_flight.get(key) is call:
                del self._in_flight[key]

        call = self._in_flight[key] = InFlightCall(asyncio.ensure_future(execute_and_keep()), forget)
        call.task.add_done_callback(lambda _: forget())
        # An error is looked at also if nobody waits for it any more; else asyncio complains.
        call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await call.join()

    async def _anew(
        self, key: CacheKey, execute: Callable[[_Asking], Awaitable[_Answered]], *, model: str, node_id: str
    ) -> StoredAnswer:
        """The answer of a live node: asked for each time. Of the cache it needs only the account."""
        answer, paid = await execute(self.cache.asking(key, model=model, node_id=node_id))
        counted = self._counted((answer, paid))
        await self.cache.note_paid(key, paid)
        return counted

    async def _known(self, key: CacheKey) -> StoredAnswer | None:
        """What the cache has, or what a call that is under way brings."""
        if key in self._in_flight:
            return await self._in_flight[key].join()
        known = await self.cache.get(key)
        if known is None and key in self._in_flight:  # someone took off while the cache was asked
            return await self._in_flight[key].join()
        return known

    def _counted(self, answered: _Answered) -> StoredAnswer:
        """An answer as it may be kept, after its cost was counted."""
        answer, paid = answered
        self.ledger.count(paid)
        record_call(paid=True)
        return self._without_secrets(answer)

    async def _paid(
        self, request: ModelRequest, site: CallSite, node_id: str, *, asking: _Asking
    ) -> tuple[ModelReply, LedgerEntry]:
        bound = len(orjson.dumps(request)) + _output_bound(request)
        price = self.price(request.model)
        if self.budget is None:
            return await self._attempts(request, site, node_id, bound=bound, price=price, asking=asking)
        try:
            reservation = self.budget.reserve(tokens=bound, usd=price.bound_usd(bound) if price else None)
        except SetupError as error:
            raise SetupError(f"model {request.model!r}: {error}") from error
        async with reservation:
            reply, paid = await self._attempts(request, site, node_id, bound=bound, price=price, asking=asking)
            tokens = reply.usage.tokens if _is_counted(reply.usage) else None
            reservation.settle(tokens=tokens, usd=reply.usage.cost_usd)
            return reply, paid

    async def _attempts(
        self,
        request: ModelRequest,
        site: CallSite,
        node_id: str,
        *,
        bound: int,
        price: Price | None,
        asking: _Asking,
    ) -> tuple[ModelReply, LedgerEntry]:
        model = self.model(request.model)
        rate = self._rates.get(request.model) or self._rates.get("*")
        started = time.perf_counter()
        async with AsyncExitStack() as asked:
            for attempt in range(1, self.retries.attempts + 1):
                try:
                    async with self._slots:
                        if attempt == 1:  # not before: who only waits for a slot is not asked for yet
                            await asked.enter_async_context(asking)
                        if rate is not None:
                            await rate.acquire(bound)  # last of all, so that what was granted is sent at once
                        async with asyncio.timeout(self.timeout_s):
                            reply = await model(request, repeat=site.repeat)
                except TimeoutError:
                    failure: TransientModelError = ModelTimeoutError(
                        f"no answer from {request.model!r} in {self.timeout_s} s"
                    )
                except TransientModelError as error:
                    failure = error
                except ModelError as error:
                    raise type(error)(self.redactor.redact_text(str(error))) from None  # the cause may hold a secret
                else:
                    reply = replace(reply, usage=priced(reply.usage, price))
                    if rate is not None and _is_counted(reply.usage):
                        rate.settle(bound, reply.usage.tokens)
                    spent = Spending.of_call(reply.usage, seconds=time.perf_counter() - started, attempts=attempt)
                    return reply, LedgerEntry(role=site.role, model=request.model, node_id=node_id, spent=spent)
                if attempt == self.retries.attempts:
                    break
                await self._back_off(failure, attempt, rate)
            told = self.redactor.redact_text(str(failure))
            raise type(failure)(f"{request.model!r} failed {self.retries.attempts} times, last: {told}") from None

    def _without_secrets(self, answer: StoredAnswer) -> StoredAnswer:
        """What is kept is also what is used, so that a run and its replay are equal."""
        if isinstance(answer, ToolAnswer):
            return replace(answer, value=self.redactor.redact_known_json(answer.value))
        wishes = (
            replace(wish, arguments=self.redactor.redact_known_json(wish.arguments)) for wish in answer.tool_requests
        )
        return replace(answer, text=self.redactor.redact_known(answer.text), tool_requests=tuple(wishes))

    async def _back_off(self, failure: TransientModelError, attempt: int, rate: RateLimit | None) -> None:
        delay = self.retries.delay_s(attempt, self._rng)
        if failure.retry_after_s is not None:
            if failure.retry_after_s > self.retries.longest_retry_after_s:
                told = self.redactor.redact_text(str(failure))
                asked, longest = failure.retry_after_s, self.retries.longest_retry_after_s
                told = f"the server asks to wait {asked:.0f} s, longer than {longest:.0f} s: {told}"
                raise type(failure)(told) from None
            delay = max(delay, failure.retry_after_s)
            if rate is not None and isinstance(failure, RateLimitedError):
                rate.pause(failure.retry_after_s)
        await self._sleep(delay)

    def model(self, name: str) -> Model:
        """The model of that name: one of the gateway's own, a registered one, or litellm's."""
        if name not in self._models:
            if name in MODELS:
                self._models[name] = MODELS.get(name)(seed=self._seed)
            else:
                from promptiter.llm.litellm import LiteLLMModel

                self._models[name] = LiteLLMModel(timeout_s=self.timeout_s)
        return self._models[name]

    def settle_here(self) -> None:
        """Make the running event loop the one that calls are made in, unless another still is."""
        if self._home is None or not self._home.is_running():
            self._home = asyncio.get_running_loop()
            self._slots = asyncio.Semaphore(self.concurrency)
            for rate in self._rates.values():
                rate.settle_here()

    def add_model(self, name: str, model: Model | Function) -> None:
        """Serve a name by a model of the user's, or by one with an address and a key of its own: these stay secret."""
        from promptiter.llm.litellm import LiteLLMModel

        if isinstance(model, LiteLLMModel):
            self.redactor.learn(model.secrets())
        self._models[name] = as_model(model)

    def price(self, name: str) -> Price | None:
        """The price of a model: the user's own, the model's own, or litellm's for what litellm serves."""
        from promptiter.llm.litellm import LiteLLMModel

        model = self.model(name)
        known = self.prices.of(name, is_listed=isinstance(model, LiteLLMModel))
        return model.price if known is None and isinstance(model, PricedModel) else known

    def context_tokens(self, name: str) -> int | None:
        """How many tokens a request to a model may have; of one that litellm serves, what its list says."""
        from promptiter.llm.litellm import LiteLLMModel, context_tokens

        return context_tokens(name) if isinstance(self.model(name), LiteLLMModel) else None

    @contextmanager
    def active(self) -> Iterator[Gateway]:
        """Make this the gateway of all that runs below, in tasks and threads too."""
        token = _active.set(self)
        try:
            yield self
        finally:
            _active.reset(token)


def current_gateway() -> Gateway:
    """The active gateway; outside an evaluation, a plain one of its own with no cache to share and no budget."""
    gateway = _active.get()
    if gateway is None:
        gateway = Gateway()
        _active.set(gateway)
    return gateway


_OUTPUT_BOUNDS = ("max_tokens", "max_completion_tokens")


def _output_bound(request: ModelRequest) -> int:
    """The most tokens that an answer may have: what the request asks for, under either name."""
    bounds = [request.options[name] for name in _OUTPUT_BOUNDS if request.options.get(name) is not None]
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise SetupError(f"max_tokens of model {request.model!r} is {bound!r}; give a whole number of at least 1")
    return int(max(bounds))


def _is_counted(usage: Usage) -> bool:
    return usage.input_tokens is not None and usage.output_tokens is not None
