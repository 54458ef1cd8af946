from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.score import Score
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.policies.paired_gain import PairedGain

Repeats = Sequence[Sequence[float]]


def of(cases: Repeats) -> Evaluation:
    rows = tuple(
        CaseRow(case_id=f"c{n:03}", repeat=repeat, scores=(Score(metric="m", value=value, threshold=0.5),))
        for n, repeats in enumerate(cases)
        for repeat, value in enumerate(repeats)
    )
    return Evaluation(eval_set_id="v", profile_digest="p", rows=rows, thresholds={"m": 0.5})


def evidence(before: Repeats, after: Repeats, *, tried: int = 1, objective: Objective = "mean_score") -> Evidence:
    return Evidence(accepted=of(before), candidate=of(after), candidates_tried=tried, objective=objective)


def decide_on(policy: PairedGain, seen: Evidence) -> AcceptanceDecision:
    answer = policy.decide(seen)
    assert isinstance(answer, AcceptanceDecision)
    return answer


NOISE = [[0.0, 1.0]] * 10
BETTER = [[0.0, 0.0]] * 20
RIGHT = [[1.0, 1.0]] * 20


@given(alpha=st.floats(0.001, 0.5), candidates=st.integers(1, 2_000))
def test_the_shares_of_any_number_of_candidates_add_up_to_at_most_alpha(alpha: float, candidates: int) -> None:
    policy = PairedGain(alpha)
    shares = [policy.share(number) for number in range(1, candidates + 1)]
    assert sum(shares) == pytest.approx(alpha * candidates / (candidates + 1))
    assert sum(shares) <= alpha
    assert all(one > other > 0 for one, other in pairwise(shares))


def test_a_gain_beyond_noise_is_accepted_with_figures_in_the_reason() -> None:
    answer = decide_on(PairedGain(), evidence(NOISE + BETTER, NOISE + RIGHT))
    assert answer.accepted
    assert answer.reason == (
        "gain +0.667, p = 2.1e-10 <= 0.00416667 after 2 repeats; candidate 1 may spend 0.025 of alpha = 0.05"
    )


def test_the_p_value_is_that_of_scipy() -> None:
    before, after = [0.1, 0.4, 0.2, 0.3], [0.35, 0.5, 0.6, 0.25]
    oracle = permutation_test(
        (np.array(after), np.array(before)),
        lambda one, other, axis: np.mean(one, axis=axis) - np.mean(other, axis=axis),
        vectorized=True,
        alternative="greater",
        n_resamples=10_000,
    )
    answer = decide_on(PairedGain(0.5, (4,)), evidence([before], [after]))
    assert f"p = {oracle.pvalue:.2g} " in answer.reason
    assert answer.accepted == (oracle.pvalue <= 0.25)


def test_a_later_candidate_needs_stronger_evidence() -> None:
    seen = [evidence(NOISE + BETTER[:5], NOISE + RIGHT[:5], tried=tried) for tried in (1, 20)]
    assert decide_on(PairedGain(repeats=(2,)), seen[0]).accepted
    answer = decide_on(PairedGain(repeats=(2,)), seen[1])
    assert not answer.accepted
    assert "> 0.000119048 after 2 repeats; candidate 20 may spend 0.00012 of alpha = 0.05" in answer.reason


def test_a_candidate_without_a_gain_is_rejected_at_once() -> None:
    answer = decide_on(PairedGain(), evidence(NOISE, NOISE))
    assert not answer.accepted
    assert answer.reason.startswith("no gain; stopped after block 1 of 3")


@pytest.mark.parametrize(("repeats", "wanted"), [(1, 1), (2, 2), (3, 1), (4, 2), (5, 1)])
def test_further_blocks_are_requested_for_all_cases(repeats: int, wanted: int) -> None:
    cases = [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0][:repeats]] * 9
    answer = PairedGain().decide(evidence([*cases, [0.0] * repeats], [*cases, [1.0] * repeats]))
    assert isinstance(answer, MoreEvidence)
    assert (answer.repeats, answer.cases, answer.on) == (wanted, (), "validation")


def test_at_the_last_look_there_is_a_decision() -> None:
    cases = [[0.0, 1.0] * 3] * 9
    answer = decide_on(PairedGain(), evidence([*cases, [0.0] * 6], [*cases, [1.0] + [0.0] * 5]))
    assert not answer.accepted
    assert " after 6 repeats; " in answer.reason


@given(extra=st.lists(st.floats(0, 1), min_size=1, max_size=4), data=st.data())
def test_repeats_beyond_a_look_are_not_used(extra: list[float], data: st.DataObject) -> None:
    scores = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2)
    before, after = (data.draw(st.lists(scores, min_size=5, max_size=5)) for _ in "ab")
    first = PairedGain(0.9).decide(evidence(before, after))
    if isinstance(first, AcceptanceDecision):
        worse = [[*case, *extra] for case in before]
        again = decide_on(PairedGain(0.9), evidence(worse, [[*case, *[0.0] * len(extra)] for case in after]))
        assert (again.accepted, again.reason) == (first.accepted, first.reason)


def test_repeats_without_noise_are_not_evidence() -> None:
    answer = PairedGain().decide(evidence([[0.0, 0.0]], [[1.0, 1.0]]))
    assert isinstance(answer, MoreEvidence)
    assert "every case scored the same in 2 repeats" in answer.reason


def test_a_crash_is_the_worst_and_cannot_win() -> None:
    crashed = evidence([[1.0, 0.0]] * 6, [[1.0, 0.0]] * 6).candidate
    rows = tuple(
        CaseRow(case_id=row.case_id, repeat=row.repeat) if row.scores[0].value == 0.0 else row for row in crashed.rows
    )
    candidate = Evaluation(
        eval_set_id="v", profile_digest="p", rows=rows, thresholds={"m": 0.5}, max_errored_fraction=1.0
    )
    assert candidate.mean_score == 1.0
    seen = Evidence(accepted=of([[1.0, 0.0]] * 6), candidate=candidate)
    assert decide_on(PairedGain(), seen).reason.startswith("no gain")


@pytest.mark.slow
def test_candidates_that_change_nothing_are_rarely_accepted_in_a_whole_run() -> None:
    def repeats(chances: Sequence[float], random: Random) -> Repeats:
        return [[float(random.random() < chance) for _ in range(4)] for chance in chances]

    random, taken = Random(1), []
    for _ in range(25):
        chances = [random.random() for _ in range(20)]
        before = repeats(chances, random)
        answers = [
            decide_on(PairedGain(repeats=(2, 2)), evidence(before, repeats(chances, random), tried=number))
            for number in range(1, 9)
        ]
        taken.append(any(answer.accepted for answer in answers))
    assert fmean(taken) <= 0.05


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, True, "0.05", None])
def test_an_alpha_that_is_not_a_rate_is_refused(wrong: float) -> None:
    with pytest.raises(SetupError, match=r"give a false-positive rate above 0 and below 1, such as 0\.05"):
        PairedGain(wrong)


@pytest.mark.parametrize("wrong", [(), (0,), (2, -1), (1,) * 6, ("2",)])
def test_blocks_without_repeats_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(SetupError, match=r"give 1 to 5 blocks of at least 1 repeat, such as \(2, 2, 2\)"):
        PairedGain(repeats=wrong)
