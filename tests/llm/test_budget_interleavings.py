"""Calls, holds, releases and charges in any order: caps are kept, and no call waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptiter.errors import BudgetEndedError
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.ledger import Spending

Figures: TypeAlias = tuple[float, float, float]
"""Calls, tokens and hundredths of a dollar."""


def plus(*amounts: Figures) -> Figures:
    calls, tokens, cents = (round(sum(each), 6) for each in zip(*amounts, strict=True))
    return calls, tokens, cents


def spending(amount: Figures) -> Spending:
    return Spending(calls=int(amount[0]), input_tokens=int(amount[1]), cost_usd=amount[2] / 100)


@dataclass(frozen=True)
class Action:
    """One thing that happens. `which` picks a call or a budget; with `others_run`, all tasks run before the next."""

    kind: Literal["call", "settle", "fail", "cancel", "hold", "release", "charge"]
    which: int
    amount: Figures
    share: float
    others_run: bool


@dataclass(eq=False)
class Call:
    budgets: tuple[Budget, ...]
    bound: Figures
    actual: Figures | None = None
    is_open: bool = False
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.task is not None and not self.task.done() and not self.is_open

    async def make(self) -> None:
        scope = Budgets(*self.budgets) if len(self.budgets) > 1 else self.budgets[0]
        try:
            async with scope.reserve(tokens=int(self.bound[1]), usd=self.bound[2] / 100) as reservation:
                self.is_open = True
                await self.go_on.wait()
                if self.actual is not None:
                    reservation.settle(tokens=int(self.actual[1]), usd=self.actual[2] / 100)
        finally:
            self.is_open = False


class World:
    """Two budgets and the calls on them, beside an account of its own."""

    def __init__(self, caps: Iterable[Figures]) -> None:
        self.caps = list(caps)
        self.budgets = [Budget(max_calls=int(c), max_tokens=int(t), max_usd=u / 100) for c, t, u in self.caps]
        self.scopes = [(self.budgets[0],), (self.budgets[1],), tuple(self.budgets), tuple(reversed(self.budgets))]
        self.calls: list[Call] = []
        self.charged: list[Figures] = [(0, 0, 0), (0, 0, 0)]
        self.has_charged = False
        self.excess: list[Figures] = [(0, 0, 0), (0, 0, 0)]

    async def act(self, number: int, action: Action) -> None:
        budget = self.budgets[action.which % 2]
        match action.kind:
            case "call":
                call = Call(self.scopes[action.which % 4], (1, *action.amount[1:]))
                self.calls.append(call)
                call.task = asyncio.create_task(call.make())
            case "settle" | "fail":
                if open_calls := [each for each in self.calls if each.is_open and not each.go_on.is_set()]:
                    call = open_calls[action.which % len(open_calls)]
                    if action.kind == "settle":
                        call.actual = (1, int(action.share * call.bound[1]), int(action.share * call.bound[2]))
                    call.go_on.set()
            case "cancel":
                if going_on := [each for each in self.calls if each.task and not each.task.done()]:
                    chosen = going_on[action.which % len(going_on)]
                    assert chosen.task is not None
                    chosen.task.cancel()
            case "hold":
                budget.hold(spending(action.amount), share=action.share)
            case "release":
                budget.release()
            case "charge":
                calls, tokens, cents = action.amount
                few = (calls // 4, tokens // 4, cents // 4)
                budget.charge(spending(few), of=str(number))
                self.has_charged = True
                self.charged[action.which % 2] = plus(self.charged[action.which % 2], few)
        if action.others_run:
            await self.turns()
            self.check()

    async def turns(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def of(self, budget: Budget, *, is_open: bool) -> Figures:
        """What calls that are over have used, or what open ones may use."""
        on_it = [each for each in self.calls if budget in each.budgets]
        if is_open:
            return plus((0, 0, 0), *(each.bound for each in on_it if each.is_open))
        over = [each for each in on_it if each.task and each.task.done() and not each.task.cancelled()]
        return plus((0, 0, 0), *(each.actual for each in over if each.actual and each.task and not has_failed(each)))

    def check(self) -> None:
        taken: dict[Budget, tuple[Figures, Figures, Figures]] = {}
        for place, budget in enumerate(self.budgets):
            state = budget.state
            settled = plus(self.of(budget, is_open=False), self.charged[place])
            reserved = self.of(budget, is_open=True)
            held = (state.held.calls, state.held.tokens, round((state.held.cost_usd or 0.0) * 100, 6))
            assert (state.calls, state.tokens, round(state.cost_usd * 100)) == settled
            assert state.calls_in_flight == reserved[0]
            total = plus(settled, reserved, held)
            over = tuple(max(0, figure - cap) for figure, cap in zip(total, self.caps[place], strict=True))
            if not self.has_charged:
                assert all(now <= before for now, before in zip(over, self.excess[place], strict=True))
            self.excess[place] = over[0], over[1], over[2]
            taken[budget] = settled, reserved, held
        self.has_charged = False
        queues: dict[Budget, Call] = {}
        for call in (each for each in self.calls if each.is_waiting):
            first = {queues.setdefault(budget, call) for budget in call.budgets}
            fits = [self.fits(budget, plus(*taken[budget], call.bound)) for budget in call.budgets]
            has_hope = [self.fits(b, plus(taken[b][0], taken[b][2], call.bound)) for b in call.budgets]
            assert all(has_hope), "a call waits that will never fit"
            assert first != {call} or not all(fits), "a call waits that could be made"

    def fits(self, budget: Budget, amount: Figures) -> bool:
        cap = self.caps[self.budgets.index(budget)]
        return all(figure <= most for figure, most in zip(amount, cap, strict=True))

    async def end(self) -> None:
        """All calls in flight fail; then no call may still wait."""
        while any(each.is_open for each in self.calls):
            for call in self.calls:
                if call.is_open:
                    call.go_on.set()
            await self.turns()
            self.check()
        assert all(each.task is not None and each.task.done() for each in self.calls)
        assert {type(each.task.exception()) for each in self.calls if each.task and not each.task.cancelled()} <= {
            type(None),
            BudgetEndedError,
        }


def has_failed(call: Call) -> bool:
    return call.task is not None and call.task.exception() is not None


figures = st.sampled_from([0, 10, 20, 30, 40, 50, 60])  # few, so that sums meet the caps
amounts = st.tuples(st.integers(0, 4), figures, figures)
kinds = st.sampled_from(["call"] * 6 + ["settle", "settle", "fail", "cancel", "hold", "hold", "release", "charge"])
shares = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
actions = st.builds(Action, kinds, st.integers(0, 7), amounts, shares, st.sampled_from([True, True, False]))
most = st.sampled_from([60, 100, 150])
caps = st.tuples(st.integers(2, 9), most, most)

HOLD_BEHIND_ANOTHER = [
    Action("call", 1, (1, 50, 0), 0.0, True),
    Action("call", 2, (1, 50, 0), 0.0, True),
    Action("hold", 0, (0, 60, 0), 0.75, True),
    Action("fail", 0, (0, 0, 0), 0.0, True),
]
HOLD_BESIDE_A_CALL = [
    Action("call", 0, (1, 40, 0), 0.0, True),
    Action("hold", 0, (0, 50, 0), 0.5, True),
    Action("call", 0, (1, 40, 0), 0.0, True),
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.tuples(caps, caps), st.lists(actions, min_size=12, max_size=40))
@example(((9, 100, 99), (9, 50, 99)), HOLD_BEHIND_ANOTHER)
@example(((9, 100, 99), (9, 50, 99)), HOLD_BESIDE_A_CALL)
def test_any_interleaving_keeps_the_caps_and_leaves_no_call_waiting(
    both: tuple[Figures, Figures], script: list[Action]
) -> None:
    async def run() -> None:
        world = World(both)
        for number, action in enumerate(script):
            await world.act(number, action)
        await world.turns()
        world.check()
        await asyncio.wait_for(world.end(), 10)

    asyncio.run(run())
