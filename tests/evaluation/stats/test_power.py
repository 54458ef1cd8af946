from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import BLOCKS, Block, Scope, decide_for_these_cases
from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.power import (
    FinalTestPlan,
    RunNoise,
    estimate_run_noise,
    noise_bar,
    noise_floor,
    pooled_std,
)

# Cases that pass by Beta(0.6, 0.4): mean 0.6, variance of a run 0.12, mean square of the chance to fail 0.28.
NOISE = RunNoise(cases=30, mean=0.6, variance=0.12, square_room=0.28)
NEARLY_SETTLED = RunNoise(cases=30, mean=0.6, variance=0.0218, square_room=0.3782)  # Beta(0.06, 0.04)
GAINS = st.floats(0.01, 0.4)


def plan(
    noise: RunNoise, *, cases: int = 1, scope: Scope = "these cases", blocks: Sequence[Block] = BLOCKS
) -> FinalTestPlan:
    return FinalTestPlan(noise=noise, cases=cases, scope=scope, blocks=blocks)


def chances(count: int, random: Random, *, spread: float = 1.0) -> list[float]:
    return [random.betavariate(0.6 * spread, 0.4 * spread) for _ in range(count)]


def arm(chance: float, random: Random, *, repeats: int = 6) -> tuple[float, ...]:
    return tuple(float(random.random() < chance) for _ in range(repeats))


@pytest.mark.slow
def test_the_noise_of_known_cases_is_estimated_from_a_few_repeats() -> None:
    random = Random(1)
    found = estimate_run_noise([arm(chance, random, repeats=2) for chance in chances(20_000, random)])
    assert found.mean == pytest.approx(NOISE.mean, abs=0.01)
    assert found.variance == pytest.approx(NOISE.variance, abs=0.005)
    assert found.square_room == pytest.approx(NOISE.square_room, abs=0.01)
    assert found.std == pytest.approx(0.346, abs=0.01)


def test_scores_above_1_allow_gains_up_to_the_highest() -> None:
    found = estimate_run_noise([[1.0, 3.0], [5.0, 5.0]])
    assert (found.best, found.mean, found.room, found.variance) == (5.0, 3.5, 1.5, 1.0)


def test_noise_needs_a_repeated_case() -> None:
    with pytest.raises(SetupError, match="at least 2 repeats; got 2 cases"):
        estimate_run_noise([[1.0], [0.0]])


def test_differences_between_cases_are_not_noise() -> None:
    assert pooled_std([[0.0, 0.0], [1.0, 1.0], [0.5]]) == 0
    assert pooled_std([[0.1, 0.4, 0.3]]) == pytest.approx(stdev([0.1, 0.4, 0.3]))
    assert pooled_std([[0.0, 1.0], [0.0, 0.0, 0.0]]) == pytest.approx((0.5 / 3) ** 0.5)


def test_equal_repeats_have_no_noise_whatever_their_last_digit() -> None:
    assert {pooled_std([[percent / 100] * repeats]) for percent in range(101) for repeats in range(2, 9)} == {0.0}
    assert estimate_run_noise([[0.05] * 6, [0.1] * 3]).variance == 0.0


def test_the_noise_bar_pools_the_spread_of_both_arms() -> None:
    assert noise_bar([0.2, 0.2, 0.2], [0.1, 0.2, 0.3]) == pytest.approx(0.0816, abs=1e-4)
    assert noise_bar([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], sigma=2) == pytest.approx(2 * 0.1155, abs=1e-3)


@pytest.mark.slow
def test_a_profile_against_itself_exceeds_the_noise_floor_in_1_of_20() -> None:
    random, above = Random(2), 0
    floor = noise_floor(NOISE, cases=30, repeats=3)
    for _ in range(2_000):
        gains = (
            sum(arm(chance, random, repeats=3)) - sum(arm(chance, random, repeats=3)) for chance in chances(30, random)
        )
        above += sum(gains) / 90 > floor
    assert above / 2_000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "gain", "spread", "noise"),
    [
        (6, 0.1, 1.0, NOISE),
        pytest.param(6, 0.3, 1.0, NOISE, marks=pytest.mark.long),
        (12, 0.15, 1.0, NOISE),
        pytest.param(12, 0.2, 1.0, NOISE, marks=pytest.mark.long),
        pytest.param(30, 0.1, 1.0, NOISE, marks=pytest.mark.long),
        (30, 0.07, 0.1, NEARLY_SETTLED),
    ],
)
def test_power_for_these_cases_is_that_of_the_exact_test(
    count: int, gain: float, spread: float, noise: RunNoise
) -> None:
    random, shown, runs = Random(3), 0, 500
    for _ in range(runs):
        before = chances(count, random, spread=spread)
        fixed = min(1.0, gain / (1 - sum(before) / count))
        some = [
            PairedScores(
                case_id=str(at), before=arm(q, random, repeats=16), after=arm(q + fixed * (1 - q), random, repeats=16)
            )
            for at, q in enumerate(before)
        ]
        shown += decide_for_these_cases(some).is_shown
    assert plan(noise, cases=count).power(gain) == pytest.approx(shown / runs, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "gain"), [(12, 0.2), *(pytest.param(30, gain, marks=pytest.mark.long) for gain in (0.1, 0.2))]
)
def test_power_for_new_cases_is_that_of_the_exact_test(count: int, gain: float) -> None:
    random, shown, runs = Random(4), 0, 400
    for _ in range(runs):
        some = [
            PairedScores(
                case_id=str(at), before=arm(q, random), after=arm(1.0 if random.random() < gain / 0.4 else q, random)
            )
            for at, q in enumerate(chances(count, random))
        ]
        shown += decide_for_new_cases(some).is_shown
    assert plan(NOISE, cases=count, scope="new cases").power(gain) == pytest.approx(shown / runs, abs=0.08)


@pytest.mark.slow
@settings(max_examples=25)
@given(GAINS, GAINS, st.integers(2, 200))
def test_a_larger_gain_has_no_less_power(one: float, other: float, count: int) -> None:
    low, high = sorted((one, other))
    assert plan(NOISE, cases=count).power(low) <= plan(NOISE, cases=count).power(high) + 0.01


@pytest.mark.parametrize("scope", ["these cases", "new cases"])
def test_the_smallest_gain_and_the_cases_it_needs_agree(scope: Scope) -> None:
    gain = plan(NOISE, cases=30, scope=scope).smallest_gain()
    assert gain is not None
    planned = plan(NOISE, cases=30, scope=scope)
    assert planned.power(gain) >= 0.8 > planned.power(gain - 0.005)
    needed = plan(NOISE, scope=scope).cases_needed(gain)
    assert needed is not None
    assert 28 <= needed <= 30


def test_more_repeats_help_like_more_cases_for_these_cases() -> None:
    needed, repeats = plan(NOISE).cases_needed(0.1), plan(NOISE, cases=10).repeats_needed(0.1)
    assert needed is not None
    assert repeats is not None
    assert 17 <= needed <= 23  # with 6 repeats, or 16 if 6 are promising
    assert 9 <= repeats <= 15
    assert plan(NOISE, cases=30).repeats_needed(0.2) == 3
    assert plan(NOISE, cases=12, scope="new cases").repeats_needed(0.1) is None


def test_a_gain_that_no_number_of_cases_shows_needs_none() -> None:
    assert plan(NOISE).cases_needed(0.5) is None  # there is only room for 0.4
    assert plan(NOISE, cases=4, scope="new cases").smallest_gain() is None
    assert plan(NOISE, cases=1).smallest_gain() is None


def test_without_noise_a_gain_needs_enough_runs_to_exclude_unseen_failures() -> None:
    settled = estimate_run_noise([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    smallest = plan(settled, cases=12).smallest_gain()
    assert smallest == pytest.approx(5 * (2 / 3) / 192, abs=1e-3)
    for gain, is_shown in ((1 / 12, True), (1 / 36, True), (1 / 80, False)):
        arms = [(1.0, 1.0)] * 8 + [(0.0, 12 * gain)] + [(0.0, 0.0)] * 3
        fixed = [PairedScores(case_id=str(at), before=(b,) * 16, after=(a,) * 16) for at, (b, a) in enumerate(arms)]
        assert decide_for_these_cases(fixed).is_shown == is_shown
    assert plan(estimate_run_noise([[1.0, 1.0]]), cases=12).smallest_gain() == 0.0, "there is nothing to gain"
    assert noise_floor(settled, cases=3, repeats=1) == 0
    needed = plan(settled, scope="new cases").cases_needed(0.2)
    assert needed is not None
    assert needed > 20


def test_power_assumes_the_default_blocks() -> None:
    assert plan(NOISE, cases=12).power(0.2) == plan(NOISE, cases=12, blocks=BLOCKS).power(0.2)
