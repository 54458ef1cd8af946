from __future__ import annotations

import math
from random import Random
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.final_test import BLOCKS, decide_for_these_cases, plan_blocks
from promptiter.evaluation.stats.noise import REPEATS, CaseRunCost, NoiseReport, collect_case_scores
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.llm.ledger import Spending
from promptiter.policies.evidence import Evidence
from traces import Failure, Usage

OBJECTIVES: tuple[Objective, ...] = ("mean_score", "pass_rate", "weighted_loss")
Values = list[float | None]


def evaluation(cases: dict[str, Values], *, other: dict[str, Values] | None = None, most: float = 1.0) -> Evaluation:
    """One metric, and a second one of the values in `other`; None could not be run."""
    rows = []
    for case_id, values in cases.items():
        for repeat, value in enumerate(values):
            scores = [Score(metric="m", value=value, threshold=0.5)]
            if other is not None:
                scores.append(Score(metric="n", value=other[case_id][repeat], threshold=0.5))
            error = Failure("Oops", "down") if value is None else None
            usage = Usage(input_tokens=90, output_tokens=10, cost_usd=0.01)
            rows.append(CaseRow(case_id=case_id, repeat=repeat, scores=tuple(scores), error=error, usage=usage))
    names = ["m"] if other is None else ["m", "n"]
    return Evaluation(
        eval_set_id="set",
        profile_digest="",
        rows=tuple(rows),
        thresholds=dict.fromkeys(names, 0.5),
        max_errored_fraction=most,
        weights={"m": 3.0},
    )


def report(cases: dict[str, Values], objective: Objective = "mean_score", **options: float) -> NoiseReport:
    return NoiseReport(evaluation=evaluation(cases, **options), objective=objective)  # type: ignore[arg-type]


def coins(count: int, random: Random, *, repeats: int = REPEATS) -> dict[str, Values]:
    chances = [random.betavariate(0.6, 0.4) for _ in range(count)]
    return {f"c{at:03}": [float(random.random() < q) for _ in range(repeats)] for at, q in enumerate(chances)}


@pytest.mark.parametrize(
    ("objective", "figures"),
    [("mean_score", (0.6, 0.0, 0.45)), ("pass_rate", (1.0, 0.0, 0.0)), ("weighted_loss", (-0.4, -1.0, -0.55))],
)
def test_each_repeat_has_its_value_and_an_unscored_one_the_worst(
    objective: Objective, figures: tuple[float, ...]
) -> None:
    found = evaluation({"a": [0.6, None, 0.5]}, other={"a": [0.6, None, 0.3]})
    [case] = collect_case_scores(found, objective)
    assert case.figures == pytest.approx(figures)
    assert (case.unscored, case.passed, case.flips, case.is_settled) == (1, (True, False, False), True, False)


def test_a_case_with_an_unscored_metric_is_unscored() -> None:
    [case] = collect_case_scores(evaluation({"a": [0.6, 0.6]}, other={"a": [0.6, None]}))
    assert (case.figures, case.unscored) == ((0.6, 0.0), 1)


def test_the_worst_value_is_the_lowest_score_if_scores_fall_below_0() -> None:
    found = report({"a": [-2.0, None], "b": [1.0, 1.0]})
    assert found.cases[0].figures == (-2.0, -2.0)


@given(
    st.lists(st.lists(st.none() | st.sampled_from([0.0, 0.25, 1.0]), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_gains_between_repeats_are_those_that_a_decision_sees(sampled: list[Values]) -> None:
    """A repeat against the next, case by case, as a policy would see two profiles with one repeat each."""
    cases = {f"c{at}": values for at, values in enumerate(sampled)}
    if any(all(values[repeat] is None for values in sampled) for repeat in range(2)):
        return  # no figure, and so no gain
    before, after = (evaluation({name: [values[repeat]] for name, values in cases.items()}) for repeat in range(2))
    figures = [case.figures for case in report(cases).cases]
    gain = fmean(after - before for before, after, _ in figures)
    assert Evidence(accepted=before, candidate=after).gain == pytest.approx(gain)


def test_settled_flipping_and_noisiest_cases_are_named() -> None:
    found = report({"a": [1, 1, 1, 1], "b": [0.6, 0.7, 0.6, 0.7], "c": [1, 0, 0, 1], "d": [0, 0, 0, 0]})
    assert [case.case_id for case in found.settled] == ["a", "d"]
    assert [case.case_id for case in found.flipping] == ["c"]
    assert [case.case_id for case in found.noisiest] == ["c", "b"]
    assert found.noise.variance == pytest.approx((variance([0.6, 0.7, 0.6, 0.7]) + variance([1, 0, 0, 1])) / 4)
    assert found.gain == pytest.approx(0.0)


def test_the_gain_of_an_a_a_run_is_of_the_last_half_over_the_first() -> None:
    found = report({"a": [0, 0, 1, 1, 1], "b": [0, 1, 0, 1, 1]})
    assert found.repeats_in_half == 2
    assert found.gain == pytest.approx((1 + 0.5) / 2)


def test_the_noise_floor_follows_the_normal_distribution() -> None:
    found = report(coins(30, Random(1)))
    assert found.floor(3) == pytest.approx(norm.ppf(0.95, scale=found.noise.std * math.sqrt(2 / (30 * 3))))
    assert found.floor() == pytest.approx(found.floor(3) / math.sqrt(2))


@pytest.mark.slow
def test_a_a_runs_exceed_their_floor_in_about_1_of_20() -> None:
    random, above = Random(2), 0
    for _ in range(400):
        found = report(coins(20, random))
        above += found.gain > found.floor(found.repeats_in_half)
    assert above / 400 == pytest.approx(0.05, abs=0.03)


@pytest.mark.long
def test_the_smallest_gain_is_shown_in_four_of_five() -> None:
    """Cases are measured once; then the exact test decides about candidates that fix a share of the failures."""
    random, shown, runs, count = Random(3), 0, 400, 24
    chances = [random.betavariate(0.6, 0.4) for _ in range(count)]

    def arm(chance: float, repeats: int = sum(block.repeats for block in BLOCKS)) -> tuple[float, ...]:
        return tuple(float(random.random() < chance) for _ in range(repeats))

    # 60 repeats, so that what is tested is the planning and not the luck of six repeats
    found = report({f"c{at:02}": list(arm(q, 60)) for at, q in enumerate(chances)})
    gain = found.smallest_gain()
    assert gain is not None
    fixed = gain / (1 - fmean(chances))
    for _ in range(runs):
        pairs = [
            PairedScores(case_id=str(at), before=arm(q), after=arm(q + fixed * (1 - q))) for at, q in enumerate(chances)
        ]
        shown += decide_for_these_cases(pairs).is_shown
    assert shown / runs == pytest.approx(0.8, abs=0.07)


@pytest.mark.slow
def test_more_cases_show_smaller_gains() -> None:
    found = report(coins(12, Random(4)))
    gains = [found.smallest_gain(times=times) for times in (1, 2, 4)]
    assert None not in gains
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]
    reach = found.estimate_required_size(0.1)
    assert not reach.is_within
    assert reach.cases is not None
    assert reach.cases > 12
    assert reach.repeats is not None
    assert reach.repeats > REPEATS
    assert found.estimate_required_size(0.35).is_within
    assert found.estimate_required_size(0.35).power == found.power(0.35)


def test_a_gain_beyond_the_best_value_cannot_be_shown() -> None:
    reach = report({"a": [1, 1, 0.9], "b": [1, 0.9, 1]}).estimate_required_size(0.5)
    assert (reach.power, reach.cases, reach.repeats) == (0.0, None, None)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_noise_a_gain_must_exceed_unseen_failures(objective: Objective) -> None:
    found = report({"a": [0.1] * 6, "b": [0.7] * 6, "c": [0.1] * 6, "d": [0.1] * 6}, objective)
    assert (found.noise.variance, found.gain, found.floor()) == (0.0, 0.0, 0.0)
    smallest = found.smallest_gain()
    assert smallest is not None
    assert smallest > 0.05
    assert found.estimate_required_size(smallest).is_within
    assert not found.estimate_required_size(smallest - 0.01).is_within
    assert found.smallest_gain(scope="new cases") is None  # four cases never do


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_largest_gain_is_up_to_the_best_value_of_the_objective(objective: Objective) -> None:
    found = report({"a": [0.5, 1.0], "b": [0.0, 0.5]}, objective)
    means = {"mean_score": 0.5, "pass_rate": 0.75, "weighted_loss": -0.5}
    best = 0.0 if objective == "weighted_loss" else 1.0
    assert (found.noise.mean, found.noise.room) == pytest.approx((means[objective], best - means[objective]))


def test_the_problem_of_an_unreliable_evaluation_says_what_to_do() -> None:
    problem = report({"a": [None, 1], "b": [1, 1]}, most=0.2).problem
    assert problem == (
        "25% of the runs or scores failed, the limit is 20%: Oops: down; fix the agent, the metric or the cases, "
        "then measure again"
    )
    assert report({"a": [None, 1], "b": [1, 1]}, most=0.25).problem is None
    assert "none of the 1 cases could be scored" in str(report({"a": [None, None]}, "pass_rate").problem)


def test_noise_needs_more_than_one_repeat() -> None:
    assert "needs at least 2 repeats to measure noise, and some have 1" in str(report({"a": [1], "b": [1, 1]}).problem)
    assert "some have 0" in str(report({}).problem)


def test_the_cost_of_a_case_run_is_what_was_paid_or_the_original_cost() -> None:
    found = evaluation({"a": [1, 1]})
    spent = Spending(calls=6, input_tokens=500, output_tokens=100, cost_usd=0.3)
    paid = NoiseReport(evaluation=found, spent=spent, paid_runs=2).case_run_cost
    assert paid == CaseRunCost(tokens=300, usd=0.15)
    assert NoiseReport(evaluation=found).case_run_cost == CaseRunCost(tokens=100, usd=0.01)
    unpriced = Spending(calls=6, input_tokens=500, cost_usd=0.3, unpriced_calls=1)
    assert NoiseReport(evaluation=found, spent=unpriced, paid_runs=2).case_run_cost == CaseRunCost(tokens=250, usd=None)
    uncounted = Spending(calls=6, input_tokens=500, cost_usd=0.3, uncounted_calls=1)
    assert NoiseReport(evaluation=found, spent=uncounted, paid_runs=2).case_run_cost == CaseRunCost(
        tokens=None, usd=0.15
    )
    assert NoiseReport(evaluation=found).final_test_runs(cases=8) == 8 * 16 * 2
    assert NoiseReport(evaluation=found, blocks=plan_blocks(0.1, repeats=3)).final_test_runs(cases=8) == 8 * 9 * 2
