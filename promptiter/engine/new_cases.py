"""What a run shows about new cases, by the results of a test set or of its validation cases, and why if it cannot.

Cases with the same input count as one, with the mean of their scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.final_test import ArmResults
from promptiter.engine.outline import OutlinedSearch
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import digest_input
from promptiter.evaluation.stats.final_test import FinalTestResult
from promptiter.evaluation.stats.new_cases import FEWEST_NEW_CASES, explain_too_few_new_cases, merge_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.policies.goal_test import decide_for_goal_on_new_cases, pair_amounts
from promptiter.policies.goals import Goal
from promptiter.runlog.case_uses import CaseUse, count_seen_cases, list_case_digests
from promptiter.runlog.payloads import ValidationReader
from promptiter.runlog.results import RunShape
from promptiter.wording import plural

PROMISING = 10
"""Further blocks are run for new cases if the p-value so far is at most this multiple of alpha."""


def decide_by_cases(eval_set: EvalSet, arms: ArmResults, request: RunRequest, *, alpha: float) -> FinalTestResult:
    """Decide whether cases like those of an eval set get better, by its results."""
    inputs = _digest_inputs(eval_set)
    amounts = pair_goal_amounts(request.goal, arms)
    found = decide_for_goal_on_new_cases(
        request.goal,
        merge_cases(arms.scores, inputs),
        alpha=alpha,
        amounts=None if amounts is None else merge_cases(amounts, inputs),
        objective=request.objective,
    )
    return replace(found, reason=found.reason + _remark_merged(inputs))


def pair_goal_amounts(goal: Goal, arms: ArmResults) -> tuple[PairedScores, ...] | None:
    """The tokens or dollars of each case under both profiles; None if the goal lowers neither or they are unknown."""
    return None if goal.figure is None else pair_amounts(arms.before, arms.after, goal.figure)


def is_promising(result: FinalTestResult) -> bool:
    """Whether more repeats may show a gain for new cases. Without run noise they change nothing."""
    return any(look.has_run_noise and look.p_value <= look.alpha * PROMISING for look in result.looks[-1:])


def find_obstacle(active: ActiveRun, warning: str | None) -> str | None:
    """Why the validation cases of a run cannot speak for new cases; None if they can.

    `warning` says that its final test may not be the only one.
    """
    state = active.state
    is_first_run = state.run.case_history.is_first_run
    why = _explain_obstacle(active.shape, reader=state.validation_reader, is_first_run=is_first_run)
    if why is None and warning is not None:
        why = "this may not be the only final test on these cases"
    return None if why is None else f"{why}; {_advise(active.shape, active.test)}"


def find_obstacle_in_advance(
    checked: CheckedRequest, search: object, uses: Iterable[CaseUse], *, is_reviewed: bool = False
) -> str | None:
    """Why a run that starts now cannot show its gain for new cases, and what to do; None if it may.

    `uses` are the earlier uses of cases in the project.
    """
    if checked.request.final_test is None:
        return "the final test is turned off; remove `final_test: false`"
    if checked.test is not None and explain_too_few_inputs(checked.test) is None:
        return None
    outline = search.outline() if isinstance(search, OutlinedSearch) else None
    reader: ValidationReader | None = "reviewer" if is_reviewed else None
    why = _explain_obstacle(
        checked.shape,
        reader="search" if outline is not None and outline.reads_validation else reader,
        is_first_run=not count_seen_cases(list_case_digests(checked.validation), uses),
    )
    if why is None and explain_too_few_inputs(checked.validation) is not None:
        why = f"{count_inputs(checked.validation, 'validation case')} cannot decide about new cases"
    return None if why is None else f"{why}; {_advise(checked.shape, checked.test)}"


def _explain_obstacle(shape: RunShape, *, reader: ValidationReader | None, is_first_run: bool) -> str | None:
    """Why the cases of the search cannot speak for new cases; None if they can.

    `reader` has seen validation results. In its `is_first_run`, no validation case was used before.
    """
    if shape == "scorer":
        return "a scorer measures no cases"
    if shape == "one_set":
        return "the search learned from these cases"
    if reader == "search":
        return "the search reads results of the validation cases"
    if reader == "reviewer":
        return "patches are reviewed by someone who may see results of the validation cases"
    return None if is_first_run else "the validation cases were used before this run"


def _advise(shape: RunShape, given: EvalSet | None) -> str:
    return "give cases, or a hold-out" if shape == "scorer" else advise_test_set(given)


def advise_test_set(given: EvalSet | None) -> str:
    """What to do if the cases of the search cannot speak for new cases, and the test set that was given neither."""
    has = "" if given is None else f" (this one has {count_inputs(given)})"
    return f"give a test set (`test`) of {FEWEST_NEW_CASES} cases or more{has}"


def explain_not_shown(result: FinalTestResult, cases: str, goal: Goal) -> str:
    """Say why a result shows nothing for new cases. `cases` are what it is based on: `8 test cases`."""
    if goal.kind != "score":
        return f"{cases} do not show both, no loss and a saving"
    if result.gain is not None and result.gain <= 0:
        return f"{cases} show no gain"
    return f"{cases} are too few for a gain of this size"


def explain_too_few_inputs(eval_set: EvalSet) -> str | None:
    """Say why an eval set decides nothing about new cases, whatever its scores are; None if it may."""
    inputs = _digest_inputs(eval_set)
    few = explain_too_few_new_cases(len(set(inputs.values())))
    return None if few is None else few + _remark_merged(inputs)


def count_inputs(eval_set: EvalSet, what: str = "") -> str:
    """`24 test cases`, or `24 test cases with 7 different inputs`; without `what`, the numbers alone."""
    inputs = _digest_inputs(eval_set)
    count, different = len(inputs), len(set(inputs.values()))
    cases = plural(count, what) if what else str(count)
    return cases if different == count else f"{cases} with {plural(different, 'different input')}"


def _digest_inputs(eval_set: EvalSet) -> dict[str, str]:
    return {case.id: digest_input(case) for case in eval_set.cases}


def _remark_merged(inputs: dict[str, str]) -> str:
    different = len(set(inputs.values()))
    if different == len(inputs):
        return ""
    return f"; {len(inputs)} cases with {plural(different, 'different input')} count as {different}"
