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
from promptiter.llm.pool import ModelPool, bound_tokens, is_counted, list_output_limits
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

    def limit_as(self, limits: dict[str, int]) -> tuple[ModelRequest, int]:
        """The request with these limits, and the most tokens that one attempt of it may take."""
        if limits.items() <= self.limited.options.items():
            return self.limited, self.size + max(limits.values())
        request = self.given.with_options(**limits)
        return request, bound_tokens(request)


async def call_model(
    asked: AskedRequest,
    call: Call,
    *,
    pool: ModelPool,
    answers: Answers,
    budget: Budget | Budgets | None,
    repeat: int,
    seed: int,
    max_output_tokens: int,
    find_stop_request: Callable[[], str | None],
) -> PaidAnswer:
    """Call a model, and return its reply with what the call cost. Raises BudgetEndedError if it does not fit."""
    given = asked.given
    if given.options:
        check_options(given.options, place=f"the options of model {given.model!r}")
    limits = pool.find_output_limits(given, default=max_output_tokens)
    request, bound = asked.limit_as(limits)
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
        return reply, spent.bound_by(lost, output_tokens=max(limits.values()))


def _reserve(budget: Budget | Budgets, model: str, *, tokens: int, usd: float | None) -> Reservation:
    try:
        return budget.reserve(tokens=tokens, usd=usd)
    except SetupError as error:
        raise SetupError(f"model {model!r}: {error}") from error
