"""Gateway: every model call and every declared tool call goes through it, whichever role makes it.

A call is answered from the cache if the answer is known. Otherwise it is checked against the budget, waits for the rate
limit and a free slot, and is retried if it fails for a transient reason. Its cost goes to the ledger, and its answer
to the cache before it is used.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import orjson

from promptiter.errors import BadAnswerError, ModelTimeoutError, PromptiterError, SetupError, ToolFailedError
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.cache import Cache, CacheKey, MemoryCache
from promptiter.llm.cache.in_flight import InFlightCall
from promptiter.llm.cache.keys import FREE, StoredAnswer, ToolAnswer
from promptiter.llm.catalog import ModelCatalog
from promptiter.llm.ledger import FROM_CACHE, TOOL, Ledger, LedgerEntry, Spending, record_call
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.llm.models import Function, Model
from promptiter.llm.prices import Price, Prices, add_cost
from promptiter.llm.rate import Grant, RateLimit
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.retries import Retrier, Retries
from traces import Usage, digest
from traces.model import Json

T = TypeVar("T")
ToolFunction: TypeAlias = Callable[..., Json | Awaitable[Json]]
_Asking: TypeAlias = AbstractAsyncContextManager[None]
_Paid: TypeAlias = tuple[StoredAnswer, Spending]
_Execute: TypeAlias = Callable[[_Asking], Awaitable[_Paid]]

_active: ContextVar[Gateway | None] = ContextVar("promptiter_gateway", default=None)


class Gateway:
    """Answers model and tool calls, thousands at once under asyncio. One gateway serves all parts of a run.

    It belongs to the event loop that uses it first; calls from event loops of other threads are made on that one.
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
        self.redactor = redactor or Redactor(secrets_from_environment(os.environ))
        self.timeout_s = timeout_s
        self.max_output_tokens = max_output_tokens
        self.catalog = ModelCatalog(models, prices=prices, timeout_s=timeout_s, seed=seed)
        self.redactor.learn(self.catalog.secrets())
        self._rates = dict(rates or {})
        self.concurrency = concurrency
        self._home: asyncio.AbstractEventLoop | None = None
        self._retrier = Retrier(retries or Retries(), redactor=self.redactor, seed=seed, sleep=sleep)
        self._in_flight: dict[CacheKey, InFlightCall] = {}
        self.recent_from: int | None = None
        """A position in the cache: answers paid after it count as paid, even if a killed process paid them."""

    async def ask(
        self, request: ModelRequest, site: CallSite, *, node_id: str = "", is_live: bool = False
    ) -> ModelReply:
        """Answer a request from the cache or by the model. A live node is never answered from the cache.

        Raises a ModelError if all attempts failed, BudgetEndedError if the call does not fit into the budget.
        """
        return await self._run_on_home_loop(self._ask(request, site, node_id, is_live=is_live))

    async def call_tool(
        self,
        name: str,
        arguments: Json,
        function: ToolFunction,
        site: CallSite,
        *,
        node_id: str = "",
        is_live: bool = False,
    ) -> Json:
        """Call a declared tool. Equal calls at the same place are answered from the cache.

        An exception of the tool is raised as ToolFailedError.
        """
        return await self._run_on_home_loop(self._call_tool(name, arguments, function, site, node_id, is_live=is_live))

    def model(self, name: str) -> Model:
        """The model that serves a name."""
        return self.catalog.get(name)

    def add_model(self, name: str, model: Model | Function) -> None:
        """Serve a name by this model. Its key and other secrets are redacted everywhere."""
        self.catalog.add(name, model)
        self.redactor.learn(self.catalog.secrets())

    def price(self, name: str) -> Price | None:
        """The price of a model, or None if it is unknown."""
        return self.catalog.price(name)

    def context_tokens(self, name: str) -> int | None:
        """How many tokens a request to a model may have, or None if that is unknown."""
        return self.catalog.context_tokens(name)

    def find_setup_problems(self, names: Iterable[str]) -> list[str]:
        """One line for each of these models that certainly cannot be called. Makes no call.

        If the cache has answers, there are none: these may be all that is needed.
        """
        if self.cache.stats().entries:
            return []
        found = (self.catalog.find_setup_problem(name) for name in sorted(set(names)))
        return [problem for problem in found if problem is not None]

    def bind_to_running_loop(self) -> None:
        """Make calls on the running event loop from now on, unless the loop bound before still runs."""
        if self._home is None or not self._home.is_running():
            self._home = asyncio.get_running_loop()
            self._slots = asyncio.Semaphore(self.concurrency)
            for rate in self._rates.values():
                rate.bind_to_running_loop()

    @contextmanager
    def active(self) -> Iterator[Gateway]:
        """Make this the gateway of the code in this block, including its tasks and threads."""
        token = _active.set(self)
        try:
            yield self
        finally:
            _active.reset(token)

    async def _ask(self, request: ModelRequest, site: CallSite, node_id: str, *, is_live: bool) -> ModelReply:
        if not any(request.options.get(name) for name in _OUTPUT_BOUNDS):
            request = replace(request, options={**request.options, "max_tokens": self.max_output_tokens})
        call = _Call(CacheKey.of(site, request.digest), request.model, node_id)
        reply = await self._answer(call, lambda asking: self._call_model(request, site, asking), is_live=is_live)
        if not isinstance(reply, ModelReply):
            raise BadAnswerError(f"the cache holds a tool's answer under the key of a model call of node {node_id!r}")
        return reply

    async def _call_tool(
        self, name: str, arguments: Json, function: ToolFunction, site: CallSite, node_id: str, *, is_live: bool
    ) -> Json:
        call = _Call(CacheKey.of(site, digest(["tool", name, arguments])), f"{TOOL}{name}", node_id)

        async def execute(asking: _Asking) -> _Paid:
            started = time.perf_counter()
            async with asking:
                answer = await self._run_tool(arguments, function)
            return answer, Spending.of_call(FREE, seconds=time.perf_counter() - started)

        answer = await self._answer(call, execute, is_live=is_live)
        if not isinstance(answer, ToolAnswer):
            raise BadAnswerError(f"the cache holds a model's answer under the key of a call of tool {name!r}")
        if answer.error is not None:
            raise ToolFailedError(name, answer.error)
        return answer.value

    async def _run_tool(self, arguments: Json, function: ToolFunction) -> ToolAnswer:
        try:
            keywords = arguments if isinstance(arguments, dict) else {"argument": arguments}
            if inspect.iscoroutinefunction(function):
                value = await function(**keywords)
            else:
                value = await asyncio.to_thread(function, **keywords)
            return ToolAnswer(value=value, error=None)
        except PromptiterError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent gets to see any error
            return ToolAnswer(value=None, error=self.redactor.redact_text(f"{type(error).__name__}: {error}"))

    async def _run_on_home_loop(self, call: Coroutine[Any, Any, T]) -> T:
        self.bind_to_running_loop()
        if self._home is None or asyncio.get_running_loop() is self._home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def _answer(self, call: _Call, execute: _Execute, *, is_live: bool) -> StoredAnswer:
        """Answer from the cache, or execute the call and store its answer. Equal calls in flight are executed once.

        A live call is always executed. The cache records what it cost, not its answer.
        """
        if is_live:
            answer, paid = await self._execute(call, execute)
            await self.cache.note_paid(call.key, paid)
            return answer
        known = await self._find_known(call.key)
        if known is not None:
            self.ledger.count(call.entry(FROM_CACHE))
            record_call(paid=self.recent_from is not None and await self.cache.is_since(call.key, self.recent_from))
            return known

        async def execute_and_store() -> StoredAnswer:
            answer, paid = await self._execute(call, execute)
            return await self.cache.put(call.key, answer, paid=paid)

        def forget() -> None:
            if self._in_flight.get(call.key) is flight:
                del self._in_flight[call.key]

        flight = self._in_flight[call.key] = InFlightCall(asyncio.ensure_future(execute_and_store()), forget)
        flight.task.add_done_callback(lambda _: forget())
        # Retrieve the error even if no caller waits any more; otherwise asyncio logs it as never retrieved.
        flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await flight.join()

    async def _find_known(self, key: CacheKey) -> StoredAnswer | None:
        """The answer in the cache, or that of an equal call in flight."""
        if key in self._in_flight:
            return await self._in_flight[key].join()
        known = await self.cache.get(key)
        if known is None and key in self._in_flight:  # an equal call started meanwhile
            return await self._in_flight[key].join()
        return known

    async def _execute(self, call: _Call, execute: _Execute) -> tuple[StoredAnswer, LedgerEntry]:
        """Execute a call and count its cost. The answer is without secrets."""
        answer, spent = await execute(self.cache.asking(call.key, model=call.model, node_id=call.node_id))
        paid = call.entry(spent)
        self.ledger.count(paid)
        record_call(paid=True)
        return self._without_secrets(answer), paid

    async def _call_model(self, request: ModelRequest, site: CallSite, asking: _Asking) -> _Paid:
        bound = len(orjson.dumps(request)) + _output_bound(request)
        price = self.price(request.model)
        budget = self.budget or Budgets()
        try:
            reservation = budget.reserve(tokens=bound, usd=price.bound_usd(bound) if price else None)
        except SetupError as error:
            raise SetupError(f"model {request.model!r}: {error}") from error
        async with reservation:
            started = time.perf_counter()
            reply, attempts = await self._call_with_retries(request, site, bound=bound, asking=asking)
            reply = replace(reply, usage=add_cost(reply.usage, price))
            tokens = reply.usage.tokens if _is_counted(reply.usage) else None
            reservation.settle(tokens=tokens, usd=reply.usage.cost_usd)
            return reply, Spending.of_call(reply.usage, seconds=time.perf_counter() - started, attempts=attempts)

    async def _call_with_retries(
        self, request: ModelRequest, site: CallSite, *, bound: int, asking: _Asking
    ) -> tuple[ModelReply, int]:
        """The reply of the model, and the number of attempts that it took."""
        model = self.model(request.model)
        rate = self._rates.get(request.model) or self._rates.get("*")
        grant: Grant | None = None
        async with AsyncExitStack() as stack:

            async def attempt(number: int) -> ModelReply:
                nonlocal grant
                async with self._slots:
                    if number == 1:  # not earlier: a call that waits for a slot has not been made yet
                        await stack.enter_async_context(asking)
                    if rate is not None:
                        grant = await rate.acquire(bound)  # last, so that the call is sent as soon as it is granted
                    try:
                        async with asyncio.timeout(self.timeout_s):
                            return await model(request, repeat=site.repeat)
                    except TimeoutError:
                        raise ModelTimeoutError(f"no answer from {request.model!r} in {self.timeout_s} s") from None

            reply, attempts = await self._retrier.call(attempt, model=request.model, rate=rate)
        if rate is not None and grant is not None and _is_counted(reply.usage):
            rate.settle(grant, reply.usage.tokens)
        return reply, attempts

    def _without_secrets(self, answer: StoredAnswer) -> StoredAnswer:
        """Redact an answer. The stored answer is also the one that is used, so a run and its replay are equal."""
        if isinstance(answer, ToolAnswer):
            return replace(answer, value=self.redactor.redact_known_json(answer.value))
        requests = (
            replace(request, arguments=self.redactor.redact_known_json(request.arguments))
            for request in answer.tool_requests
        )
        return replace(answer, text=self.redactor.redact_known(answer.text), tool_requests=tuple(requests))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a model or tool: its key in the cache, and where the ledger counts it."""

    key: CacheKey
    model: str
    node_id: str

    def entry(self, spent: Spending) -> LedgerEntry:
        return LedgerEntry(role=self.key.role, model=self.model, node_id=self.node_id, spent=spent)


def current_gateway() -> Gateway:
    """The active gateway, or a new one without budget and shared cache if none is active."""
    gateway = _active.get()
    if gateway is None:
        gateway = Gateway()
        _active.set(gateway)
    return gateway


_OUTPUT_BOUNDS = ("max_tokens", "max_completion_tokens")


def _output_bound(request: ModelRequest) -> int:
    """The highest number of tokens that an answer may have, by the request's options."""
    bounds = [request.options[name] for name in _OUTPUT_BOUNDS if request.options.get(name) is not None]
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise SetupError(f"max_tokens of model {request.model!r} is {bound!r}; give a whole number of at least 1")
    return int(max(bounds))


def _is_counted(usage: Usage) -> bool:
    return usage.input_tokens is not None and usage.output_tokens is not None
