from __future__ import annotations

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.evaluation.unscored import describe_unscored
from traces import Failure

SCORED = Score(metric="own", value=1.0, threshold=1.0)


def raising(error: str, *, metric: str = "own") -> Score:
    return Score(metric=metric, value=None, threshold=1.0, error=error)


def evaluate(*rows: CaseRow) -> Evaluation:
    return Evaluation(eval_set_id="v", profile_digest="p", rows=rows, thresholds={"own": 1.0})


def test_a_metric_that_raises_is_named_with_the_count_and_its_error() -> None:
    bad = CaseRow(case_id="a", scores=(raising("MetricError: metric 'own' raised KeyError: 'y'"),))
    good = [CaseRow(case_id=name, scores=(SCORED,)) for name in "bcd"]
    assert describe_unscored(evaluate(bad, *good), noun="validation case") == (
        "1 of 4 validation cases is unscored: metric 'own' raised KeyError: 'y'",
    )
    assert describe_unscored(evaluate(*good)) == ()


def test_several_errors_of_one_metric_are_one_sentence() -> None:
    errors = ["own needs a reference and case 'a' has none", "no\n answer", "no\n answer"]
    rows = [CaseRow(case_id=str(number), scores=(raising(error),)) for number, error in enumerate(errors)]
    assert describe_unscored(evaluate(*rows)) == (
        "3 of 3 cases are unscored: metric 'own': no answer (and 1 other error)",
    )


def test_a_run_that_failed_counts_for_the_agent_and_not_for_its_metrics() -> None:
    error = Failure("KeyError", "'y'", where="bot.py:12")
    failed = CaseRow(case_id="a", repeat=1, error=error, scores=(raising("the run failed: KeyError: 'y'"),))
    fine = CaseRow(case_id="a", scores=(SCORED,))
    assert describe_unscored(evaluate(fine, failed)) == (
        "1 of 2 case runs is unscored: the agent failed with KeyError: 'y' (bot.py:12)",
    )
    assert describe_unscored(evaluate(failed), noun="scorer") == (
        "1 of 1 scorer is unscored: the scorer failed with KeyError: 'y' (bot.py:12)",
    )


def test_a_long_error_is_shortened_in_its_middle_and_keeps_what_is_at_its_end() -> None:
    trace = "at Module._load (node:internal/modules/cjs/loader:1210) " * 20
    error = Failure("CommandError", f"exit code 1: {trace}; its last failed model call: no model 'tinny'")
    shown = evaluate(*(CaseRow(case_id=name, error=error) for name in "ab")).commonest_errors
    assert shown.startswith("CommandError: exit code 1: at Module._load")
    assert shown.endswith("; its last failed model call: no model 'tinny' (×2)")
    assert len(shown) < 770
    short = Failure("CommandError", "exit code 1: " + "x" * 500)
    assert evaluate(CaseRow(case_id="a", error=short)).commonest_errors == short.text
