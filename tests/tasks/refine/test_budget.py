from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptiter.tasks.refine.budget import BudgetFloors, IterationBudget, halve_budget
from promptiter.tasks.refine.records import ObservedUse
from promptiter.tasks.refine.run_folder import read_use
from tests.tasks.refine.foreign_runs import FLAT, NESTED

HALVED = IterationBudget(
    max_loops=3,
    max_total_workers=4,
    max_tool_calls=17,
    max_total_tokens=91_000,
    max_wall_time_s=205,
    max_depth=3,
)


def test_the_observed_use_is_halved_in_both_shapes() -> None:
    assert halve_budget(read_use(NESTED)) == HALVED
    assert halve_budget(read_use(FLAT)) == HALVED


def test_nothing_is_below_its_floor() -> None:
    use = ObservedUse(loops=0, workers=1, tool_calls=0, tokens=1, wall_time_s=3.9, max_depth=1)
    assert halve_budget(use) == IterationBudget(
        max_loops=1,
        max_total_workers=1,
        max_tool_calls=1,
        max_total_tokens=1,
        max_wall_time_s=60,
        max_depth=1,
    )
    assert halve_budget(use, BudgetFloors(tokens=500, wall_time_s=90)).max_total_tokens == 500


def test_what_is_not_known_is_not_capped() -> None:
    assert halve_budget(ObservedUse()) == IterationBudget()


def test_a_nested_entry_without_use_counts_its_cap() -> None:
    assert read_use({"loops": {"max": 8}, "wall_time": {"max_s": 600}}) == ObservedUse(loops=8, wall_time_s=600.0)


@given(st.integers(min_value=0, max_value=10**9))
def test_counts_are_rounded_up_and_tokens_down(used: int) -> None:
    halved = halve_budget(ObservedUse(loops=used, tokens=used))
    assert halved.max_loops == max(1, -(-used // 2))
    assert halved.max_total_tokens == max(1, used // 2)


def test_a_time_below_0_is_not_known() -> None:
    assert read_use({"wall_time": {"elapsed_s": -5.0}}, elapsed_s=-1.0).wall_time_s is None
