from __future__ import annotations

from itertools import product
from random import Random
from statistics import fmean

import pytest

from promptiter.evaluation.stats.final_test import decide_for_these_cases
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer, decide_difference
from promptiter.evaluation.stats.permutation import PairedScores


def make_cases(
    seed: str, *, cases: int, repeats: int = 6, gain: float = 0.0, shared: float = 1.0
) -> list[PairedScores]:
    """Cases that pass by luck, which is shared by both arms of a repeat with this probability."""
    random = Random(seed)

    def sample(number: int) -> PairedScores:
        before, after = [], []
        for _ in range(repeats):
            luck = random.random()
            other = luck if random.random() < shared else random.random()
            before.append(float(luck < 0.5))
            after.append(float(other < 0.5 + gain))
        return PairedScores(case_id=f"{number}", before=tuple(before), after=tuple(after))

    return [sample(number) for number in range(cases)]


def swap(cases: list[PairedScores]) -> list[PairedScores]:
    return [PairedScores(case_id=case.case_id, before=case.after, after=case.before) for case in cases]


def test_the_p_value_is_the_share_of_sign_flips_with_such_a_gain() -> None:
    random = Random(3)
    for _ in range(20):
        before, after = ([[random.choice((0.0, 0.5, 1.0)) for _ in range(2)] for _ in range(3)] for _ in range(2))
        before[0], after[0] = [0.0, 1.0], [0.0, 1.0]  # has noise, and no difference
        pairs = zip(before, after, strict=True)
        cases = [
            PairedScores(case_id=f"{at}", before=tuple(one), after=tuple(two)) for at, (one, two) in enumerate(pairs)
        ]
        changes = [two - one for case in cases for one, two in zip(case.before, case.after, strict=True)]
        if sum(changes) <= 0:
            continue
        flips = [
            sum(sign * each for sign, each in zip(signs, changes, strict=True)) for signs in product((-1, 1), repeat=6)
        ]
        look = decide_difference(cases).look
        assert look is not None
        assert look.p_value == pytest.approx(fmean(total >= sum(changes) - 1e-9 for total in flips))


@pytest.mark.parametrize(("gain", "answer"), [(0.3, "improved"), (-0.3, "worse"), (0.0, "within_noise")])
def test_a_clear_difference_is_seen_in_either_direction(gain: float, answer: ComparisonAnswer) -> None:
    cases = make_cases("clear", cases=30, gain=gain, shared=0.5)
    opposite = {"improved": "worse", "worse": "improved"}.get(answer, answer)
    assert decide_difference(cases).answer == answer
    assert decide_difference(swap(cases)).answer == opposite


def test_noise_that_both_profiles_share_does_not_hide_a_gain() -> None:
    cases = make_cases("shared", cases=12, gain=0.15)
    assert not decide_for_these_cases(cases).is_shown
    assert decide_difference(cases).answer == "improved"


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_profiles_that_behave_alike_rarely_look_different(shared: float) -> None:
    answers = [decide_difference(make_cases(f"{seed}", cases=12, shared=shared)).answer for seed in range(300)]
    assert sum(answer != "within_noise" for answer in answers) <= 21  # 15 expected at most; 22 or more in 4% of tests


def test_another_block_is_asked_for_until_a_look_decides() -> None:
    cases = make_cases("blocks", cases=12, repeats=2, gain=0.05, shared=0.5)
    found = decide_difference(cases)
    assert (found.answer, found.needed_repeats) == ("undecided", 2)
    few = decide_difference(make_cases("blocks", cases=12, repeats=1))
    assert (few.answer, few.look, few.needed_repeats) == ("undecided", None, 1)
    equal = [PairedScores(case_id="a", before=(1.0, 0.0), after=(1.0, 0.0))]
    assert decide_difference(equal).answer == "within_noise"


def test_a_difference_without_noise_needs_all_repeats_if_only_one_case_changed() -> None:
    def make(repeats: int) -> list[PairedScores]:
        same = [PairedScores(case_id=f"{n}", before=(1.0,) * repeats, after=(1.0,) * repeats) for n in range(5)]
        return [*same, PairedScores(case_id="x", before=(0.0,) * repeats, after=(1.0,) * repeats)]

    assert decide_difference(make(2)).answer == "undecided"
    assert decide_difference(make(6)).answer == "improved"


def make_rarely_failing(seed: int) -> list[PairedScores]:
    """A constant 0.95 against 1 in 95% of runs and 0 in the others; both fail if an earlier step does."""
    random = Random(seed)

    def sample(number: int) -> PairedScores:
        works = [random.random() < 0.7 for _ in range(6)]
        after = tuple(float(each and random.random() < 0.95) for each in works)
        return PairedScores(case_id=f"{number}", before=tuple(0.95 * each for each in works), after=after)

    return [sample(number) for number in range(12)]


@pytest.mark.slow
def test_a_profile_that_fails_rarely_is_not_taken_for_a_better_one() -> None:
    answers = [decide_difference(make_rarely_failing(seed)).answer for seed in range(100)]
    assert answers.count("improved") <= 9  # 2.5 expected at most
