"""One call of a model that the cache could not answer, within the budget, with all its attempts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from promptiter.errors import SetupError
from promptiter.llm.attempts import CallAttempts
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.answers import Answers, Call, PaidAnswer
from promptiter.llm.ledger import Spending
from promptiter.llm.messages import ModelRequest
from promptiter.llm.options import check_options
from promptiter.llm.pool import ModelPool, bound_output_tokens, bound_tokens, is_counted, list_output_limits
from promptiter.llm.prices import add_cost, check_usage
from promptiter.llm.reservation import Reservation

_NO_BUDGET = Budgets()


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request as it was given, and with the default limit of its answer, which has the digest and the size in bytes.

    So the digest does not depend on what is known of the model.
    """

    given: ModelRequest
    limited: ModelRequest
    digest: str
    size: int

    @classmethod
    def of(cls, request: ModelRequest, *, max_output_tokens: int) -> AskedRequest:
        limited = request if list_output_limits(request) else request.with_options(max_tokens=max_output_tokens)
        return cls(request, limited, *limited.measure())

    def limit_for(self, pool: ModelPool) -> tuple[ModelRequest, int]:
        """The request with its own limit, or the one that its model needs, and that limit."""
        if self.given is self.limited:
            return self.given, bound_output_tokens(self.given)
        default = self.limited.options["max_tokens"]
        limit = pool.catalog.limit_output(self.given, default=default)
        request = self.limited if limit == default else self.given.with_options(max_tokens=limit)
        return request, bound_output_tokens(request)


async def call_model(
    asked: AskedRequest,
    call: Call,
    *,
    pool: ModelPool,
    answers: Answers,
    budget: Budget | Budgets | None,
    repeat: int,
    seed: int,
    find_stop_request: Callable[[], str | None],
) -> PaidAnswer:
    """Call a model, and return its reply with what the call cost. Raises BudgetEndedError if it does not fit."""
    given = asked.given
    if given.options:
        check_options(given.options, place=f"the options of model {given.model!r}", allows_choices=True)
    request, limit = asked.limit_for(pool)
    bound = asked.size + limit if request is asked.limited else bound_tokens(request)
    price = pool.catalog.price(request.model)
    bound_usd = price.bound_usd(bound) if price else None
    reservation = _reserve(budget or _NO_BUDGET, request.model, tokens=bound, usd=bound_usd)
    lost = Spending.of_lost_call(tokens=bound, usd=bound_usd or 0.0)
    async with reservation:
        attempts = CallAttempts(
            call.key,
            lost=call.entry(lost),
            reservation=reservation,
            answers=answers,
            find_stop_request=find_stop_request,
        )
        started = time.perf_counter()
        reply, number = await pool.call(request, repeat=repeat, seed=seed, bound=bound, attempts=attempts)
        seconds = time.perf_counter() - started
        usage = add_cost(check_usage(reply.usage), price)
        reservation.settle(tokens=usage.tokens if is_counted(usage) else None, usd=usage.cost_usd)
        spent = Spending.of_call(usage, seconds=seconds, attempts=number - attempts.lost_attempts)
        reply = reply if usage is reply.usage else replace(reply, usage=usage)
        return reply, spent.bound_by(lost, output_tokens=limit)


def _reserve(budget: Budget | Budgets, model: str, *, tokens: int, usd: float | None) -> Reservation:
    try:
        return budget.reserve(tokens=tokens, usd=usd)
    except SetupError as error:
        raise SetupError(f"model {model!r}: {error}") from error
