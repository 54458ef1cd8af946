from __future__ import annotations

from dataclasses import replace

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.runlog.results import RunResult
from promptiter.runs.report.case_changes import CaseChange, list_case_changes
from tests.worlds import desk
from traces import Failure

BEFORE = {"fixed": 0.0, "broken": 1.0, "better": 0.2, "worse": 0.4, "same": 0.5, "lost": 0.5}
AFTER = {"fixed": 1.0, "broken": 0.5, "better": 0.4, "worse": 0.3, "same": 0.5, "lost": None}


def evaluate(scores: dict[str, float | None] | dict[str, float], profile: str) -> Evaluation:
    rows = [
        CaseRow(
            case_id=case_id,
            scores=() if value is None else (Score(metric="m", value=value, reason=f"it is {value}"),),
            error=Failure("TimeoutError", "too slow") if value is None else None,
            output=f"{profile} {case_id}",
        )
        for case_id, value in scores.items()
    ]
    return Evaluation(eval_set_id="v", profile_digest=profile, rows=tuple(rows), thresholds={"m": 1.0})


def compare() -> dict[str, CaseChange]:
    result: RunResult = desk.engine(desk.DRAFT).run_sync(desk.request(final_test=None))
    accepted = evaluate(AFTER, result.working_profile.digest)
    changed = replace(result, baseline=evaluate(BEFORE, "old"), accepted=accepted, evaluations=())
    return {each.case_id: each for each in list_case_changes(changed)}


def test_each_case_is_compared_and_those_that_got_worse_come_first() -> None:
    assert [(each.case_id, each.effect) for each in compare().values()] == [
        ("broken", "new fail"),
        ("worse", "down"),
        ("fixed", "new pass"),
        ("better", "up"),
        ("lost", "unscored"),
        ("same", "same"),
    ]


def test_a_side_has_the_reasons_of_its_failure_or_its_error() -> None:
    found = compare()
    broken, lost = found["broken"], found["lost"]
    assert broken.before is not None
    assert broken.after is not None
    assert (broken.before.reasons, broken.after.reasons) == ((), ("m: it is 0.5",))
    assert lost.after is not None
    assert (lost.after.error, lost.after.score) == ("TimeoutError: too slow", None)


def test_a_candidate_that_was_not_adopted_is_compared_with_the_baseline() -> None:
    adopted = desk.engine(desk.DRAFT).run_sync(desk.request())
    refused = replace(adopted, accepted_profile=adopted.initial_profile, accepted=adopted.baseline)
    assert {each.effect for each in list_case_changes(refused)} == {"up"}
