"""compare_profiles: is one profile of an agent better than another on these cases, worse, or within noise?

    comparison = await compare_profiles(agent, evaluator, cases, before, after)
    print(comparison.answer, comparison.gain, comparison.changed_cases)

Both profiles run the same repeats of each case, interleaved, in up to three blocks with a look after each, as in the
final test. Answers come from the cache of the evaluator's gateway as long as the requests are the same, so a run under
the second profile is forked at the first step that reads what differs, and only what follows is paid. With a cache that
holds earlier runs of the first profile, those are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from promptiter.agents.base import Agent
from promptiter.engine.comparison_result import (
    ProfileComparison,
    compute_saving,
    count_first_profile_calls,
    find_reached_cases,
    list_changed_cases,
    list_unexplained_cases,
)
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.profile_runs import ProfileRuns
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, OnRow
from promptiter.evaluation.result import Objective, get_best_value, get_worst_value
from promptiter.evaluation.stats.final_test import Block, plan_blocks
from promptiter.evaluation.stats.paired_difference import decide_difference
from promptiter.evaluation.stats.permutation import mean_gain
from promptiter.evaluation.stats.power import FinalTestPlan, estimate_run_noise
from promptiter.policies.evidence import Evidence
from promptiter.policies.paired_runs import count_paired_runs
from promptiter.policies.pairing import leave_out_lost_pairs, pair_scores
from promptiter.profile import Profile, ProfileDiff
from promptiter.wording import plural

REPEATS = 2
"""Runs of each case and profile before each of three looks, as in the final test."""


async def compare_profiles(
    agent: Agent,
    evaluator: Evaluator,
    cases: EvalSet,
    before: Profile,
    after: Profile,
    *,
    alpha: float = 0.05,
    objective: Objective = "mean_score",
    repeats: int = REPEATS,
    first_repeat: int = 0,
    on_row: OnRow | None = None,
    interrupt: Interrupt | None = None,
) -> ProfileComparison:
    """Compare two profiles on these cases, by the rules of the final test, in both directions.

    The chance to see a difference between profiles that behave alike is at most `alpha`, half of it for a gain and half
    for a loss. There are up to three blocks of `repeats` runs of each case and profile. They are numbered from
    `first_repeat`: other numbers are other samples, of which the cache may have none yet. `on_row` is called with each
    case run as it finishes. An `interrupt` stops early: the result has what was measured so far.
    """
    runs = ProfileRuns(
        agent, evaluator, cases, (before, after), first_repeat=first_repeat, on_row=on_row, interrupt=interrupt
    )
    async with runs.open():
        differences = before.changes(after, agent.describe())
        if not differences:
            raise SetupError("the profiles are the same, so there is nothing to compare; change a surface of one")
        wanted, stop_reason = repeats, None
        while wanted and stop_reason is None:
            stop_reason = await runs.run_block(wanted)
            found, wanted = _conclude(
                runs, differences, alpha=alpha, objective=objective, repeats=repeats, stop_reason=stop_reason
            )
        return found


def compare_profiles_sync(
    agent: Agent,
    evaluator: Evaluator,
    cases: EvalSet,
    before: Profile,
    after: Profile,
    *,
    alpha: float = 0.05,
    objective: Objective = "mean_score",
    repeats: int = REPEATS,
    first_repeat: int = 0,
    on_row: OnRow | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> ProfileComparison:
    """`compare_profiles` from synchronous code, also inside a running event loop, as in a notebook.

    The first Ctrl-C finishes the case runs in progress, the second stops at once. Both return what was measured so far.
    `notify` is called with a message for the user at each of them.
    """
    interrupt = Interrupt()
    return run_blocking(
        lambda: compare_profiles(
            agent,
            evaluator,
            cases,
            before,
            after,
            alpha=alpha,
            objective=objective,
            repeats=repeats,
            first_repeat=first_repeat,
            on_row=on_row,
            interrupt=interrupt,
        ),
        interrupt,
        notify=notify,
    )


def _conclude(
    runs: ProfileRuns,
    differences: ProfileDiff,
    *,
    alpha: float,
    objective: Objective,
    repeats: int,
    stop_reason: str | None,
) -> tuple[ProfileComparison, int]:
    """Return what the runs so far show, and how many repeats must still be run."""
    made_before, made_after = runs.build_evaluations()
    before, after = leave_out_lost_pairs(made_before, made_after)
    scores = pair_scores(before, after, objective)
    surface_ids = [change.surface_id for change in differences]
    reached = find_reached_cases(before, after, surface_ids)
    found = ProfileComparison(
        answer="undecided",
        reason="",
        differences=differences,
        before=before,
        after=after,
        objective=objective,
        alpha=alpha,
        before_mean=fmean(fmean(case.before) for case in scores) if scores else None,
        after_mean=fmean(fmean(case.after) for case in scores) if scores else None,
        gain=mean_gain(scores) if scores else None,
        changed_cases=list_changed_cases(before, after, scores),
        unexplained=list_unexplained_cases(before, after, surface_ids),
        runs=count_paired_runs(made_before, made_after, before, unreached=len(before.rows_by_case) - len(reached)),
        ledger=runs.ledger,
        first_profile_calls=count_first_profile_calls(runs.rows[0], runs.rows[1], surface_ids),
        saved=compute_saving(
            [row for rows in runs.rows for row in rows.values()], runs.ledger, is_complete=stop_reason is None
        ),
        stop_reason=stop_reason,
    )
    if stop_reason is not None or not scores:
        pairs = plural(len(before.rows), "pair of runs", "pairs of runs")
        return replace(found, reason=f"stopped after {pairs}, before the test was complete"), 0
    problem = Evidence(accepted=before, candidate=after, objective=objective).problem
    if problem is not None:
        return replace(found, reason=problem, problem=problem), 0
    worst, best = get_worst_value(objective), get_best_value(objective)
    decided = decide_difference(scores, alpha=alpha, repeats=repeats, worst=worst, best=best)
    look, blocks = decided.look, plan_blocks(alpha / 2, repeats=repeats)
    return replace(
        found,
        answer=decided.answer,
        reason=decided.reason,
        interval=None if look is None else look.interval,
        p_value=None if look is None else look.p_value,
        threshold=None if look is None or not look.has_run_noise else look.alpha,
        repeats=0 if look is None else look.repeats,
        gain_plan=_plan_test([case.before for case in scores], blocks, best=best),
        loss_plan=_plan_test([[-score for score in case.before] for case in scores], blocks, best=-worst),
    ), decided.needed_repeats


def _plan_test(repeats: Sequence[Sequence[float]], blocks: Sequence[Block], *, best: float) -> FinalTestPlan | None:
    """The test by the noise of these scores; None if no case has 2 repeats, so that the noise is unknown."""
    if all(len(each) < 2 for each in repeats):
        return None
    return FinalTestPlan(noise=estimate_run_noise(repeats, best=best), cases=len(repeats), blocks=blocks)
