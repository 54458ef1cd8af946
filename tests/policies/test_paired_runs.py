from __future__ import annotations

import pytest

from promptiter.evaluation.result import CaseRow, Evaluation, Measured
from promptiter.evaluation.score import Score
from promptiter.policies.paired_runs import ArmMeasured, ArmRuns, PairedRuns, count_runs, describe_runs
from promptiter.policies.pairing import leave_out_lost_pairs, pair_scores
from traces import Failure

LIMITED, BROKE = Failure("RateLimitedError", "429"), Failure("AgentError", "broke")


def make_row(
    case_id: str, repeat: int, *, value: float | None = 1.0, error: Failure | None = None, is_cached: bool = False
) -> CaseRow:
    scores = () if error is not None else (Score(metric="own", value=value, error=None if value is not None else "no"),)
    return CaseRow(
        case_id=case_id,
        repeat=repeat,
        scores=scores,
        error=error,
        measured=Measured(origin="cache" if is_cached else "executed"),
    )


def evaluate(*rows: CaseRow) -> Evaluation:
    return Evaluation(eval_set_id="cases", profile_digest="", rows=rows, thresholds={"own": 0.5})


def test_runs_that_failed_were_lost_or_came_from_the_cache_are_counted() -> None:
    judged_down = Score(metric="own", value=None, error="the judge is down", is_outage=True)
    arm = evaluate(
        make_row("a", 0),
        make_row("a", 1, error=BROKE),
        make_row("b", 0, error=LIMITED),
        make_row("b", 1, is_cached=True),
        make_row("c", 0, value=None),
        CaseRow(case_id="c", repeat=1, scores=(judged_down,)),
    )
    assert count_runs(arm) == ArmRuns(runs=6, failed=2, lost=2)
    assert count_runs(arm).measured == ArmMeasured(from_cache=1)


def test_a_run_that_one_profile_lost_is_left_out_under_both() -> None:
    before = evaluate(make_row("a", 0), make_row("a", 1, error=LIMITED), make_row("a", 2, error=BROKE))
    after = evaluate(*(make_row("a", repeat) for repeat in range(3)))
    [scores] = pair_scores(*leave_out_lost_pairs(before, after))
    assert (scores.before, scores.after) == ((1.0, 0.0), (1.0, 1.0)), "a run that the agent broke counts as 0"


def test_repeats_after_a_lost_one_keep_their_numbers() -> None:
    runs = [(case, repeat) for case in "ab" for repeat in range(3)]
    arms = [
        evaluate(*(make_row(*run, error=LIMITED if run == lost else None) for run in runs))
        for lost in (("a", 1), ("b", 0))
    ]
    scores = pair_scores(*leave_out_lost_pairs(*arms))
    assert [(case.case_id, case.numbers) for case in scores] == [("a", (0, 2)), ("b", (1, 2))]


def test_a_case_that_lost_all_its_runs_is_left_out() -> None:
    before = evaluate(make_row("a", 0), make_row("b", 0, error=LIMITED))
    after = evaluate(make_row("a", 0), make_row("b", 0))
    assert [case.case_id for case in pair_scores(*leave_out_lost_pairs(before, after))] == ["a"]


def test_nothing_is_said_about_runs_that_all_count() -> None:
    arm = ArmRuns(runs=20)
    assert describe_runs([PairedRuns(before=arm, after=arm, pairs=20, cases=10)]) == ()


@pytest.mark.parametrize(
    ("before", "after", "is_uneven"), [(0, 5, False), (0, 6, True), (6, 0, True), (5, 9, False), (4, 16, True)]
)
def test_profiles_differ_in_lost_runs_if_chance_rarely_explains_it(before: int, after: int, is_uneven: bool) -> None:
    runs = PairedRuns(before=ArmRuns(runs=60, lost=before), after=ArmRuns(runs=60, lost=after), pairs=40)
    said = describe_runs([runs])
    assert f"{before} of 60 runs of the initial profile and {after} of 60 of the accepted one were lost" in said[0]
    assert any("outages hit one profile more often" in each for each in said) == is_uneven
