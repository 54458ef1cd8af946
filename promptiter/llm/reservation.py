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

changing = threading.RLock()
"""Held while accounts change. One lock for all, because a call may reserve in several of them."""

CAPS = ("max_calls", "max_tokens", "max_usd")


class Account:
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
        if self.has_ended:
            broken = "the budget has ended: a call cost more than it had reserved, so the cap can no longer be kept"
            return BudgetEndedError(broken, cap="bound", advice="raise the bounds of calls")
        for name, cap, spent, held, wanted in zip(CAPS, self.caps, self.settled, self.held, amount, strict=True):
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

    def settle(self, bound: Amount, actual: Amount) -> None:
        self.reserved -= bound
        self.settled += actual
        if not actual.is_within(bound):
            self.over_bound_calls += 1
            self.has_ended = self.has_ended or not self._is_within_caps(self.settled + self.reserved)

    def _is_within_caps(self, amount: Amount) -> bool:
        return all(cap is None or figure <= cap for cap, figure in zip(self.caps, amount, strict=True))


class Reservation:
    """What is reserved for one call. If the block ends without `settle`, all of it is returned."""

    def __init__(self, accounts: tuple[Account, ...], *, tokens: int, usd: float | None) -> None:
        if usd is None and any(account.needs_prices for account in accounts):
            raise SetupError(
                "max_usd is set, but the price of this call is unknown: give the model a price, or allow "
                "unknown prices to make calls that the cap does not cover"
            )
        self.accounts = accounts
        self.bound = Amount(1, tokens, in_parts(usd or 0.0))
        self._is_priced = usd is not None
        self._granted: asyncio.Future[None] | None = None
        self._is_open = False

    async def __aenter__(self) -> Reservation:
        with changing:
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
        if self._is_open:
            self._give_back()

    def settle(self, *, tokens: int | None, usd: float | None = None) -> None:
        """Replace the bound by what the call used. An unknown figure (None) is settled at its bound."""
        if not self._is_open:
            raise RuntimeError("a reservation is settled once, inside its `async with`")
        self._is_open = False
        actual = Amount(
            1,
            self.bound.tokens if tokens is None else tokens,
            self.bound.usd_parts if usd is None else in_parts(usd),
        )
        with changing:
            for account in self.accounts:
                account.settle(self.bound, actual)
                account.unpriced_calls += not self._is_priced and not usd
            serve(self.accounts)

    def find_problem(self) -> BudgetEndedError | None:
        problems = (account.find_problem(self.bound) for account in self.accounts)
        return next((problem for problem in problems if problem is not None), None)

    def is_next_and_fits(self) -> bool:
        return all(next(iter(a.waiters), self) is self and a.fits(self.bound) for a in self.accounts)

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
        for account in self.accounts:
            account.waiters[self] = None
            account.largest_wait = account.largest_wait.or_more(self.bound)
        return self._granted

    async def _wait(self, granted: asyncio.Future[None]) -> None:
        try:
            await granted
        except asyncio.CancelledError:
            with changing:
                if self._is_open:  # it was granted just before the cancellation
                    self._give_back()
                else:
                    self._leave()
                    serve(self.accounts)
            raise

    def _take(self) -> None:
        self._leave()
        self._is_open = True
        for account in self.accounts:
            account.reserved += self.bound
            account.largest_call = account.largest_call.or_more(self.bound)

    def _give_back(self) -> None:
        self._is_open = False
        with changing:
            for account in self.accounts:
                account.reserved -= self.bound
            serve(self.accounts)

    def _resolve(self, problem: BudgetEndedError | None) -> None:
        if self._granted is not None:
            settle_future(self._granted, problem)

    def _leave(self) -> None:
        for account in self.accounts:
            account.waiters.pop(self, None)


def serve(accounts: Iterable[Account]) -> None:
    """After a change, refuse the waiters that can never be served, then serve the others in order.

    All queues are in order of arrival, so the first of all waiters is first in each of its queues.
    """
    changed = OrderedDict.fromkeys(accounts)
    while changed:
        account, _ = changed.popitem(last=False)
        if account.find_problem(account.largest_wait):
            for waiter in _refuse_hopeless(account):
                changed.update(dict.fromkeys(waiter.accounts))
        first = next(iter(account.waiters), None)
        if first is not None and first.is_next_and_fits():
            first.grant()
            changed.update(dict.fromkeys(first.accounts))


def _refuse_hopeless(account: Account) -> list[Reservation]:
    """Refuse the waiters of an account that can never be served, and return them."""
    refused = []
    account.largest_wait = ZERO
    for waiter in list(account.waiters):
        if problem := waiter.find_problem():
            waiter.refuse(problem)
            refused.append(waiter)
        else:
            account.largest_wait = account.largest_wait.or_more(waiter.bound)
    return refused
