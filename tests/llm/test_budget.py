from __future__ import annotations

import asyncio
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.errors import BudgetEndedError, SetupError
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.ledger import Spending


async def spend(budget: Budget | Budgets, *, bound: int, actual: int) -> None:
    async with budget.reserve(tokens=bound) as reservation:
        await asyncio.sleep(0)
        reservation.settle(tokens=actual)


async def hold(budget: Budget | Budgets, tokens: int, until: asyncio.Event, *, actual: int) -> None:
    async with budget.reserve(tokens=tokens) as reservation:
        await until.wait()
        reservation.settle(tokens=actual)


async def a_few_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_settled_amounts_are_counted_as_spent() -> None:
    budget = Budget(max_calls=5, max_tokens=100, max_usd=0.3)
    async with budget.reserve(tokens=60, usd=0.2) as reservation:
        assert budget.state.calls_in_flight == 1
        reservation.settle(tokens=30, usd=0.1)
    assert (budget.state.calls, budget.state.tokens, budget.state.cost_usd) == (1, 30, 0.1)
    assert budget.state.calls_in_flight == 0
    assert not budget.state.has_ended


async def test_dollars_add_up_to_the_cap_exactly() -> None:
    budget = Budget(max_usd=0.3)
    for _ in range(3):  # 0.1 + 0.1 + 0.1 > 0.3 in floats
        async with budget.reserve(tokens=1, usd=0.1) as reservation:
            reservation.settle(tokens=1, usd=0.1)
    assert budget.state.cost_usd == 0.3


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(max_calls=0), r"0 of 0 calls \(max_calls\) are spent; raise max_calls"),
        (
            Budget(max_tokens=1999),
            r"the next call may take 2,000 tokens, but 0 of 1,999 tokens \(max_tokens\) are spent",
        ),
        (
            Budget(max_usd=0.5),
            (
                r"the next call may take \$0.75 \(2,000 tokens with the longest answer\), but \$0 of \$0.5 \(max_usd\) "
                r"is spent; raise max_usd to continue, or lower max_tokens in the options of the node or model that is"
            ),
        ),
    ],
)
async def test_a_call_that_can_never_fit_ends_at_once(budget: Budget, message: str) -> None:
    with pytest.raises(BudgetEndedError, match=f"the budget has ended: {message}"):
        async with budget.reserve(tokens=2000, usd=0.75):
            pytest.fail("the call was made")
    assert budget.state.calls_in_flight == 0


async def test_a_call_waits_for_what_calls_in_flight_return() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    first = asyncio.create_task(hold(budget, 80, done, actual=10))
    await asyncio.sleep(0)
    second = asyncio.create_task(spend(budget, bound=90, actual=90))
    await a_few_turns()
    assert not second.done()
    done.set()
    await asyncio.gather(first, second)
    assert budget.state.tokens == 100


async def test_all_waiters_fail_as_soon_as_the_end_is_certain() -> None:
    budget, first_done, second_done = Budget(max_tokens=100), asyncio.Event(), asyncio.Event()
    holders = [
        asyncio.create_task(hold(budget, 50, first_done, actual=50)),
        asyncio.create_task(hold(budget, 50, second_done, actual=0)),
    ]
    await asyncio.sleep(0)
    small = asyncio.create_task(spend(budget, bound=50, actual=50))
    large = [asyncio.create_task(spend(budget, bound=51 + number, actual=1)) for number in range(3)]
    await a_few_turns()
    first_done.set()
    await a_few_turns()
    assert all(isinstance(task.exception(), BudgetEndedError) for task in large)
    assert not small.done()
    second_done.set()
    await asyncio.gather(*holders, small)
    assert budget.state.tokens == 100


async def test_the_longest_waiting_call_is_served_first_even_if_a_smaller_one_would_fit() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    order: list[str] = []

    async def reserve_as(name: str, bound: int) -> None:
        async with budget.reserve(tokens=bound) as reservation:
            order.append(name)
            reservation.settle(tokens=0)

    holder = asyncio.create_task(hold(budget, 60, done, actual=0))
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(reserve_as(name, bound)) for name, bound in (("large", 90), ("small", 1), ("tiny", 0))]
    await a_few_turns()
    assert order == []
    done.set()
    await asyncio.gather(holder, *tasks)
    assert order == ["large", "small", "tiny"]


async def stress(budget: Budget | Budgets, rng: random.Random, *, tasks: int, over: float = 0.0) -> int:
    """Many calls at once, some cancelled, some failing; how many were refused."""

    async def call(bound: int, actual: int, usd: float, fails: bool) -> None:
        async with budget.reserve(tokens=bound, usd=usd) as reservation:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if fails:
                raise OSError("the call failed")
            reservation.settle(tokens=actual, usd=usd * actual / max(bound, 1))

    started = []
    for _ in range(tasks):
        bound = rng.randrange(100)
        actual = bound + 50 if rng.random() < over else rng.randint(0, bound)
        started.append(asyncio.create_task(call(bound, actual, rng.random(), fails=rng.random() < 0.1)))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        if rng.random() < 0.2:
            rng.choice(started).cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*started, return_exceptions=True), 30)
    odd = [
        o for o in outcomes if o is not None and not isinstance(o, BudgetEndedError | OSError | asyncio.CancelledError)
    ]
    assert odd == []
    return sum(isinstance(outcome, BudgetEndedError) for outcome in outcomes)


@pytest.mark.parametrize("seed", range(8))
async def test_500_calls_at_once_never_exceed_a_cap(seed: int) -> None:
    budget = Budget(max_calls=300, max_tokens=6000, max_usd=100)
    refused = await stress(budget, random.Random(seed), tasks=500)
    assert refused > 0
    assert budget.state.calls <= 300
    assert 5800 < budget.state.tokens <= 6000 or budget.state.cost_usd > 98 or budget.state.calls == 300
    assert budget.state.cost_usd <= 100
    assert budget.state.calls_in_flight == 0
    assert budget.state.over_bound_calls == 0


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 40), st.booleans())
def test_nested_budgets_compose_and_no_call_hangs(
    seed: int, outer_tokens: int, inner_tokens: int, calls: int, both: bool
) -> None:
    outer, inner = Budget(max_tokens=outer_tokens, max_usd=20), Budget(max_tokens=inner_tokens, max_calls=calls)

    async def run() -> None:
        rng = random.Random(seed)
        scopes: list[Budget | Budgets] = [Budgets(outer, inner), Budgets(inner, outer)]
        if both:
            scopes += [outer, inner]
        await asyncio.gather(*(stress(scope, rng, tasks=15) for scope in scopes))

    asyncio.run(run())
    assert outer.state.tokens <= outer_tokens
    assert outer.state.cost_usd <= 20
    assert inner.state.tokens <= inner_tokens
    assert inner.state.calls <= calls
    assert outer.state.calls_in_flight == inner.state.calls_in_flight == 0
    if not both:
        assert outer.state.calls == inner.state.calls


async def test_a_budget_that_refuses_takes_nothing_from_the_others() -> None:
    run, stage = Budget(max_tokens=100), Budget(max_tokens=10)
    with pytest.raises(BudgetEndedError, match="0 of 10 tokens"):
        await spend(Budgets(run, stage), bound=50, actual=50)
    await spend(Budgets(run, run), bound=100, actual=100)
    assert run.state.tokens == 100
    assert stage.state.tokens == 0


async def test_an_overshoot_within_the_caps_is_counted_and_the_budget_continues() -> None:
    budget = Budget(max_tokens=100)
    await spend(budget, bound=10, actual=30)
    assert (budget.state.tokens, budget.state.over_bound_calls, budget.state.has_ended) == (30, 1, False)
    await spend(budget, bound=70, actual=70)


async def test_an_overshoot_beyond_a_cap_ends_the_budget() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    holder = asyncio.create_task(hold(budget, 50, done, actual=0))
    await asyncio.sleep(0)
    waiter = asyncio.create_task(spend(budget, bound=60, actual=1))
    await spend(budget, bound=40, actual=80)  # takes its room before the waiter has its first turn
    await a_few_turns()
    assert isinstance(waiter.exception(), BudgetEndedError)
    done.set()
    await holder
    assert (budget.state.tokens, budget.state.has_ended) == (80, True)
    with pytest.raises(BudgetEndedError, match="a call cost more than it had reserved"):
        await spend(budget, bound=0, actual=0)


async def test_overshoots_under_stress_are_all_counted() -> None:
    budget = Budget(max_tokens=3000)
    assert await stress(budget, random.Random(1), tasks=500, over=0.3) > 0
    assert budget.state.over_bound_calls > 0
    assert budget.state.calls_in_flight == 0


@pytest.mark.parametrize("error", [OSError, asyncio.CancelledError])
async def test_a_failed_call_returns_its_reservation(error: type[BaseException]) -> None:
    budget = Budget(max_tokens=100)
    with pytest.raises(error):
        async with budget.reserve(tokens=100):
            raise error
    await spend(budget, bound=100, actual=100)


async def test_a_cancelled_waiter_lets_those_behind_it_pass() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    holder = asyncio.create_task(hold(budget, 50, done, actual=50))
    await asyncio.sleep(0)
    large = asyncio.create_task(spend(budget, bound=60, actual=0))
    small = asyncio.create_task(spend(budget, bound=50, actual=50))
    await a_few_turns()
    large.cancel()
    await a_few_turns()
    assert small.done()
    done.set()
    await holder
    assert budget.state.tokens == 100


async def test_a_waiter_cancelled_while_it_is_served_returns_its_reservation() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    holder = asyncio.create_task(hold(budget, 100, done, actual=0))
    await asyncio.sleep(0)
    waiter = asyncio.create_task(spend(budget, bound=100, actual=100))
    await a_few_turns()
    done.set()
    await holder
    assert budget.state.calls_in_flight == 1
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert waiter.cancelled()
    assert budget.state.calls_in_flight == 0
    await spend(budget, bound=100, actual=100)


async def test_an_unknown_price_under_a_dollar_cap_is_refused_unless_allowed() -> None:
    with pytest.raises(SetupError, match="the price of this call is unknown: give the model a price"):
        Budget(max_usd=1).reserve(tokens=1)
    budget = Budget(max_usd=1, allow_unknown_price=True)
    await spend(budget, bound=1, actual=1)
    assert (budget.state.unpriced_calls, budget.state.cost_usd) == (1, 0.0)


async def test_an_unknown_figure_is_settled_at_its_bound() -> None:
    budget = Budget(max_tokens=100, max_usd=1)
    async with budget.reserve(tokens=70, usd=0.5) as reservation:
        reservation.settle(tokens=None, usd=None)
    assert (budget.state.tokens, budget.state.cost_usd, budget.state.unpriced_calls) == (70, 0.5, 0)


async def test_a_reservation_is_settled_once() -> None:
    async with Budget().reserve(tokens=1) as reservation:
        reservation.settle(tokens=1)
        with pytest.raises(RuntimeError, match="settled once"):
            reservation.settle(tokens=1)


@pytest.mark.parametrize("cap", [-1, math.nan, math.inf])
def test_an_invalid_cap_is_refused(cap: float) -> None:
    with pytest.raises(SetupError, match=r"max_usd is .*; give a finite number"):
        Budget(max_usd=cap)


@pytest.mark.slow
async def test_ten_thousand_waiters_are_served_quickly() -> None:
    budget = Budget(max_tokens=20_000)
    started = time.thread_time()
    await asyncio.gather(*(spend(budget, bound=100, actual=1) for _ in range(10_000)))
    assert time.thread_time() - started < 5
    assert budget.state.tokens == 10_000


BEFORE = Spending(
    calls=1,
    input_tokens=60,
    output_tokens=10,
    cost_usd=0.1,
    unpriced_calls=1,
    lost_calls=2,
    possible_tokens=20,
    possible_usd=0.2,
)


async def test_earlier_spending_counts_as_settled_and_lost_calls_at_the_most_they_may_have_cost() -> None:
    run, stage = Budget(max_calls=4, max_tokens=100, max_usd=0.5), Budget(max_tokens=90)
    both = Budgets(run, stage)
    both.charge(BEFORE, of="run")
    assert (run.state.calls, run.state.tokens, run.state.cost_usd, run.state.unpriced_calls) == (3, 90, 0.3, 1)
    async with run.reserve(tokens=10, usd=0.2) as reservation:
        reservation.settle(tokens=10, usd=0.2)
    with pytest.raises(BudgetEndedError, match="4 of 4 calls"):
        await run.reserve(tokens=0, usd=0.0).__aenter__()
    with pytest.raises(BudgetEndedError, match="90 of 90 tokens"):
        await spend(stage, bound=1, actual=1)


async def test_a_charge_beyond_a_cap_ends_the_next_call() -> None:
    budget = Budget(max_tokens=50)
    budget.charge(BEFORE, of="run")
    with pytest.raises(BudgetEndedError, match="may take 0 tokens, but 90 of 50 tokens"):
        await spend(budget, bound=0, actual=0)


async def test_a_charge_reaches_waiting_calls() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    holding = asyncio.create_task(hold(budget, 60, done, actual=0))
    await a_few_turns()
    waiting = asyncio.create_task(spend(budget, bound=60, actual=60))
    await a_few_turns()
    budget.charge(BEFORE, of="run")
    await a_few_turns()
    assert waiting.done()
    with pytest.raises(BudgetEndedError):
        await waiting
    done.set()
    await holding


async def test_held_amounts_are_available_after_their_release() -> None:
    budget = Budget(max_tokens=100)
    await spend(budget, bound=20, actual=20)
    budget.hold(Spending(input_tokens=30), share=0.5)
    await spend(budget, bound=50, actual=50)
    with pytest.raises(BudgetEndedError, match=r"70 of 100 tokens \(max_tokens\) are spent, and 30 are reserved for"):
        await spend(budget, bound=1, actual=1)
    budget.release()
    await spend(budget, bound=30, actual=30)
    assert budget.state.tokens == 100


@pytest.mark.parametrize(("expected", "held"), [(10, 10), (40, 40), (1000, 40)])
async def test_at_most_a_share_of_what_is_left_is_held_back(expected: int, held: int) -> None:
    budget = Budget(max_tokens=100)
    await spend(budget, bound=20, actual=20)
    budget.hold(Spending(input_tokens=expected), share=0.5)
    await spend(budget, bound=80 - held, actual=80 - held)
    with pytest.raises(BudgetEndedError):
        await spend(budget, bound=1, actual=1)


async def test_a_resumed_run_holds_back_the_same_amount() -> None:
    budget = Budget(max_tokens=100)
    budget.charge(Spending(input_tokens=70), of="run")  # 20 by its baseline, 50 by its search
    budget.hold(Spending(input_tokens=40), share=0.5, spent=Spending(input_tokens=50))
    with pytest.raises(BudgetEndedError, match="and 30 are reserved"):
        await spend(budget, bound=1, actual=1)


async def test_the_largest_call_is_the_largest_bound_of_each_kind() -> None:
    run, stage = Budget(max_tokens=1000, max_usd=1), Budget(max_tokens=900)
    async with Budgets(run, stage).reserve(tokens=70, usd=0.1) as reservation:
        reservation.settle(tokens=1, usd=0.0)
    async with run.reserve(tokens=20, usd=0.4) as reservation:
        reservation.settle(tokens=1, usd=0.0)
    assert Budgets(run, stage).largest_call == Spending(calls=1, input_tokens=70, cost_usd=0.4)
    assert stage.largest_call == Spending(calls=1, input_tokens=70, cost_usd=0.1)


async def test_calls_that_no_longer_fit_fail_at_once_on_a_hold() -> None:
    """It waits for room in the other budget, where no event would wake it."""
    run, stage, done = Budget(max_tokens=100), Budget(max_tokens=50), asyncio.Event()
    holder = asyncio.create_task(hold(stage, 50, done, actual=0))
    await a_few_turns()
    waiter = asyncio.create_task(spend(Budgets(run, stage), bound=50, actual=50))
    await a_few_turns()
    run.hold(Spending(input_tokens=60), share=0.6)
    done.set()
    await asyncio.wait_for(asyncio.gather(holder, waiter, return_exceptions=True), 5)
    assert isinstance(waiter.exception(), BudgetEndedError)
    assert (run.state.tokens, stage.state.tokens) == (0, 0)


async def test_waiting_calls_are_served_when_less_is_held_back() -> None:
    budget, done = Budget(max_tokens=100), asyncio.Event()
    budget.hold(Spending(input_tokens=50), share=1)
    holder = asyncio.create_task(hold(budget, 20, done, actual=20))
    await a_few_turns()
    waiter = asyncio.create_task(spend(budget, bound=40, actual=40))
    await a_few_turns()
    assert not waiter.done()
    budget.hold(Spending(input_tokens=10), share=1)
    await a_few_turns()
    assert waiter.done()
    done.set()
    await holder


async def test_each_run_has_a_budget_with_the_same_caps_unless_it_is_shared() -> None:
    budget = Budget(max_tokens=100, allow_unknown_price=True, max_usd=1.0)
    for _ in range(2):
        run = budget.for_run()
        await spend(run, bound=100, actual=100)
        with pytest.raises(BudgetEndedError):
            await spend(run, bound=1, actual=1)
    assert (budget.state.tokens, budget.for_run().caps) == (0, budget.caps)
    shared = Budget(max_tokens=100, shared=True)
    runs = [Budgets(shared, budget).for_run() for _ in range(3)] + [shared.for_run()]
    for run in runs[:2]:
        await spend(run, bound=50, actual=50)
    for run in runs:
        with pytest.raises(BudgetEndedError):
            await spend(run, bound=1, actual=1)
    assert shared.state.tokens == 100


async def test_each_run_holds_back_its_own_part_of_a_shared_budget() -> None:
    shared = Budget(max_tokens=100, shared=True)
    one, other = shared.for_run(), shared.for_run()
    one.hold(Spending(input_tokens=40), share=0.5)
    other.hold(Spending(input_tokens=40), share=0.5)  # half of the 60 that are left
    assert shared.state.held.tokens == 70
    other.hold(Spending(input_tokens=10), share=0.5)
    assert shared.state.held.tokens == 50
    one.release()
    assert shared.state.held.tokens == 10
    await spend(one, bound=90, actual=90)
    other.release()
    await spend(other, bound=10, actual=10)


async def test_a_resumed_run_is_charged_to_a_shared_budget_once() -> None:
    shared = Budget(max_tokens=100, shared=True)
    for name in ("a", "a", "b"):
        Budgets(shared, Budget(max_tokens=100)).for_run().charge(Spending(input_tokens=30), of=name)
    assert shared.state.tokens == 60
