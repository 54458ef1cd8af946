from __future__ import annotations

from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.evaluation.stats.bounded_mean import compute_p_value, find_lower_bound


def binomial_cdf(count: int, most: int, chance: float) -> float:
    return sum(comb(count, at) * chance**at * (1 - chance) ** (count - at) for at in range(most + 1))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10))
def test_whole_changes_give_the_exact_sign_test(ups: int, downs: int, same: int) -> None:
    changes = [1.0] * ups + [-1.0] * downs + [0.0] * same
    expected = binomial_cdf(ups + downs, downs, 0.5) if ups else 1.0
    assert compute_p_value(changes, worst=-1.0) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 60), st.integers(0, 20), st.floats(0.01, 0.9))
def test_changes_of_two_values_give_the_exact_binomial_test(ups: int, downs: int, rise: float) -> None:
    """A mean of at most 0 means that at least `rise / (1 + rise)` of all changes are the worst one."""
    expected = binomial_cdf(ups + downs, downs, round(rise, 6) / (1 + round(rise, 6)))
    assert compute_p_value([round(rise, 6)] * ups + [-1.0] * downs, worst=-1.0) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12), st.integers(0, 100))
def test_the_integral_is_the_share_of_random_weights_with_a_mean_below(changes: list[float], seed: int) -> None:
    random, samples = Random(seed), 4_000
    below = 0
    for _ in range(samples):
        below += sum(random.expovariate(1.0) * change for change in (-1.0, *changes)) <= 0
    assert compute_p_value(changes, worst=-1.0) == pytest.approx(below / samples, abs=0.04)


def test_nothing_above_the_mean_has_a_p_value_of_1() -> None:
    assert compute_p_value([0.0, -0.5], worst=-1.0) == 1.0
    assert compute_p_value([0.0] * 5, worst=-1.0) == 1.0


def test_the_lower_bound_is_where_the_test_stops_rejecting() -> None:
    changes = [0.3, 0.5, -0.1, 0.2, 0.4, 0.9, 0.0, 0.3]
    bound = find_lower_bound(changes, worst=-1.0, alpha=0.05)
    assert compute_p_value(changes, worst=-1.0, mean=bound) == pytest.approx(0.05, abs=1e-4)
    assert -1 < bound < 0.3


@pytest.mark.parametrize(("rise", "share"), [(0.1, 0.9), (0.05, 0.95)])
@pytest.mark.parametrize("size", [5, 20, 100])
def test_rare_large_losses_with_a_mean_of_0_are_rarely_a_gain(size: int, rise: float, share: float) -> None:
    """All outcomes, with their exact probability: a sign-flip test finds a gain in up to 77%."""
    found = 0.0
    for downs in range(size + 1):
        changes = [rise] * (size - downs) + [rise - 1] * downs
        if compute_p_value(changes, worst=-1.0) <= 0.05:
            found += comb(size, downs) * (1 - share) ** downs * share ** (size - downs)
    assert found <= 0.05


@pytest.mark.parametrize("size", [5, 8])
def test_three_values_with_a_mean_of_0_are_a_gain_in_at_most_alpha(size: int) -> None:
    """Random distributions of three values: for these there is no proof, so all outcomes of each are added up."""
    random = Random(size)
    for _ in range(12):
        low, high, middle = -1.0 if random.random() < 0.7 else -random.random(), random.random(), 0.0
        middle = random.uniform(-1, 1)
        weights = [random.expovariate(1.0), random.expovariate(1.0), random.expovariate(1.0)]
        values = [low, high, middle]
        rises = sum(value * weight for value, weight in zip(values, weights, strict=True) if value > 0)
        falls = -sum(value * weight for value, weight in zip(values, weights, strict=True) if value < 0)
        weights = [weight / (rises if value > 0 else falls) for value, weight in zip(values, weights, strict=True)]
        chances = [weight / sum(weights) for weight in weights]
        found = 0.0
        for ups in range(size + 1):
            for others in range(size + 1 - ups):
                downs = size - ups - others
                changes = [low] * downs + [high] * ups + [middle] * others
                if sum(changes) > 0 and compute_p_value(changes, worst=-1.0) <= 0.2:
                    ways = comb(size, ups) * comb(size - ups, others)
                    found += ways * chances[0] ** downs * chances[1] ** ups * chances[2] ** others
        assert found <= 0.2
