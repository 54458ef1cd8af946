"""Gateway: every model call and every declared tool call goes through it, whichever role makes it.

A call is answered from the cache if the answer is known. Otherwise it is checked against the budget, waits for the rate
limit and a free slot, and is retried if it fails for a transient reason. Its cost goes to the ledger, and its answer
to the cache before it is used.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

from promptiter.concurrency import HomeLoop
from promptiter.context import ContextValue
from promptiter.errors import BadAnswerError, SetupError, StopRequestedError, ToolFailedError
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.answers import Answers, Call, PaidAnswer
from promptiter.llm.cache.cache import Cache, CacheKey, MemoryCache
from promptiter.llm.cache.keys import ToolAnswer
from promptiter.llm.call_guard import CallGuard
from promptiter.llm.judgement import place_call
from promptiter.llm.ledger import TOOL, Ledger
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.llm.model_call import AskedRequest, call_model
from promptiter.llm.models import GivenModel, Model
from promptiter.llm.pool import CONCURRENCY, ModelPool
from promptiter.llm.prices import Price, Prices
from promptiter.llm.rate import RateLimit
from promptiter.llm.redaction import Redactor
from promptiter.llm.retries import Retries
from promptiter.llm.tools import ToolFunction, call_tool
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

_active: ContextVar[Gateway | None] = ContextVar("promptiter_gateway", default=None)


class Gateway:
    """Answers model and tool calls for one run, or for code outside of runs.

    The models belong to a `pool` that all runs share. Cache, ledger, budget and seed belong to the gateway: the engine
    makes one for each run with `for_run`. Inside a run, calls of the gateway that a judge or a stage was built with are
    answered by the gateway of the run. `others` serves all names that are not in `models`.
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
        others: Model | None = None,
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
            others=others,
        )
        self.shared_cache = cache
        """The cache of all runs, if one was given. Otherwise each run has its own."""
        self.budget = budget
        self.seed = seed
        self.max_output_tokens = max_output_tokens
        self._home = HomeLoop(outlives_callers=False)
        own = cache if cache is not None else MemoryCache()
        self._answers = Answers(own, Ledger(), redactor=self.pool.redactor)
        self._agent_model: str | None = None
        self._guard: CallGuard | None = None
        self._origin: Gateway | None = None  # the gateway that this one was derived from
        self._find_stop_request: Callable[[], str | None] = lambda: None

    def for_run(self, *, cache: Cache | None = None, seed: int | None = None) -> Gateway:
        """The gateway of one run: the same models, with a ledger, a budget and a cache of its own.

        Without a `cache`, it is the one that this gateway was given, or a new one in memory.
        """
        run = self._derive()
        shared = cache if cache is not None else self.shared_cache
        own = shared if shared is not None else MemoryCache()
        run._answers = Answers(own, Ledger(total=self.ledger), redactor=self.redactor)
        run.budget = None if self.budget is None else self.budget.for_run()
        run.seed = self.seed if seed is None else seed
        run._home = HomeLoop()
        return run

    def for_configuration(self, *, budget: Budget | Budgets | None, seed: int) -> Gateway:
        """A gateway with the same models, limits and shared cache, for runs with another budget and seed."""
        other = self._derive()
        other.budget, other.seed = budget, seed
        other._home = HomeLoop(outlives_callers=False)
        return other

    def with_seed(self, seed: int) -> Gateway:
        """The same gateway with another seed."""
        other = self._derive()
        other.seed = seed
        return other

    def counting_paid_since(self, mark: int) -> Gateway:
        """The same gateway, which counts answers in the cache as paid if they are newer than a mark of the cache."""
        other = self._derive()
        other._answers = self._answers.counting_paid_since(mark)
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

    def guarding_agent(self, guard: CallGuard) -> Gateway:
        """The same gateway, which shows each call of the agent to a guard before it is made."""
        other = self._derive()
        other._guard = guard
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
        call = gateway._ask(request, place_call(site), node_id, is_live=is_live, doublings=doublings)
        return await (call if gateway._home.is_running_here() else gateway._home.run(call))

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
    def cache(self) -> Cache:
        return self._answers.cache

    @property
    def ledger(self) -> Ledger:
        """What was spent through this gateway, including its runs."""
        return self._answers.ledger

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

    async def wait_until_free(self, timeout_s: float) -> bool:
        """Wait until the event loop on which calls are made is not blocked. False if it is for this many seconds."""
        return await self.find_active()._home.wait_until_free(timeout_s)

    def active(self) -> ContextValue[Gateway]:
        """Make this the gateway of the code in this block, including its tasks and threads."""
        return ContextValue(_active, self)

    def _derive(self) -> Gateway:
        other = copy.copy(self)
        other._origin = self
        return other

    async def _ask(
        self, request: ModelRequest, site: CallSite, node_id: str, *, is_live: bool, doublings: int
    ) -> ModelReply:
        if self._agent_model is not None and site.role == "agent":
            request = replace(request, model=self._agent_model)
        if self._guard is not None and site.role == "agent":
            request = self._guard.revise_request(request, site, node_id)
        if doublings:
            request = self.limit_output(request, doublings=doublings)
        asked = AskedRequest.of(request, max_output_tokens=self.max_output_tokens)
        call = Call(CacheKey.of(site, asked.digest, seed=self.seed), request.model, node_id)

        def make() -> Awaitable[PaidAnswer]:
            return call_model(
                asked,
                call,
                pool=self.pool,
                answers=self._answers,
                budget=self.budget,
                repeat=site.repeat,
                seed=self.seed,
                find_stop_request=self._find_stop_request,
            )

        reply = await self._answers.answer(call, make, is_live=is_live)
        if not isinstance(reply, ModelReply):
            raise BadAnswerError(f"the cache holds a tool's answer under the key of a model call of node {node_id!r}")
        return reply

    async def _call_tool(
        self, name: str, arguments: Json, function: ToolFunction, site: CallSite, node_id: str, *, is_live: bool
    ) -> Json:
        if self._guard is not None and site.role == "agent":
            self._guard.check_tool_call(name, site, node_id)
        key = CacheKey.of(site, digest(["tool", name, arguments]), seed=self.seed)
        call = Call(key, f"{TOOL}{name}", node_id)
        make = partial(call_tool, function, arguments, call, answers=self._answers, redactor=self.redactor)
        answer = await self._answers.answer(call, make, is_live=is_live)
        if not isinstance(answer, ToolAnswer):
            raise BadAnswerError(f"the cache holds a model's answer under the key of a call of tool {name!r}")
        if answer.error is not None:
            raise ToolFailedError(name, answer.error)
        return answer.value


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
