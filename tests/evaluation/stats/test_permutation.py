from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product
from random import Random

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import (
    PairedScores,
    PermutationTest,
    has_run_noise,
    mean_gain,
    select_first,
    sign_flip,
    within_case_permutation,
)

pytestmark = pytest.mark.slow

ALL = 10**6
"""More resamples than there are ways: scipy then lists them all."""

GRADES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
DELTAS = st.lists(st.sampled_from([-1.0, -0.5, -0.2, 0.0, 0.1, 0.2, 0.7]), min_size=1, max_size=8)


def pair_arms(*arms: tuple[tuple[float, ...], tuple[float, ...]]) -> list[PairedScores]:
    return [PairedScores(case_id=f"c{at}", before=before, after=after) for at, (before, after) in enumerate(arms)]


def within(cases: list[PairedScores]) -> PermutationTest:
    test = within_case_permutation(cases)
    assert test is not None
    return test


@st.composite
def noisy_cases(draw: st.DrawFn, scores: st.SearchStrategy[float] = GRADES, most: int = 4) -> list[PairedScores]:
    arm = st.lists(scores, min_size=1, max_size=3).map(tuple)
    cases = pair_arms(*draw(st.lists(st.tuples(arm, arm), min_size=1, max_size=most)))
    assume(has_run_noise(cases))
    return cases


def by_listing_every_assignment(cases: list[PairedScores]) -> float:
    """The p-value by brute force, in fractions."""
    gains = []
    for case in cases:
        pooled = [Fraction(score) for score in (*case.before, *case.after)]
        after, before, total = len(case.after), len(case.before), sum(pooled)
        gains.append([sum(chosen) / after - (total - sum(chosen)) / before for chosen in combinations(pooled, after)])
    observed = sum(
        sum(map(Fraction, case.after)) / len(case.after) - sum(map(Fraction, case.before)) / len(case.before)
        for case in cases
    )
    totals = [sum(assigned) for assigned in product(*gains)]
    return sum(total >= observed for total in totals) / len(totals)


@given(noisy_cases(most=3))
def test_the_p_value_is_the_share_of_all_assignments_that_are_as_good(cases: list[PairedScores]) -> None:
    assert within(cases).p_value == pytest.approx(by_listing_every_assignment(cases), abs=1e-12)


@given(noisy_cases(st.floats(-3, 3, width=16), most=2))
def test_floats_of_many_digits_are_exact_too(cases: list[PairedScores]) -> None:
    test = within(cases)
    assert test.p_value == pytest.approx(by_listing_every_assignment(cases), abs=1e-12)


def test_one_case_agrees_with_scipys_permutation_test() -> None:
    random = Random(4)
    for _ in range(10):
        before, after = [[random.gauss() for _ in range(5)] for _ in range(2)]
        oracle = stats.permutation_test(
            (after, before),
            lambda x, y, axis: numpy.mean(x, axis=axis) - numpy.mean(y, axis=axis),
            vectorized=True,
            alternative="greater",
            n_resamples=ALL,
        )
        ours = within(pair_arms((tuple(before), tuple(after))))
        assert ours.p_value == pytest.approx(oracle.pvalue)
        assert ours.gain == pytest.approx(oracle.statistic)


@given(st.lists(st.booleans(), min_size=2, max_size=6), st.lists(st.booleans(), min_size=2, max_size=6))
def test_one_case_of_passes_agrees_with_fishers_exact_test(before: list[bool], after: list[bool]) -> None:
    cases = pair_arms((tuple(before), tuple(after)))
    assume(has_run_noise(cases))
    table = [[sum(after), len(after) - sum(after)], [sum(before), len(before) - sum(before)]]
    assert within(cases).p_value == pytest.approx(stats.fisher_exact(numpy.array(table), alternative="greater").pvalue)


def test_a_hundred_cases_agree_with_convolved_hypergeometric_distributions() -> None:
    random = Random(7)
    chances = [random.random() for _ in range(100)]
    cases = pair_arms(
        *(
            (tuple(random.random() < q for _ in range(6)), tuple(random.random() < q + 0.05 for _ in range(6)))
            for q in chances
        )
    )
    total = numpy.ones(1)
    for case in cases:
        passed = sum(case.before) + sum(case.after)
        total = numpy.convolve(total, stats.hypergeom.pmf(numpy.arange(7), 12, passed, 6))
    observed = int(sum(sum(case.after) for case in cases))
    test = within(cases)
    assert test.p_value == pytest.approx(total[observed:].sum(), rel=1e-9)


@given(st.integers(1, 40), st.data())
def test_flips_of_one_size_agree_with_the_binomial_test(count: int, data: st.DataObject) -> None:
    ups = data.draw(st.integers(0, count))
    oracle = stats.binomtest(ups, count, alternative="greater").pvalue
    assert sign_flip([1.0] * ups + [-1.0] * (count - ups)).p_value == pytest.approx(oracle)


def test_changes_of_any_size_agree_with_scipys_permutation_test() -> None:
    random = Random(6)
    for _ in range(5):
        deltas = [random.gauss(0.2, 1) for _ in range(8)]
        oracle = stats.permutation_test(
            (deltas,),
            lambda x, axis: numpy.mean(x, axis=axis),
            vectorized=True,
            permutation_type="samples",
            alternative="greater",
            n_resamples=ALL,
        ).pvalue
        assert sign_flip(deltas).p_value == pytest.approx(oracle)


def test_flips_of_ranks_agree_with_the_signed_rank_test() -> None:
    random = Random(2)
    for count in (4, 9, 20):
        ranks = [rank * random.choice([-1, 1, 1]) for rank in range(1, count + 1)]
        oracle = stats.wilcoxon(ranks, alternative="greater", method="exact").pvalue
        assert sign_flip([float(rank) for rank in ranks]).p_value == pytest.approx(oracle)


@pytest.mark.parametrize("seed", range(4))
def test_changes_that_are_rounded_to_a_grid_come_close_to_all_flips(seed: int) -> None:
    random = Random(seed)
    deltas = [random.gauss(0.3, 1) for _ in range(18)]
    flips = 1 - 2 * (numpy.arange(2**18)[:, None] >> numpy.arange(18) & 1)
    oracle = float(numpy.mean(flips @ numpy.array(deltas) >= sum(deltas) - 1e-9))
    assert sign_flip(deltas).p_value == pytest.approx(oracle, rel=0.01)


def test_a_gain_in_every_case_has_the_p_value_of_one_assignment() -> None:
    random = Random(8)
    assert sign_flip([random.uniform(0.5, 1) for _ in range(40)]).p_value == pytest.approx(0.5**40)


def test_one_change_far_larger_than_the_others_does_not_hide_them() -> None:
    assert sign_flip([500.0, *[1.0] * 9]).p_value == pytest.approx(0.5**10)
    assert sign_flip([500.0, 1.0, *[-1.0] * 8]).p_value == pytest.approx(0.5 * (1 - 0.5**9))


@pytest.mark.slow
def test_cases_with_many_repeats_of_many_digits_come_close_to_sampled_assignments() -> None:
    random = Random(3)
    arms = [tuple(random.gauss(shift, 1) for _ in range(40)) for shift in (0.0, 0.3)]
    oracle = stats.permutation_test(
        (arms[1], arms[0]),
        lambda x, y, axis: numpy.mean(x, axis=axis) - numpy.mean(y, axis=axis),
        vectorized=True,
        alternative="greater",
        n_resamples=20_000,
        rng=numpy.random.default_rng(1),
    ).pvalue
    assert within(pair_arms((arms[0], arms[1]))).p_value == pytest.approx(oracle, abs=0.01)


def test_a_thousand_cases_of_many_digits_agree_with_the_normal_distribution() -> None:
    random = Random(2)
    deltas = [random.gauss(0.05, 1) for _ in range(1000)]
    oracle = stats.norm.sf(sum(deltas) / math.hypot(*deltas))
    assert sign_flip(deltas).p_value == pytest.approx(oracle, rel=0.05)


@given(noisy_cases())
def test_a_p_value_is_above_0_and_at_most_1(cases: list[PairedScores]) -> None:
    assert 0 < within(cases).p_value <= 1


@pytest.mark.slow
def test_the_p_value_of_an_overwhelming_gain_is_not_0() -> None:
    cases = pair_arms(*[((0.0,) * 6, (1.0,) * 6)] * 200, ((0.0, 1.0), (0.0, 1.0)))
    assert within(cases).p_value > 0


@given(noisy_cases(), st.data())
def test_a_better_repeat_never_raises_the_p_value(cases: list[PairedScores], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(cases) - 1))
    case = cases[at]
    lifted = PairedScores(case_id=case.case_id, before=case.before, after=(case.after[0] + 0.5, *case.after[1:]))
    better = [*cases[:at], lifted, *cases[at + 1 :]]
    assume(has_run_noise(better))
    assert mean_gain(better) > mean_gain(cases)
    assert within(better).p_value <= within(cases).p_value


@given(DELTAS, st.data())
def test_a_better_case_never_raises_the_p_value(deltas: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(deltas) - 1))
    better = [*deltas[:at], deltas[at] + 0.3, *deltas[at + 1 :]]
    assert sign_flip(better).p_value <= sign_flip(deltas).p_value


@given(noisy_cases(), st.randoms(use_true_random=False))
def test_the_order_of_cases_does_not_matter(cases: list[PairedScores], random: Random) -> None:
    shuffled = random.sample(cases, len(cases))
    assert within(shuffled) == within(cases)


def test_the_order_of_cases_does_not_matter_when_scores_are_rounded() -> None:
    random = Random(5)
    arms = [tuple(random.random() for _ in range(6)) for _ in range(24)]
    cases = pair_arms(*zip(arms[::2], arms[1::2], strict=True))
    assert within(cases[::-1]) == within(cases)


@given(noisy_cases())
def test_a_case_with_equal_repeats_only_dilutes_the_gain(cases: list[PairedScores]) -> None:
    settled = PairedScores(case_id="settled", before=(1.0, 1.0), after=(1.0, 1.0, 1.0))
    assert within([*cases, settled]).p_value == within(cases).p_value


@pytest.mark.parametrize("chances", [(0.5, 0.5), (0.3, 0.8), (0.05, 0.5)])
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_equal_arms_reach_no_level_more_often_than_it_says(chances: tuple[float, float], shared: float) -> None:
    """All outcomes of two cases with two repeats an arm; of a repeat, the arms are equal with the chance `shared`."""
    found: dict[float, float] = {}
    pairs = list(product([0.0, 1.0], repeat=2))
    for outcome in product(pairs, repeat=4):
        likely = 1.0
        for (before, after), chance in zip(outcome, [chances[0]] * 2 + [chances[1]] * 2, strict=True):
            first = chance if before else 1 - chance
            likely *= first * (shared * (before == after) + (1 - shared) * (chance if after else 1 - chance))
        arms = [tuple(zip(*outcome[at : at + 2], strict=True)) for at in (0, 2)]
        test = within_case_permutation(pair_arms((arms[0][0], arms[0][1]), (arms[1][0], arms[1][1])))
        found[test.p_value] = found.get(test.p_value, 0.0) + likely
    for level in found:
        assert sum(likely for p_value, likely in found.items() if p_value <= level) <= level + 1e-12


def test_symmetric_changes_reach_no_level_more_often_than_it_says() -> None:
    sizes = (0.1, 0.2, 0.2, 0.5, 1 / 3, 0.0)
    values = [sign_flip(deltas).p_value for deltas in product(*((size, -size) for size in sizes))]
    for level in values:
        assert sum(value <= level for value in values) / len(values) <= level + 1e-12


def test_three_thirds_are_as_good_as_one() -> None:
    assert sign_flip([-1 / 3, -1 / 3, -1 / 3, 1.0]).p_value == 9 / 16
    assert sign_flip([0.1, 0.2, -0.3]).p_value == sign_flip([-0.1, -0.2, 0.3]).p_value == 5 / 8


def test_run_noise_is_a_case_with_different_scores() -> None:
    cases = pair_arms(((0.0, 0.0), (1.0, 1.0)), ((1.0, 1.0), (1.0, 1.0)), ((0.0,), (1.0,)))
    assert not has_run_noise(cases)
    assert within_case_permutation(cases).p_value == 1 / 12
    assert has_run_noise([*cases, *pair_arms(((0.0, 0.0), (1.0, 0.0)))])


def test_invalid_scores_are_errors() -> None:
    with pytest.raises(SetupError, match="'c0' has no repeat"):
        pair_arms(((), (1.0,)))
    with pytest.raises(SetupError, match="score nan"):
        pair_arms(((0.5,), (float("nan"),)))
    with pytest.raises(SetupError, match="no cases"):
        sign_flip([])


def test_lost_repeats_keep_their_place() -> None:
    """Of four repeats, the second was lost, so the first two of the case are one."""
    case = PairedScores(case_id="c", before=(0.0, 0.25, 0.5), after=(1.0, 0.75, 0.5), numbers=(0, 2, 3))
    late = PairedScores(case_id="d", before=(0.0,), after=(1.0,), numbers=(3,))
    assert (case.repeats, case.repeats_made) == (3, 4)
    assert (case.first(2).before, case.first(2).after) == ((0.0,), (1.0,))
    assert case.first(3).after == (1.0, 0.75)
    assert [each.case_id for each in select_first([case, late], 2)] == ["c"], "the other lost both"
    assert select_first([case, late], 4) == [case, late]


def test_numbers_of_repeats_belong_to_scores() -> None:
    with pytest.raises(SetupError, match="give one for each"):
        PairedScores(case_id="c", before=(0.0, 1.0), after=(1.0, 1.0), numbers=(0,))
