from __future__ import annotations

import random
from typing import Any

import pytest

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.metric_noise import (
    Bound,
    MetricNoise,
    NoiseSplit,
    estimate_metric_noise,
    estimate_variances,
    find_bound,
    split_noise,
)
from promptiter.evaluation.stats.noise import NoiseReport


@pytest.mark.parametrize(
    ("cases", "agent_variance", "judge_variance"),
    [
        ([[[1, 3], [5, 7]]], 7.0, 2.0),  # squares 16 between (1 df), 4 within (2 df): (16 - 2) / 2
        ([[[0, 2], [1, 1]]], 0.0, 1.0),  # (0 - 1) / 2 is below 0
        ([[[1, 3], [6]]], pytest.approx(6.5), 2.0),  # squares 32/3 and 2, 1 df each, 4/3 judgements: (32/3 - 2) / (4/3)
        ([[[1, 3], [5, 7]], [[11, 13], [15, 17]]], 7.0, 2.0),  # differences between cases are not noise
        ([[[0.1] * 3, [0.1] * 3, [0.1] * 3]], 0.0, 0.0),
        ([[[0.1] * 3, [0.7] * 3]], pytest.approx(0.18), 0.0),
        ([[[1, 2]], [[], [3]]], None, 0.5),
        ([[[1], [2]]], None, None),
        ([], None, None),
    ],
)
def test_variances_are_those_worked_out_by_hand(cases: Any, agent_variance: Any, judge_variance: Any) -> None:
    assert estimate_variances(cases) == (agent_variance, judge_variance)


@pytest.mark.parametrize(("agent_sd", "judge_sd"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.0), (0.0, 0.2)])
def test_variances_of_a_simulation_are_recovered(agent_sd: float, judge_sd: float) -> None:
    rng = random.Random(5)
    cases = []
    for _ in range(1_500):
        level = rng.uniform(-10, 10)
        runs = [level + rng.gauss(0, agent_sd) for _ in range(3)]
        cases.append([[run + rng.gauss(0, judge_sd) for _ in range(rng.randint(1, 4))] for run in runs])
    agent_variance, judge_variance = estimate_variances(cases)
    assert agent_variance == pytest.approx(agent_sd**2, rel=0.1, abs=0.003)
    assert judge_variance == pytest.approx(judge_sd**2, rel=0.1)


@pytest.mark.parametrize(
    ("cases", "bound"),
    [
        ([[0, 0], [0]], "floor"),
        ([[1, 1], [1]], "ceiling"),
        ([[1, 1], [0, 0]], "either"),
        ([[1, 1], [0, 1]], None),  # a case with both has noise
        ([[0, 0], [0.5, 0.5]], None),  # a case in between could have shown noise
        ([[0, 0], []], "floor"),
        ([], None),
    ],
)
def test_scores_without_room_for_noise_are_found(cases: list[list[float]], bound: Bound | None) -> None:
    assert find_bound(cases, worst=0.0, best=1.0) == bound


def judgement(**scores: list[float | None]) -> Evaluation:
    """One judgement of two repeats of two cases, by the scores of each metric in this order."""
    runs = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    rows = tuple(
        CaseRow(
            case_id=case_id,
            repeat=repeat,
            scores=tuple(Score(metric=name, value=values[at], threshold=0.5) for name, values in scores.items()),
        )
        for at, (case_id, repeat) in enumerate(runs)
    )
    return Evaluation(eval_set_id="set", profile_digest="", rows=rows, thresholds=dict.fromkeys(scores, 0.5))


def test_each_metric_has_its_noise_its_mean_and_how_often_it_is_met() -> None:
    first = judgement(steady=[0.2, 0.2, 0.9, 0.9], judged=[0, 1, 1, 1], worst=[0, 0, 0, 0], best=[1, 1, 1, 1])
    again = judgement(steady=[0.2, 0.2, 0.9, 0.9], judged=[1, 0, 1, 1], worst=[0, 0, 0, 0], best=[1, 1, 1, 1])
    steady, judged, worst, best = estimate_metric_noise([first, again])
    assert steady == MetricNoise(metric="steady", agent_variance=0.0, judge_variance=0.0, mean=0.55, met=0.5)
    assert (judged.agent_variance, judged.judge_variance, judged.judge_share) == (0.0, 0.25, 1.0)
    assert (judged.met, judged.bound, judged.is_saturated, judged.is_never_met) == (0.75, None, False, False)
    assert (worst.agent_variance, worst.judge_variance, worst.bound, worst.is_never_met) == (None, None, "floor", True)
    assert (best.agent_variance, best.judge_variance, best.bound, best.is_saturated) == (None, None, "ceiling", True)


def test_a_mean_of_metrics_that_are_all_at_a_bound_says_nothing_about_noise() -> None:
    at_bounds = NoiseReport(evaluation=judgement(worst=[0, 0, 0, 0], best=[1, 1, 1, 1]))
    assert (at_bounds.bound, at_bounds.noise.mean) == ("either", 0.5)
    between = NoiseReport(evaluation=judgement(worst=[0, 0, 0, 0], graded=[0.9, 0.9, 0.9, 0.9]))
    assert between.bound is None


def test_the_noise_of_any_figure_is_split() -> None:
    first, again = judgement(m=[0, 0.4, 0, 0.4]), judgement(m=[0.2, 0.6, 0.2, None])
    split = split_noise([first, again], lambda row: row.scores[0].value)
    agent, judge = estimate_variances([[[0, 0.2], [0.4, 0.6]], [[0, 0.2], [0.4]]])
    assert split == NoiseSplit(agent_variance=agent, judge_variance=judge)
    assert NoiseSplit(agent_variance=0.3, judge_variance=0.1).judge_share == pytest.approx(0.25)
    assert NoiseSplit(agent_variance=0.0, judge_variance=0.0).judge_share is None
    assert NoiseSplit(agent_variance=None, judge_variance=0.1).judge_share is None
