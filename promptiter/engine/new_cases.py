"""What the cases of an eval set show about new cases. Cases with the same input count as one."""

from __future__ import annotations

from dataclasses import replace

from promptiter.engine.final_test import ArmResults
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import digest_input
from promptiter.evaluation.stats.final_test import FinalTestResult
from promptiter.evaluation.stats.new_cases import explain_too_few_new_cases, merge_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.policies.goals import Goal, decide_for_goal_on_new_cases, pair_amounts
from promptiter.runlog.results import RunRequest
from promptiter.wording import plural

PROMISING = 10
"""Further blocks are run for new cases if the p-value so far is at most this multiple of alpha."""


def explain_too_few_inputs(eval_set: EvalSet) -> str | None:
    """Say why an eval set decides nothing about new cases, whatever its scores are; None if it may."""
    inputs = _digest_inputs(eval_set)
    few = explain_too_few_new_cases(len(set(inputs.values())))
    return None if few is None else few + _remark_merged(inputs)


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


def _digest_inputs(eval_set: EvalSet) -> dict[str, str]:
    return {case.id: digest_input(case) for case in eval_set.cases}


def _remark_merged(inputs: dict[str, str]) -> str:
    different = len(set(inputs.values()))
    if different == len(inputs):
        return ""
    return f"; {len(inputs)} cases with {plural(different, 'different input')} count as {different}"
