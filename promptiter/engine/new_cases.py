"""What a run shows about new cases, by the results of a test set or of its validation cases, and why if it cannot.

Cases with the same input count as one, with the mean of their scores.
"""

from __future__ import annotations

from dataclasses import replace

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.final_test import ArmResults
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import digest_input
from promptiter.evaluation.stats.final_test import FinalTestResult
from promptiter.evaluation.stats.new_cases import FEWEST_NEW_CASES, explain_too_few_new_cases, merge_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.policies.goals import Goal, decide_for_goal_on_new_cases, pair_amounts
from promptiter.runlog.results import RunRequest
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
    if not result.looks:
        return False
    look = result.looks[-1]
    return look.p_value <= look.alpha * (PROMISING if look.has_run_noise else 1)


def find_obstacle(active: ActiveRun, warning: str | None) -> str | None:
    """Why the validation cases of a run cannot speak for new cases; None if they can.

    `warning` says that its final test may not be the only one.
    """
    state = active.state
    if active.shape == "scorer":
        return "a scorer measures no cases; give cases instead of it"
    if active.shape == "one_set":
        why = "the search learned from these cases"
    elif state.validation_reader == "search":
        why = "the search has read results of these cases"
    elif state.validation_reader == "reviewer":
        why = "patches were reviewed by someone who may have seen results of these cases"
    elif not state.run.case_history.is_first_run:
        why = "these cases were used before this run"
    elif warning is not None:
        why = "this may not be the only final test on these cases"
    else:
        return None
    return f"{why}; {advise_test_set(active.test)}"


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
