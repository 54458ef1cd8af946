"""Budgets: a call is made only if the most it can cost still fits below every cap.

    async with budget.reserve(tokens=bound, usd=bound_usd) as reservation:
        reply = await call()
        reservation.settle(tokens=reply.usage.tokens, usd=reply.usage.cost_usd)

A call that does not fit waits, first come first served, until calls in flight return what they did not use. If even
all of that would not be enough, BudgetEndedError is raised at once. A call that may have been billed without an answer
is settled at its bound. So as long as no call costs more than it reserved, no cap is ever exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import chain

from promptiter.errors import SetupError
from promptiter.llm.amount import ZERO, Amount, Caps
from promptiter.llm.ledger import NOTHING, PARTS, Spending
from promptiter.llm.reservation import CAPS, BudgetFigures, Reservation, figures_lock, serve
from promptiter.numbers import is_number


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
        for name, cap in zip(CAPS, (max_calls, max_tokens, max_usd), strict=True):
            if cap is not None and not is_number(cap, least=0):
                raise SetupError(f"{name} is {cap!r}; give a finite number that is not negative, or None for no cap")
        self.caps = Caps(max_calls=max_calls, max_tokens=max_tokens, max_usd=max_usd)
        self.is_shared = shared
        self.figures = BudgetFigures(self.caps, allow_unknown_price=allow_unknown_price)
        self._allows_unknown_price = allow_unknown_price
        self._holds: dict[object, Amount] = {}
        self._charged: set[str] = set()

    def for_run(self) -> Budget | Budgets:
        """The budget of one run: a new one with the same caps, or this one if it is shared by all runs."""
        return Budgets(self).for_run() if self.is_shared else self.renew()

    def renew(self) -> Budget:
        """A new budget with the same caps."""
        caps = self.caps
        return Budget(
            max_calls=caps.max_calls,
            max_tokens=caps.max_tokens,
            max_usd=caps.max_usd,
            allow_unknown_price=self._allows_unknown_price,
        )

    def reserve(self, *, tokens: int, usd: float | None = None) -> Reservation:
        """A reservation for one call that costs at most this much, for use with `async with`."""
        return Reservation((self.figures,), tokens=tokens, usd=usd)

    def hold(self, expected: Spending, *, share: float, spent: Spending = NOTHING, holder: object = None) -> None:
        """Hold back what a later part of the run is expected to spend, but at most this share of what is left.

        What was already `spent` counts as left, so a resumed run holds back the same amount as before. Each `holder`,
        such as a run, holds back an amount of its own.
        """
        figures = self.figures
        with figures_lock:
            self._holds.pop(holder, None)
            taken = sum(self._holds.values(), figures.settled + figures.reserved)
            rows = zip(figures.caps, Amount.of(expected), taken, Amount.of(spent), strict=True)
            held = [
                0 if cap is None else max(0, min(wanted, int(share * (cap - used + again)), cap - used))
                for cap, wanted, used, again in rows
            ]
            self._set_hold(holder, Amount(*held))

    def release(self, *, holder: object = None) -> None:
        """Make available what a holder held back."""
        with figures_lock:
            self._set_hold(holder, ZERO)

    def charge(self, spent: Spending, *, of: str) -> None:
        """Count what a run spent before this process started; only once for each run, named by `of`.

        Lost calls count too, at the most that they may have cost.
        """
        with figures_lock:
            if of in self._charged:
                return
            self._charged.add(of)
            self.figures.settled += Amount.of(spent)
            self.figures.unpriced_calls += spent.unpriced_calls
            serve((self.figures,))

    @property
    def largest_call(self) -> Spending:
        """The most that was reserved for one call so far."""
        return self.figures.largest_call.as_spending()

    @property
    def needs_prices(self) -> bool:
        """Whether calls of models with unknown prices are refused."""
        return self.figures.needs_prices

    @property
    def state(self) -> BudgetState:
        figures = self.figures
        return BudgetState(
            calls=figures.settled.calls,
            tokens=figures.settled.tokens,
            cost_usd=figures.settled.usd_parts / PARTS,
            calls_in_flight=figures.reserved.calls,
            over_bound_calls=figures.over_bound_calls,
            unpriced_calls=figures.unpriced_calls,
            has_ended=figures.has_ended,
            held=figures.held.as_spending(),
        )

    def _set_hold(self, holder: object, amount: Amount) -> None:
        self._holds.pop(holder, None)
        if amount != ZERO:
            self._holds[holder] = amount
        self.figures.held = sum(self._holds.values(), ZERO)
        serve((self.figures,))


class Budgets:
    """Several budgets at once, such as those of a run and of all runs: a call must fit into all of them."""

    def __init__(self, *budgets: Budget | Budgets) -> None:
        alone = (each._budgets if isinstance(each, Budgets) else (each,) for each in budgets)
        self._budgets: tuple[Budget, ...] = tuple(dict.fromkeys(chain.from_iterable(alone)))
        self._figures = tuple(budget.figures for budget in self._budgets)

    def for_run(self) -> Budgets:
        """The budgets of one run: shared ones as they are, new ones in place of the others."""
        return Budgets(*(budget if budget.is_shared else budget.renew() for budget in self._budgets))

    @property
    def needs_prices(self) -> bool:
        return any(budget.needs_prices for budget in self._budgets)

    @property
    def largest_call(self) -> Spending:
        return reduce(Amount.or_more, (figures.largest_call for figures in self._figures), ZERO).as_spending()

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
        return Reservation(self._figures, tokens=tokens, usd=usd)
