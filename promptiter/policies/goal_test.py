"""The final test of a goal: better, or not worse by the margin or more and taking fewer dollars or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from promptiter.evaluation.result import Evaluation, Objective, get_best_value, get_worst_value
from promptiter.evaluation.stats.final_test import Block, FinalTestOutcome, FinalTestResult, decide_for_these_cases
from promptiter.evaluation.stats.gain_interval import UNSEEN_FAILURES
from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.non_inferiority import decide_non_inferiority
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.saving import decide_saving, decide_saving_for_new_cases
from promptiter.policies.goals import UNITS, Figure, Goal
from traces.model import Usage


def decide_for_goal(
    goal: Goal,
    cases: Sequence[PairedScores],
    *,
    blocks: Sequence[Block],
    amounts: Sequence[PairedScores] | None = None,
    objective: Objective = "mean_score",
    unseen_failures: float = UNSEEN_FAILURES,
) -> FinalTestResult:
    """Decide the final test of this goal for these cases: better, or not worse by the margin or more and taking less.

    `amounts` are the tokens or dollars of the same runs; None if they are unknown.
    """
    if goal.figure is None:
        worst, best = get_worst_value(objective), get_best_value(objective)
        return decide_for_these_cases(cases, blocks=blocks, worst=worst, best=best, unseen_failures=unseen_failures)
    on_score = decide_non_inferiority(cases, margin=goal.margin, blocks=blocks)
    if amounts is None:
        return replace(on_score, outcome="not_shown", reason=f"{on_score.reason}; {_say_unknown(goal)}")
    return _require_both(on_score, decide_saving(amounts, unit=UNITS[goal.figure], blocks=blocks))


def decide_for_goal_on_new_cases(
    goal: Goal,
    cases: Sequence[PairedScores],
    *,
    alpha: float,
    amounts: Sequence[PairedScores] | None = None,
    objective: Objective = "mean_score",
) -> FinalTestResult:
    """Decide the same for new cases, on cases that taught the search nothing but a few decisions."""
    worst, best = get_worst_value(objective), get_best_value(objective)
    if goal.figure is None:
        return decide_for_new_cases(cases, alpha=alpha, worst=worst, best=best)
    on_score = decide_for_new_cases(cases, alpha=alpha, margin=goal.margin, worst=worst, best=best)
    if amounts is None:
        outcome: FinalTestOutcome = "loss" if on_score.outcome == "loss" else "not_shown"
        return replace(on_score, outcome=outcome, reason=f"{on_score.reason}; {_say_unknown(goal)}")
    return _require_both(on_score, decide_saving_for_new_cases(amounts, unit=UNITS[goal.figure], alpha=alpha))


def _require_both(on_score: FinalTestResult, saving: FinalTestResult) -> FinalTestResult:
    """Join the results for the score and for the saving. Both are tested at alpha, since both must be shown."""
    decided = [each.outcome for each in (on_score, saving) if each.outcome not in ("shown", "open")]
    still_open = [each for each in (on_score, saving) if each.outcome == "open"]
    needed = max((each.needed_repeats for each in still_open), default=0)
    return replace(
        on_score,
        outcome=decided[0] if decided else "open" if still_open else "shown",
        reason=f"{on_score.reason}; {saving.reason}",
        needed_repeats=0 if decided else needed,
        saving=saving,
    )


def _say_unknown(goal: Goal) -> str:
    return f"the {UNITS[goal.figure or 'tokens']} of a run are unknown, so a saving cannot be shown"


def pair_amounts(before: Evaluation, after: Evaluation, figure: Figure) -> tuple[PairedScores, ...] | None:
    """Return the tokens or dollars of each case under both profiles, repeat by repeat; None if one is unknown.

    A repeat that failed under one of the profiles is left out of both: a failed run may have ended early.
    """
    arms = [{(row.case_id, row.repeat): row for row in arm.rows if row.error is None} for arm in (before, after)]
    found = []
    for case_id, group in groupby(sorted(arms[0].keys() & arms[1].keys()), key=itemgetter(0)):
        runs = list(group)
        first, second = ([_read_amount(arm[run].usage, figure) for run in runs] for arm in arms)
        known = [[amount for amount in each if amount is not None] for each in (first, second)]
        if min(map(len, known)) < len(runs):
            return None
        numbers = tuple(repeat for _, repeat in runs)
        found.append(PairedScores(case_id=case_id, before=tuple(known[0]), after=tuple(known[1]), numbers=numbers))
    return tuple(found) or None


def _read_amount(usage: Usage, figure: Figure) -> float | None:
    if figure == "usd":
        return usage.cost_usd
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    return float(usage.tokens)
