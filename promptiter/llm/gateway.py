"""Gateway: every model call and every declared tool call goes through it, whichever role makes it.

A call is answered from the cache if the answer is known. Otherwise it is checked against the budget, waits for the rate
limit and a free slot, and is retried if it fails for a transient reason. Its cost goes to the ledger, and its answer
to the cache before it is used.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.concurrency import HomeLoop
from promptiter.errors import BadAnswerError, PromptiterError, SetupError, StopRequestedError, ToolFailedError
from promptiter.llm.attempts import CallAttempts
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.cache import Cache, CacheKey, MemoryCache
from promptiter.llm.cache.in_flight import CallsInFlight
from promptiter.llm.cache.keys import FREE, StoredAnswer, ToolAnswer, redact_answer
from promptiter.llm.judgement import place_call
from promptiter.llm.ledger import FROM_CACHE, TOOL, Ledger, LedgerEntry, Spending, record_call
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.llm.models import GivenModel, Model
from promptiter.llm.options import OUTPUT_BOUNDS, check_options
from promptiter.llm.pool import CONCURRENCY, ModelPool, bound_output_tokens, bound_tokens, is_counted
from promptiter.llm.prices import Price, Prices, add_cost, check_usage
from promptiter.llm.rate import RateLimit
from promptiter.llm.redaction import Redactor
from promptiter.llm.retries import Retries
from promptiter.llm.tools import ToolFunction, execute_tool
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

_Paid: TypeAlias = tuple[StoredAnswer, Spending]
_Execute: TypeAlias = Callable[[], Awaitable[_Paid]]

_NO_BUDGET = Budgets()

_active: ContextVar[Gateway | None] = ContextVar("promptiter_gateway", default=None)


class Gateway:
    """Answers model and tool calls for one run, or for code outside of runs.

    The models belong to a `pool` that all runs share. Cache, ledger, budget and seed belong to the gateway: the engine
    makes one for each run with `for_run`. Inside a run, calls of the gateway that a judge or a stage was built with are
    answered by the gateway of the run.
    """

    def __init__(
        self,
        *,
        models: Mapping[str, GivenModel] | None = None,
        cache: Cache | None = None,
        budget: Budget | Budgets | None = None,
        rates: Mapping[str, RateLimit] | None = None,
        prices: Prices | None = None,
        redactor: Redactor | None = None,
        retries: Retries | None = None,
        concurrency: int = CONCURRENCY,
        timeout_s: float = 120.0,
        max_output_tokens: int = 4096,
        seed: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget | Budgets):
            raise SetupError(f"the budget of a gateway is {shorten(budget)}; give a Budget, such as Budget(max_usd=2)")
        if models is not None and not isinstance(models, Mapping):
            raise SetupError(
                f"the models of a gateway are {shorten(models)}; give your own models by name, such as "
                "{'my-model': function}; others need no entry"
            )
        if isinstance(cache, str):
            raise SetupError(f"the cache of a gateway is {shorten(cache)}; give open_cache({shorten(cache)})")
        self.pool = ModelPool(
            models=models,
            rates=rates,
            prices=prices,
            redactor=redactor,
            retries=retries,
            concurrency=concurrency,
            timeout_s=timeout_s,
            sleep=sleep,
        )
        self.shared_cache = cache
        """The cache of all runs, if one was given. Otherwise each run has its own."""
        self.cache = cache if cache is not None else MemoryCache()
        self.budget = budget
        self.ledger = Ledger()
        """What was spent through this gateway, including its runs."""
        self.seed = seed
        self.max_output_tokens = max_output_tokens
        self._home = HomeLoop(outlives_callers=False)
        self._in_flight = CallsInFlight()
        self._paid_since: int | None = None
        self._paid: set[int] = set()  # hashes of the calls made since then: a large evaluation makes many
        self._agent_model: str | None = None
        self._origin: Gateway | None = None  # the gateway that this one was derived from
        self._find_stop_request: Callable[[], str | None] = lambda: None

    def for_run(self, *, cache: Cache | None = None, seed: int | None = None) -> Gateway:
        """The gateway of one run: the same models, with a ledger, a budget and a cache of its own.

        Without a `cache`, it is the one that this gateway was given, or a new one in memory.
        """
        run = self._derive()
        shared = cache if cache is not None else self.shared_cache
        run.cache = shared if shared is not None else MemoryCache()
        run.budget = None if self.budget is None else self.budget.for_run()
        run.ledger = Ledger(total=self.ledger)
        run.seed = self.seed if seed is None else seed
        run._home, run._in_flight = HomeLoop(), CallsInFlight()
        return run

    def with_seed(self, seed: int) -> Gateway:
        """The same gateway with another seed."""
        other = self._derive()
        other.seed = seed
        return other

    def counting_paid_since(self, mark: int) -> Gateway:
        """The same gateway, which counts answers in the cache as paid if they are newer than a mark of the cache.

        It has paid them itself, or a killed process has. Not every cache knows what was paid, so it remembers that.
        """
        other = self._derive()
        other._paid_since, other._paid = mark, set()
        return other

    def stopping_on(self, find_request: Callable[[], str | None]) -> Gateway:
        """The same gateway, which makes no further calls of stages once this returns how a stop was requested.

        Calls of case runs are still made: a case run is finished before a run stops.
        """
        other = self._derive()
        other._find_stop_request = find_request
        return other

    def check_stop(self) -> None:
        """Raise StopRequestedError if the user asked to stop."""
        if (reason := self._find_stop_request()) is not None:
            raise StopRequestedError(reason)

    @property
    def is_stopping(self) -> bool:
        """Whether the user asked to stop, so that no case run is started."""
        return self._find_stop_request() is not None

    def with_agent_model(self, model: str) -> Gateway:
        """The same gateway with this model in place of those that the agent asks for."""
        other = self._derive()
        other._agent_model = model
        return other

    async def ask(
        self,
        request: ModelRequest,
        site: CallSite,
        *,
        node_id: str = "",
        is_live: bool = False,
        doublings: int = 0,
    ) -> ModelReply:
        """Answer a request from the cache or by the model. A live node is never answered from the cache.

        The limit of the answer's tokens is doubled this many times, as if the request had asked for it.
        Raises a ModelError if all attempts failed, BudgetEndedError if the call does not fit into the budget.
        """
        gateway = self.find_active()
        placed = place_call(site)
        return await gateway._home.run(gateway._ask(request, placed, node_id, is_live=is_live, doublings=doublings))

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
        gateway = self.find_active()
        placed = place_call(site)
        return await gateway._home.run(gateway._call_tool(name, arguments, function, placed, node_id, is_live=is_live))

    def find_active(self) -> Gateway:
        """The gateway that answers calls of this one here: the active one, if it was derived from this one."""
        active = origin = _active.get()
        while origin is not None and origin is not self:
            origin = origin._origin
        return self if origin is None or active is None else active

    def limit_output(self, request: ModelRequest, *, answer_tokens: int = 0, doublings: int = 0) -> ModelRequest:
        """The request with a limit of the tokens of its answer, which is what a call reserves in the budget.

        Without a limit of its own it gets the default of the gateway, or `answer_tokens` if these are more, and what
        its model may need to think. The limit is doubled this many times, up to what the model can write.
        """
        default = max(self.max_output_tokens, answer_tokens)
        return self.pool.limit_output(request, default=default, doublings=doublings)

    @property
    def redactor(self) -> Redactor:
        return self.pool.redactor

    def model(self, name: str) -> Model:
        """The model that serves a name."""
        return self.pool.catalog.get(name)

    def add_model(self, name: str, model: GivenModel) -> None:
        """Serve a name by this model, for all runs. Its key and other secrets are redacted everywhere."""
        self.pool.add_model(name, model)

    def price(self, name: str) -> Price | None:
        """The price of a model, or None if it is unknown."""
        return self.pool.catalog.price(name)

    def find_setup_problems(self, names: Iterable[str]) -> list[str]:
        """One line for each of these models that cannot be called, or is misspelled. No model is called; blocking.

        If the cache has answers, there are none: these may be all that is needed.
        """
        if self.cache.stats().entries:
            return []
        found = (self.pool.catalog.find_setup_problem(name) for name in sorted(set(names)))
        return [problem for problem in found if problem is not None]

    def find_unpriced_models(self, names: Iterable[str]) -> list[str]:
        """One line for each of these models whose price is unknown, if the budget caps dollars."""
        if self.budget is None or not self.budget.needs_prices:
            return []
        return [
            f"max_usd cannot be enforced: the price of model {name!r} is unknown; give it one as models.{name}.price "
            "in promptiter.yaml or prices= of the Gateway, or set budget.allow_unknown_price"
            for name in sorted(set(names))
            if self.price(name) is None
        ]

    def shares_models_with(self, other: Gateway) -> bool:
        """Whether both call the same models, as the gateways of runs do."""
        return self.pool is other.pool

    def bind_to_running_loop(self) -> None:
        """Make calls on the running event loop from now on, unless the loop bound before still runs."""
        self._home.bind()

    @contextmanager
    def active(self) -> Iterator[Gateway]:
        """Make this the gateway of the code in this block, including its tasks and threads."""
        token = _active.set(self)
        try:
            yield self
        finally:
            _active.reset(token)

    def _derive(self) -> Gateway:
        other = copy.copy(self)
        other._origin = self
        return other

    async def _ask(
        self, request: ModelRequest, site: CallSite, node_id: str, *, is_live: bool, doublings: int
    ) -> ModelReply:
        if self._agent_model is not None and site.role == "agent":
            request = replace(request, model=self._agent_model)
        if doublings:
            request = self.limit_output(request, doublings=doublings)
        call = _Call(CacheKey.of(site, self._find_digest(request), seed=self.seed), request.model, node_id)
        reply = await self._answer(call, lambda: self._call_model(request, site, call), is_live=is_live)
        if not isinstance(reply, ModelReply):
            raise BadAnswerError(f"the cache holds a tool's answer under the key of a model call of node {node_id!r}")
        return reply

    def _find_digest(self, request: ModelRequest) -> str:
        """The digest of a request with the default limit, which does not depend on what is known of its model."""
        if all(request.options.get(name) is None for name in OUTPUT_BOUNDS):
            request = request.with_options(max_tokens=self.max_output_tokens)
        return request.digest

    async def _call_tool(
        self, name: str, arguments: Json, function: ToolFunction, site: CallSite, node_id: str, *, is_live: bool
    ) -> Json:
        key = CacheKey.of(site, digest(["tool", name, arguments]), seed=self.seed)
        call = _Call(key, f"{TOOL}{name}", node_id)

        async def execute() -> _Paid:
            started = time.perf_counter()
            async with self.cache.asking(key, lost=call.entry(Spending.of_lost_call())):
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
            return ToolAnswer(value=await execute_tool(function, arguments), error=None)
        except PromptiterError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent gets to see any error
            return ToolAnswer(value=None, error=self.redactor.redact_text(f"{type(error).__name__}: {error}"))

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
            record_call(paid=await self._was_paid(call.key))
            return known

        async def execute_and_store() -> StoredAnswer:
            answer, paid = await self._execute(call, execute)
            if self._paid_since is not None:
                self._paid.add(hash(call.key))
            return await self.cache.put(call.key, answer, paid=paid)

        return await self._in_flight.start(call.key, execute_and_store).join()

    async def _was_paid(self, key: CacheKey) -> bool:
        """Whether the answer in the cache was paid since the mark from which on answers count as paid."""
        if self._paid_since is None:
            return False
        return hash(key) in self._paid or await self.cache.is_since(key, self._paid_since)

    async def _find_known(self, key: CacheKey) -> StoredAnswer | None:
        """The answer in the cache, or that of an equal call in flight."""
        if (flight := self._in_flight.find(key)) is not None:
            return await flight.join()
        known = await self.cache.get(key)
        if known is None and (flight := self._in_flight.find(key)) is not None:  # an equal call started meanwhile
            return await flight.join()
        return known

    async def _execute(self, call: _Call, execute: _Execute) -> tuple[StoredAnswer, LedgerEntry]:
        """Execute a call and count its cost. The answer is without secrets."""
        answer, spent = await execute()
        paid = call.entry(spent)
        self.ledger.count(paid)
        record_call(paid=True)
        return redact_answer(answer, self.redactor), paid

    async def _call_model(self, request: ModelRequest, site: CallSite, call: _Call) -> _Paid:
        check_options(request.options, place=f"the options of model {request.model!r}")
        request = self.limit_output(request)
        bound = bound_tokens(request)
        price = self.price(request.model)
        bound_usd = price.bound_usd(bound) if price else None
        budget = self.budget or _NO_BUDGET
        try:
            reservation = budget.reserve(tokens=bound, usd=bound_usd)
        except SetupError as error:
            raise SetupError(f"model {request.model!r}: {error}") from error
        lost = Spending.of_lost_call(tokens=bound, usd=bound_usd or 0.0)
        async with reservation:
            attempts = CallAttempts(
                call.key,
                lost=call.entry(lost),
                reservation=reservation,
                cache=self.cache,
                ledger=self.ledger,
                in_flight=self._in_flight,
                find_stop_request=self._find_stop_request,
            )
            started = time.perf_counter()
            reply, number = await self.pool.call(
                request, repeat=site.repeat, seed=self.seed, bound=bound, attempts=attempts
            )
            usage = add_cost(check_usage(reply.usage), price)
            reply = reply if usage is reply.usage else replace(reply, usage=usage)
            tokens = reply.usage.tokens if is_counted(reply.usage) else None
            reservation.settle(tokens=tokens, usd=reply.usage.cost_usd)
            spent = Spending.of_call(
                reply.usage, seconds=time.perf_counter() - started, attempts=number - attempts.lost_attempts
            )
            return reply, spent.bound_by(lost, output_tokens=bound_output_tokens(request))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a model or tool: its key in the cache, and where the ledger counts it."""

    key: CacheKey
    model: str
    node_id: str

    def entry(self, spent: Spending) -> LedgerEntry:
        return LedgerEntry(role=self.key.role, model=self.model, node_id=self.node_id, spent=spent)


def find_active_gateway() -> Gateway | None:
    """The active gateway, or None."""
    return _active.get()


def current_gateway() -> Gateway:
    """The active gateway, or a new one without budget and shared cache if none is active."""
    gateway = find_active_gateway()
    if gateway is None:
        gateway = Gateway()
        _active.set(gateway)
    return gateway
