"""Reservations: what a call may cost is set aside in each of its budgets before the call is made.

Runs that share a budget may be in the event loops of several threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType

from promptiter.concurrency import settle_future
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.llm.amount import ZERO, Amount, Caps
from promptiter.llm.ledger import PARTS, in_parts

figures_lock = threading.RLock()
"""Held while the figures of budgets change. One lock for all, because a call may reserve in several of them."""

CAPS = ("max_calls", "max_tokens", "max_usd")


class BudgetFigures:
    """The figures of one budget: its caps, what is spent, reserved and held back, and who waits."""

    def __init__(self, caps: Caps, *, allow_unknown_price: bool) -> None:
        self.caps = (caps.max_calls, caps.max_tokens, None if caps.max_usd is None else in_parts(caps.max_usd))
        self.needs_prices = caps.max_usd is not None and not allow_unknown_price
        self.settled = ZERO
        self.reserved = ZERO
        self.held = ZERO
        self.largest_call = ZERO
        self.over_bound_calls = 0
        self.unpriced_calls = 0
        self.has_ended = False
        self.waiters: OrderedDict[Reservation, None] = OrderedDict()
        self.largest_wait = ZERO  # an upper bound of what any waiter needs

    def fits(self, amount: Amount) -> bool:
        return not self.has_ended and self._is_within_caps(self.settled + self.reserved + self.held + amount)

    def find_problem(self, amount: Amount) -> BudgetEndedError | None:
        """The error if an amount can never fit below a cap, whatever calls in flight return."""
        if end := self.find_end():
            return end
        if self._is_within_caps(self.settled + self.held + amount):
            return None
        for name, cap, spent, held, wanted in zip(CAPS, self.caps, self.settled, self.held, amount, strict=True):
            if cap is not None and spent + held + wanted > cap:
                reason = _explain_end(name, cap, spent=spent, held=held, wanted=wanted, tokens=amount.tokens)
                is_large = name != "max_calls" and wanted > cap / 2
                lower = ", or lower max_tokens in the options of the node or model that is called" if is_large else ""
                message = f"the budget has ended: {reason}"
                return BudgetEndedError(message, cap=name, advice=f"raise {name} to continue{lower}")
        return None

    def find_end(self) -> BudgetEndedError | None:
        """The error if a call cost more than it had reserved, and a cap is exceeded by that."""
        if not self.has_ended:
            return None
        broken = "the budget has ended: a call cost more than it had reserved, so the cap can no longer be kept"
        advice = "raise the cap, and max_tokens in the options of the node or model whose answers are longer than that"
        return BudgetEndedError(broken, cap="bound", advice=advice)

    def settle(self, bound: Amount, actual: Amount) -> None:
        self.reserved -= bound
        self.settled += actual
        if not actual.is_within(bound):
            self.over_bound_calls += 1
            self.has_ended = self.has_ended or not self._is_within_caps(self.settled + self.reserved)

    def _is_within_caps(self, amount: Amount) -> bool:
        max_calls, max_tokens, max_usd_parts = self.caps
        return (
            (max_calls is None or amount.calls <= max_calls)
            and (max_tokens is None or amount.tokens <= max_tokens)
            and (max_usd_parts is None or amount.usd_parts <= max_usd_parts)
        )


def _explain_end(name: str, cap: int, *, spent: int, held: int, wanted: int, tokens: int) -> str:
    """Why an amount does not fit below a cap: `62 of 100 calls (max_calls) are spent, and 38 are reserved for ...`."""
    texts = [f"${figure / PARTS:g}" if name == "max_usd" else f"{figure:,}" for figure in (wanted, spent, cap, held)]
    verb, unit = ("is", "") if name == "max_usd" else ("are", f" {name.removeprefix('max_')}")
    most = f" ({tokens:,} tokens with the longest answer)" if name == "max_usd" and tokens else ""
    next_call = "" if name == "max_calls" else f"the next call may take {texts[0]}{unit}{most}, but "
    reserved = f", and {texts[3]} {verb} reserved for the final test" if held else ""
    return f"{next_call}{texts[1]} of {texts[2]}{unit} ({name}) {verb} spent{reserved}"


class Reservation:
    """What is reserved for one call. If the block ends without `settle`, all of it is returned.

    `renew` reserves it again for another attempt, if the last one was settled because it may have been billed. Without
    budgets nothing is counted.
    """

    def __init__(self, budgets: tuple[BudgetFigures, ...], *, tokens: int, usd: float | None) -> None:
        if budgets and usd is None and any(budget.needs_prices for budget in budgets):
            raise SetupError(
                "max_usd is set, but the price of this call is unknown: give the model a price (`price` under "
                "`models` in promptiter.yaml, prices= of the Gateway), or set budget.allow_unknown_price to make calls "
                "that the cap does not cover"
            )
        self.budgets = budgets
        self.bound = Amount(1, tokens, in_parts(usd or 0.0)) if budgets else ZERO
        self._is_priced = usd is not None
        self._granted: asyncio.Future[None] | None = None
        self.is_open = False

    async def __aenter__(self) -> Reservation:
        if not self.budgets:
            self.is_open = True
            return self
        with figures_lock:
            if problem := self.find_problem():
                raise problem
            if self.is_next_and_fits():
                self._take()
                return self
            granted = self._enqueue()
        await self._wait(granted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            self._give_back()

    async def renew(self) -> None:
        """Reserve the same again if it was settled, for another attempt. Waits or raises as for the first one."""
        if not self.is_open:
            await self.__aenter__()

    def check(self) -> None:
        """Raise BudgetEndedError if a budget has ended since this was reserved."""
        for budget in self.budgets:
            if problem := budget.find_end():
                raise problem

    def settle(self, *, tokens: int | None, usd: float | None = None) -> None:
        """Replace the bound by what the call used. An unknown figure (None) is settled at its bound."""
        if not self.is_open:
            raise RuntimeError("a reservation is settled once, inside its `async with`")
        self.is_open = False
        if not self.budgets:
            return
        actual = Amount(
            1,
            self.bound.tokens if tokens is None else tokens,
            self.bound.usd_parts if usd is None else in_parts(usd),
        )
        with figures_lock:
            for budget in self.budgets:
                budget.settle(self.bound, actual)
                budget.unpriced_calls += not self._is_priced and not usd
            serve(self.budgets)

    def find_problem(self) -> BudgetEndedError | None:
        for budget in self.budgets:
            if problem := budget.find_problem(self.bound):
                return problem
        return None

    def is_next_and_fits(self) -> bool:
        for budget in self.budgets:
            if next(iter(budget.waiters), self) is not self or not budget.fits(self.bound):
                return False
        return True

    def grant(self) -> None:
        """Let the call that waits proceed."""
        self._take()
        self._resolve(None)

    def refuse(self, problem: BudgetEndedError) -> None:
        """Let the call that waits fail."""
        self._leave()
        self._resolve(problem)

    def _enqueue(self) -> asyncio.Future[None]:
        self._granted = asyncio.get_running_loop().create_future()
        for budget in self.budgets:
            budget.waiters[self] = None
            budget.largest_wait = budget.largest_wait.or_more(self.bound)
        return self._granted

    async def _wait(self, granted: asyncio.Future[None]) -> None:
        try:
            await granted
        except asyncio.CancelledError:
            with figures_lock:
                if self.is_open:  # it was granted just before the cancellation
                    self._give_back()
                else:
                    self._leave()
                    serve(self.budgets)
            raise

    def _take(self) -> None:
        self._leave()
        self.is_open = True
        for budget in self.budgets:
            budget.reserved += self.bound
            budget.largest_call = budget.largest_call.or_more(self.bound)

    def _give_back(self) -> None:
        self.is_open = False
        with figures_lock:
            for budget in self.budgets:
                budget.reserved -= self.bound
            serve(self.budgets)

    def _resolve(self, problem: BudgetEndedError | None) -> None:
        if self._granted is not None:
            settle_future(self._granted, problem)

    def _leave(self) -> None:
        for budget in self.budgets:
            budget.waiters.pop(self, None)


def serve(budgets: Iterable[BudgetFigures]) -> None:
    """After a change, refuse the waiters that can never be served, then serve the others in order.

    All queues are in order of arrival, so the first of all waiters is first in each of its queues.
    """
    changed = OrderedDict.fromkeys(budget for budget in budgets if budget.waiters)
    while changed:
        budget, _ = changed.popitem(last=False)
        if budget.find_problem(budget.largest_wait):
            for waiter in _refuse_hopeless(budget):
                changed.update(dict.fromkeys(waiter.budgets))
        first = next(iter(budget.waiters), None)
        if first is not None and first.is_next_and_fits():
            first.grant()
            changed.update(dict.fromkeys(first.budgets))


def _refuse_hopeless(budget: BudgetFigures) -> list[Reservation]:
    """Refuse the waiters of a budget that can never be served, and return them."""
    refused = []
    budget.largest_wait = ZERO
    for waiter in list(budget.waiters):
        if problem := waiter.find_problem():
            waiter.refuse(problem)
            refused.append(waiter)
        else:
            budget.largest_wait = budget.largest_wait.or_more(waiter.bound)
    return refused
