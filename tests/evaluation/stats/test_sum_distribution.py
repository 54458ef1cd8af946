from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from promptiter.evaluation.stats.sum_distribution import SumDistribution, compute_tail

CHOICES = st.lists(st.integers(-9, 9), min_size=2, max_size=5)


@given(st.lists(CHOICES, max_size=4), st.data())
def test_the_tail_is_the_share_of_all_choices_that_reach_the_bound(
    values: list[list[int]], data: st.DataObject
) -> None:
    chosen = [data.draw(st.integers(1, len(each) - 1)) for each in values]
    bound = data.draw(st.integers(-60, 60))
    totals = [
        sum(map(sum, picked)) for picked in product(*(combinations(*each) for each in zip(values, chosen, strict=True)))
    ]
    parts = [SumDistribution.of_choices(*each) for each in zip(values, chosen, strict=True)]
    assert compute_tail(parts, at_least=bound) == sum(total >= bound for total in totals) / len(totals)


@pytest.mark.parametrize("repeats", [6, 30, 45, 60, 100])
def test_the_choices_of_many_repeats_follow_the_hypergeometric_distribution(repeats: int) -> None:
    part = SumDistribution.of_choices([0] * repeats + [1] * repeats, repeats)
    for bound in (0, repeats // 2, repeats // 2 + 3, repeats):
        oracle = stats.hypergeom.sf(bound - 1, 2 * repeats, repeats, repeats)
        assert compute_tail([part], at_least=bound) == pytest.approx(oracle, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("count", [60, 500, 3_000])
def test_coin_flips_follow_the_binomial_distribution_and_are_never_less_likely(count: int) -> None:
    coin = SumDistribution.of_choices([0, 1], 1)
    for bound in (count // 3, count // 2, count // 2 + count // 20, count):
        found = compute_tail([coin] * count, at_least=bound)
        oracle = stats.binom.sf(bound - 1, count, 0.5)
        assert oracle * (1 - 1e-9) <= found <= oracle + 1e-9


@pytest.mark.parametrize("others", [1, 3, 60, 64, 200])
def test_parts_of_few_and_of_many_ways_add_up(others: int) -> None:
    """A part of 2 ** 117 ways, and coin flips, of which 64 have more ways than fit into a narrow slot."""
    many, coin = SumDistribution.of_choices([0] * 60 + [1] * 60, 60), SumDistribution.of_choices([0, 1], 1)
    for bound in (30, 30 + others // 2, 33 + others // 2):
        oracle = sum(
            float(stats.hypergeom.pmf(at, 120, 60, 60)) * float(stats.binom.sf(bound - at - 1, others, 0.5))
            for at in range(61)
        )
        assert compute_tail([many, *[coin] * others], at_least=bound) == pytest.approx(oracle, rel=1e-9, abs=1e-11)


def test_the_sum_of_nothing_is_0() -> None:
    assert (compute_tail([], at_least=0), compute_tail([], at_least=1)) == (1.0, 0.0)
