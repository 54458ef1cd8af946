from __future__ import annotations

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.penalties import NO_PENALTIES, Penalties
from promptiter.evaluation.result import CaseRow, Evaluation, Measured
from promptiter.evaluation.score import Score
from promptiter.policies.pairing import pair_scores
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.payloads import EvaluationFinished
from traces import Usage


def build(*runs: tuple[str, int, float, float | None, float], penalties: Penalties) -> Evaluation:
    """An evaluation of runs: case, repeat, score, dollars, seconds."""
    rows = tuple(
        CaseRow(
            case_id=case_id,
            repeat=repeat,
            scores=(Score(metric="m", value=score),),
            usage=Usage(cost_usd=cost),
            measured=Measured(duration_s=seconds),
        )
        for case_id, repeat, score, cost, seconds in runs
    )
    return Evaluation(eval_set_id="s", profile_digest="p", rows=rows, thresholds={"m": 1.0}, penalties=penalties)


RUNS = (("a", 0, 0.5, 0.1, 2.0), ("a", 1, 0.5, 0.3, 4.0), ("b", 0, 1.0, 0.2, 1.0), ("b", 1, 1.0, 0.2, 1.0))


def test_the_loss_contains_the_cost_of_a_sweep_and_the_mean_latency() -> None:
    found = build(*RUNS, penalties=Penalties(cost_per_usd=0.05, latency_per_sec=0.001))
    assert found.weighted_loss == pytest.approx(0.25 + 0.05 * 0.4 + 0.001 * 2.0)
    assert (found.mean_score, found.pass_rate) == (0.75, 0.5)


def test_each_repeat_is_compared_with_its_own_penalty() -> None:
    cheap = build(("a", 0, 0.5, 0.1, 1.0), penalties=Penalties(cost_per_usd=0.5))
    dear = build(("a", 0, 0.5, 0.3, 1.0), penalties=Penalties(cost_per_usd=0.5))
    [pair] = pair_scores(cheap, dear, "weighted_loss")
    assert (pair.before[0], pair.after[0]) == pytest.approx((-0.55, -0.65))


def test_an_unknown_cost_adds_nothing() -> None:
    assert build(("a", 0, 0.5, None, 1.0), penalties=Penalties(cost_per_usd=1)).weighted_loss == 0.5


def test_without_penalties_the_loss_is_between_0_and_1() -> None:
    assert build(("a", 0, 2.0, 9.0, 9.0), penalties=NO_PENALTIES).weighted_loss == 0.0


def test_a_negative_penalty_is_refused() -> None:
    with pytest.raises(SetupError, match="latency_per_sec is -1"):
        Penalties(latency_per_sec=-1)


def test_the_record_of_an_evaluation_keeps_its_penalties() -> None:
    found = build(*RUNS, penalties=Penalties(latency_per_sec=0.5))
    again = from_plain(EvaluationFinished, to_plain(EvaluationFinished.of(found, 1)))
    assert again.penalties == found.penalties
