"""How each case changed between the baseline and the accepted profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.evaluation.result import CaseResult, CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.runlog.results import RunResult
from promptiter.runs.round_summary import find_candidate, merge_phase

CaseEffect: TypeAlias = Literal["new fail", "down", "new pass", "up", "same", "unscored"]
"""What a change did to a case, bad news first. `up` and `down`: the score changed, and it passes or fails as before."""

EFFECTS: tuple[CaseEffect, ...] = ("new fail", "down", "new pass", "up", "unscored", "same")
TEST_SET = "test set"
LIKE_ZERO = 1e-9
"""A difference of two means of equal scores may not be exactly 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSide:
    """A case under one profile. `score` is its mean over metrics and repeats; `reasons` say what fails, by metric.

    Output, error and trace are those of the first run that failed, otherwise of the first run.
    """

    score: float | None
    passed: bool
    reasons: tuple[str, ...] = ()
    output: str = ""
    error: str = ""
    trace_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """One case before and after. None: it was not run under that profile."""

    case_id: str
    eval_set: str
    effect: CaseEffect
    before: CaseSide | None
    after: CaseSide | None


def list_case_changes(result: RunResult) -> tuple[CaseChange, ...]:
    """The validation cases, then those of the test set if it was run: in each the ones that got worse first."""
    names = {"two_sets": "validation", "one_set": "cases", "scorer": "scorer"}
    searched = _compare(result.baseline, find_candidate(result), names[result.shape])
    before, after = (merge_phase(result, "test", each) for each in (result.initial_profile, result.working_profile))
    return (*searched, *_compare(before, after, TEST_SET))


def _compare(before: Evaluation | None, after: Evaluation | None, name: str) -> Sequence[CaseChange]:
    if before is None:
        return ()
    old = {case.case_id: case for case in before.cases}
    new = {case.case_id: case for case in after.cases} if after is not None else {}
    changes = [
        CaseChange(
            case_id=case_id,
            eval_set=name,
            effect=_judge(old.get(case_id), new.get(case_id)),
            before=_describe(before, old.get(case_id)),
            after=_describe(after, new.get(case_id)),
        )
        for case_id in dict.fromkeys((*old, *new))
    ]
    return sorted(changes, key=lambda each: EFFECTS.index(each.effect))


def _judge(before: CaseResult | None, after: CaseResult | None) -> CaseEffect:
    if before is None or after is None:
        return "same"
    if before.passed != after.passed:
        return "new pass" if after.passed else "new fail"
    if before.score is None or after.score is None:
        return "unscored"
    gain = after.score - before.score
    return "same" if abs(gain) < LIKE_ZERO else "up" if gain > 0 else "down"


def _describe(evaluation: Evaluation | None, case: CaseResult | None) -> CaseSide | None:
    if evaluation is None or case is None:
        return None
    rows = evaluation.rows_by_case[case.case_id]
    shown = next((row for row in rows if not row.passed), rows[0])
    return CaseSide(
        score=case.score,
        passed=case.passed,
        reasons=_explain(shown),
        output=shown.output,
        error="" if shown.error is None else str(shown.error),
        trace_digest=next(iter(shown.trace_digests), ""),
    )


def _explain(row: CaseRow) -> tuple[str, ...]:
    return tuple(_give_reason(score) for score in row.scores if not score.passed)


def _give_reason(score: Score) -> str:
    reason = score.error or score.reason or f"{score.value:.3f} is below {score.threshold:g}"
    return f"{score.metric}: {reason.removeprefix(f'{score.metric}: ')}"
