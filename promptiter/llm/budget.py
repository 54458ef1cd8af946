"""Budgets: a call is made only if the most it can cost still fits below every cap.

    async with budget.reserve(tokens=bound, usd=bound_usd) as reservation:
        reply = await call()
        reservation.settle(tokens=reply.usage.tokens, usd=reply.usage.cost_usd)

A call that does not fit waits, first come first served, until calls in flight return what they did not use. If even
all of that would not be enough, BudgetEndedError is raised at once. As long as no call costs more than it reserved, no
cap is ever exceeded.

Runs that share a budget may be in the event loops of several threads.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from types import TracebackType

from promptiter.concurrency import settle_future
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.llm.amount import ZERO, Amount, Caps
from promptiter.llm.ledger import NOTHING, PARTS, Spending, in_parts

_changing = threading.RLock()
"""Held while budgets change. One lock for all, because a call may reserve in several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A budget at one moment.

    `over_bound_calls` cost more than they had reserved. `unpriced_calls` are not covered by `max_usd`. `held` is
    reserved for the final test.
    """

    calls: int
    tokens: int
    cost_usd: float
    calls_in_flight: int
    over_bound_calls: int
    unpriced_calls: int
    has_ended: bool
    held: Spending = NOTHING


class Budget:
    """Caps on calls, tokens and dollars of a run; None means no cap. With `shared`, of all runs of a gateway together.

    A call that costs more than it reserved is counted at its real cost. If that exceeds a cap, together with what calls
    in flight have reserved, the budget ends for good. With `allow_unknown_price`, calls of models without a price are
    made too and counted as not covered by `max_usd`.
    """

    def __init__(
        self,
        *,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        max_usd: float | None = None,
        allow_unknown_price: bool = False,
        shared: bool = False,
    ) -> None:
        for name, cap in zip(_CAPS, (max_calls, max_tokens, max_usd), strict=True):
            if cap is not None and not 0 <= cap < math.inf:
                raise SetupError(f"{name} is {cap!r}; give a finite number that is not negative, or None for no cap")
        self.caps = Caps(max_calls=max_calls, max_tokens=max_tokens, max_usd=max_usd)
        self._caps = (max_calls, max_tokens, None if max_usd is None else in_parts(max_usd))
        self.is_shared = shared
        self._allows_unknown_price = allow_unknown_price
        self._settled = ZERO
        self._reserved = ZERO
        self._held = ZERO
        self._holds: dict[object, Amount] = {}
        self._largest_call = ZERO
        self._over_bound_calls = 0
        self._unpriced_calls = 0
        self._has_ended = False
        self._charged: set[str] = set()
        self._waiters: OrderedDict[Reservation, None] = OrderedDict()
        self._largest_wait = ZERO  # an upper bound of what any waiter needs

    def for_run(self) -> Budget | Budgets:
        """The budget of one run: a new one with the same caps, or this one if it is shared by all runs."""
        return Budgets(self).for_run() if self.is_shared else self._renew()

    def reserve(self, *, tokens: int, usd: float | None = None) -> Reservation:
        """A reservation for one call that costs at most this much, for use with `async with`."""
        return Reservation((self,), tokens=tokens, usd=usd)

    def hold(self, expected: Spending, *, share: float, spent: Spending = NOTHING, holder: object = None) -> None:
        """Hold back what a later part of the run is expected to spend, but at most this share of what is left.

        What was already `spent` counts as left, so a resumed run holds back the same amount as before. Each `holder`,
        such as a run, holds back an amount of its own.
        """
        with _changing:
            self._holds.pop(holder, None)
            taken = sum(self._holds.values(), self._settled + self._reserved)
            figures = zip(self._caps, Amount.of(expected), taken, Amount.of(spent), strict=True)
            held = [
                0 if cap is None else max(0, min(wanted, int(share * (cap - used + again)), cap - used))
                for cap, wanted, used, again in figures
            ]
            self._set_hold(holder, Amount(*held))

    def release(self, *, holder: object = None) -> None:
        """Make available what a holder held back."""
        with _changing:
            self._set_hold(holder, ZERO)

    def charge(self, spent: Spending, *, of: str) -> None:
        """Count what a run spent before this process started; only once for each run, named by `of`.

        Lost calls do not count, because their cost is unknown.
        """
        with _changing:
            if of in self._charged:
                return
            self._charged.add(of)
            self._settled += Amount.of(spent)
            self._unpriced_calls += spent.unpriced_calls
            _serve((self,))

    @property
    def largest_call(self) -> Spending:
        """The most that was reserved for one call so far."""
        return self._largest_call.as_spending()

    @property
    def needs_prices(self) -> bool:
        """Whether calls of models with unknown prices are refused."""
        return self._caps[2] is not None and not self._allows_unknown_price

    @property
    def state(self) -> BudgetState:
        return BudgetState(
            calls=self._settled.calls,
            tokens=self._settled.tokens,
            cost_usd=self._settled.usd_parts / PARTS,
            calls_in_flight=self._reserved.calls,
            over_bound_calls=self._over_bound_calls,
            unpriced_calls=self._unpriced_calls,
            has_ended=self._has_ended,
            held=self._held.as_spending(),
        )

    def _set_hold(self, holder: object, amount: Amount) -> None:
        self._holds[holder] = amount
        self._held = sum(self._holds.values(), ZERO)
        _serve((self,))

    def _renew(self) -> Budget:
        caps = self.caps
        return Budget(
            max_calls=caps.max_calls,
            max_tokens=caps.max_tokens,
            max_usd=caps.max_usd,
            allow_unknown_price=self._allows_unknown_price,
        )

    def _fits(self, amount: Amount) -> bool:
        return not self._has_ended and self._is_within_caps(self._settled + self._reserved + self._held + amount)

    def _find_problem(self, amount: Amount) -> BudgetEndedError | None:
        """The error if an amount can never fit below a cap, whatever calls in flight return."""
        if self._has_ended:
            broken = "the budget has ended: a call cost more than it had reserved, so the cap can no longer be kept"
            return BudgetEndedError(broken, cap="bound", advice="raise the bounds of calls")
        for name, cap, spent, held, wanted in zip(_CAPS, self._caps, self._settled, self._held, amount, strict=True):
            if cap is not None and spent + held + wanted > cap:
                texts = [
                    f"${figure / PARTS:g}" if name == "max_usd" else f"{figure:,}"
                    for figure in (wanted, spent, cap, held)
                ]
                spent_so_far = f"{texts[1]} of {name} {texts[2]} is spent"
                spent_so_far += f" and {texts[3]} held back for the final test" if held else ""
                message = f"the budget has ended: {texts[0]} more would not fit: {spent_so_far}"
                return BudgetEndedError(message, cap=name, advice=f"raise {name} to continue")
        return None

    def _is_within_caps(self, amount: Amount) -> bool:
        return all(cap is None or figure <= cap for cap, figure in zip(self._caps, amount, strict=True))

    def _settle(self, bound: Amount, actual: Amount) -> None:
        self._reserved -= bound
        self._settled += actual
        if not actual.is_within(bound):
            self._over_bound_calls += 1
            self._has_ended = self._has_ended or not self._is_within_caps(self._settled + self._reserved)


class Budgets:
    """Several budgets at once, such as those of a run and of one of its stages: a call must fit into all of them."""

    def __init__(self, *budgets: Budget) -> None:
        self._budgets = tuple(dict.fromkeys(budgets))

    def for_run(self) -> Budgets:
        """The budgets of one run: shared ones as they are, new ones in place of the others."""
        return Budgets(*(budget if budget.is_shared else budget._renew() for budget in self._budgets))

    @property
    def needs_prices(self) -> bool:
        return any(budget.needs_prices for budget in self._budgets)

    @property
    def largest_call(self) -> Spending:
        return reduce(Amount.or_more, (budget._largest_call for budget in self._budgets), ZERO).as_spending()

    @property
    def caps(self) -> Caps:
        """The lowest cap of each kind."""
        return Caps.lowest([budget.caps for budget in self._budgets])

    def charge(self, spent: Spending, *, of: str) -> None:
        for budget in self._budgets:
            budget.charge(spent, of=of)

    def hold(self, expected: Spending, *, share: float, spent: Spending = NOTHING) -> None:
        for budget in self._budgets:
            budget.hold(expected, share=share, spent=spent, holder=self)

    def release(self) -> None:
        for budget in self._budgets:
            budget.release(holder=self)

    def reserve(self, *, tokens: int, usd: float | None = None) -> Reservation:
        """A reservation in all budgets for one call that costs at most this much."""
        return Reservation(self._budgets, tokens=tokens, usd=usd)


class Reservation:
    """What is reserved for one call. If the block ends without `settle`, all of it is returned."""

    def __init__(self, budgets: tuple[Budget, ...], *, tokens: int, usd: float | None) -> None:
        if usd is None and any(budget.needs_prices for budget in budgets):
            raise SetupError(
                "max_usd is set, but the price of this call is unknown: give the model a price, or allow "
                "unknown prices to make calls that the cap does not cover"
            )
        self._budgets = budgets
        self._is_priced = usd is not None
        self._bound = Amount(1, tokens, in_parts(usd or 0.0))
        self._granted: asyncio.Future[None] | None = None
        self._is_open = False

    async def __aenter__(self) -> Reservation:
        with _changing:
            if problem := self._find_problem():
                raise problem
            if self._is_next_and_fits():
                self._take()
                return self
            granted = self._enqueue()
        await self._wait(granted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_open:
            self._give_back()

    def settle(self, *, tokens: int | None, usd: float | None = None) -> None:
        """Replace the bound by what the call used. An unknown figure (None) is settled at its bound."""
        if not self._is_open:
            raise RuntimeError("a reservation is settled once, inside its `async with`")
        self._is_open = False
        actual = Amount(
            1,
            self._bound.tokens if tokens is None else tokens,
            self._bound.usd_parts if usd is None else in_parts(usd),
        )
        with _changing:
            for budget in self._budgets:
                budget._settle(self._bound, actual)
                budget._unpriced_calls += not self._is_priced and not usd
            _serve(self._budgets)

    def _enqueue(self) -> asyncio.Future[None]:
        self._granted = asyncio.get_running_loop().create_future()
        for budget in self._budgets:
            budget._waiters[self] = None
            budget._largest_wait = budget._largest_wait.or_more(self._bound)
        return self._granted

    async def _wait(self, granted: asyncio.Future[None]) -> None:
        try:
            await granted
        except asyncio.CancelledError:
            with _changing:
                if self._is_open:  # it was granted just before the cancellation
                    self._give_back()
                else:
                    self._leave()
                    _serve(self._budgets)
            raise

    def _find_problem(self) -> BudgetEndedError | None:
        problems = (budget._find_problem(self._bound) for budget in self._budgets)
        return next((problem for problem in problems if problem is not None), None)

    def _is_next_and_fits(self) -> bool:
        return all(next(iter(b._waiters), self) is self and b._fits(self._bound) for b in self._budgets)

    def _take(self) -> None:
        self._leave()
        self._is_open = True
        for budget in self._budgets:
            budget._reserved += self._bound
            budget._largest_call = budget._largest_call.or_more(self._bound)

    def _give_back(self) -> None:
        self._is_open = False
        with _changing:
            for budget in self._budgets:
                budget._reserved -= self._bound
            _serve(self._budgets)

    def _resolve(self, problem: BudgetEndedError | None) -> None:
        if self._granted is not None:
            settle_future(self._granted, problem)

    def _leave(self) -> None:
        for budget in self._budgets:
            budget._waiters.pop(self, None)


def _serve(budgets: Iterable[Budget]) -> None:
    """After a change, refuse the waiters that can never be served, then serve the others in order.

    All queues are in order of arrival, so the first of all waiters is first in each of its queues.
    """
    changed = OrderedDict.fromkeys(budgets)
    while changed:
        budget, _ = changed.popitem(last=False)
        if budget._find_problem(budget._largest_wait):
            for waiter in _refuse_hopeless(budget):
                changed.update(dict.fromkeys(waiter._budgets))
        first = next(iter(budget._waiters), None)
        if first is not None and first._is_next_and_fits():
            first._take()
            first._resolve(None)
            changed.update(dict.fromkeys(first._budgets))


def _refuse_hopeless(budget: Budget) -> list[Reservation]:
    """Refuse the waiters of a budget that can never be served, and return them."""
    refused = []
    budget._largest_wait = ZERO
    for waiter in list(budget._waiters):
        if problem := waiter._find_problem():
            waiter._leave()
            waiter._resolve(problem)
            refused.append(waiter)
        else:
            budget._largest_wait = budget._largest_wait.or_more(waiter._bound)
    return refused


_CAPS = ("max_calls", "max_tokens", "max_usd")
