from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from scipy.stats import permutation_test

from promptiter.evaluation.stats.sign_flips import adjust_for_flips, count_needed_pairs, estimate_center


def draw(seed: int, count: int, *, mean: float = 0.0) -> list[float]:
    rng = Random(seed)
    return [rng.gauss(mean, 1.0) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 5, 8])
def test_one_figure_has_the_p_value_of_scipys_permutation_test(count: int) -> None:
    values = draw(count, count, mean=0.5)
    found = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=2**count)
    assert adjust_for_flips([values]) == [pytest.approx(float(found.pvalue))]


def test_the_figure_with_most_evidence_is_compared_with_the_largest_of_all() -> None:
    figures = [draw(1, 7, mean=0.9), draw(2, 7, mean=0.4), draw(3, 7)]
    scales = [sum(each**2 for each in figure) ** 0.5 for figure in figures]
    flips = list(product((1, -1), repeat=7))
    largest = [
        max(
            abs(sum(map(float.__mul__, map(float, signs), figure))) / scale
            for figure, scale in zip(figures, scales, strict=True)
        )
        for signs in flips
    ]
    observed = [abs(sum(figure)) / scale for figure, scale in zip(figures, scales, strict=True)]
    expected = sum(each >= max(observed) - 1e-9 for each in largest) / len(flips)
    found = adjust_for_flips(figures)
    assert min(found) == pytest.approx(expected)
    assert all(
        joint >= alone for joint, [alone] in zip(found, (adjust_for_flips([each]) for each in figures), strict=True)
    )


def test_a_copy_of_a_figure_costs_nothing() -> None:
    values = draw(4, 9, mean=1.0)
    assert adjust_for_flips([values, [2 * each for each in values]]) == pytest.approx(adjust_for_flips([values]) * 2)


def test_ties_are_no_evidence() -> None:
    assert adjust_for_flips([[0.0] * 10]) == [1.0]
    assert adjust_for_flips([[0.0] * 5 + [1.0] * 5]) == [2 / 2**5]
    assert adjust_for_flips([[], []]) == [1.0, 1.0]


def test_five_pairs_cannot_show_anything() -> None:
    assert adjust_for_flips([[1.0] * 5]) == [0.0625]
    assert adjust_for_flips([[1.0] * 6]) == [0.03125]
    assert count_needed_pairs(0.05) == 6
    assert count_needed_pairs(0.05, comparisons=3) == 7


def test_many_pairs_are_sampled_in_the_same_way_each_time() -> None:
    values = draw(5, 20, mean=0.4)
    [found] = adjust_for_flips([values])
    assert [found] == adjust_for_flips([values])
    exact = permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
    )
    assert found == pytest.approx(float(exact.pvalue), abs=0.01)


def test_the_interval_holds_the_means_that_flips_do_not_reject() -> None:
    values = draw(6, 8)
    found = estimate_center(values)
    assert found.low is not None
    assert found.high is not None

    def reject(center: float) -> bool:
        moved = [each - center for each in values]
        sums = [sum(map(float.__mul__, map(float, signs), moved)) for signs in product((1, -1), repeat=8)]
        return min(sum(each >= sum(moved) for each in sums), sum(each <= sum(moved) for each in sums)) / 256 <= 0.025

    assert reject(found.low - 0.01)
    assert not reject(found.low + 0.01)
    assert not reject(found.high - 0.01)
    assert reject(found.high + 0.01)


def test_the_interval_of_few_values_is_unknown() -> None:
    assert estimate_center([1.0, 2.0]).low is None
    assert estimate_center([1.0] * 6) == estimate_center([1.0] * 20)


@pytest.mark.parametrize("count", [6, 10, 15])
def test_the_interval_misses_the_mean_in_5_percent(count: int) -> None:
    missed = 0
    for seed in range(300):
        found = estimate_center(draw(seed, count)) if count < 15 or seed < 40 else None
        missed += found is not None and not (found.low or 0) <= 0 <= (found.high or 0)
    assert missed <= 300 * 0.05 + 3 * (300 * 0.05 * 0.95) ** 0.5
