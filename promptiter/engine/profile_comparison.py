"""compare_profiles: is one profile of an agent better than another on these cases, worse, or within noise?

    comparison = await compare_profiles(agent, evaluator, cases, before, after)
    print(comparison.answer, comparison.gain, comparison.changed_cases)

Both profiles run the same repeats of each case, interleaved, in up to three blocks with a look after each, as in the
final test. Answers come from the cache of the evaluator's gateway as long as the requests are the same, so a run under
the second profile is forked at the first step that reads what differs, and only what follows is paid. With a cache that
holds earlier runs of the first profile, those are free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from promptiter.agents.base import Agent, check_agent
from promptiter.engine.comparison_result import (
    ProfileComparison,
    compute_saving,
    find_reached_cases,
    find_smallest_gain,
    list_changed_cases,
    list_unexplained_cases,
)
from promptiter.engine.evaluations import EvaluationRequest, Evaluations
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.model_checks import check_models
from promptiter.engine.run import restore_agent
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet, advise_eval_set
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.evaluation.stats.paired_difference import PairedDifference, decide_difference
from promptiter.evaluation.stats.permutation import mean_gain
from promptiter.policies.evidence import Evidence, leave_out_lost_pairs, pair_scores
from promptiter.policies.paired_runs import PairedRuns, count_runs
from promptiter.profile import Profile
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.meter import Meter
from promptiter.runlog.payloads import CaseFinished, EvalSetSummary, RunStarted
from promptiter.wording import plural, shorten

OnRow = Callable[[CaseRow], None]


async def compare_profiles(
    agent: Agent,
    evaluator: Evaluator,
    cases: EvalSet,
    before: Profile,
    after: Profile,
    *,
    alpha: float = 0.05,
    objective: Objective = "mean_score",
    repeats: int = 2,
    first_repeat: int = 0,
    on_row: OnRow | None = None,
    interrupt: Interrupt | None = None,
) -> ProfileComparison:
    """Compare two profiles on these cases, by the rules of the final test, in both directions.

    The chance to see a difference between profiles that behave alike is at most `alpha`, half of it for a gain and half
    for a loss. There are up to three blocks of `repeats` runs of each case and profile. They are numbered from
    `first_repeat`: other numbers are other samples, of which the cache may have none yet. `on_row` is called with each
    case run as it finishes.
    """
    comparison = _Comparison(
        agent,
        evaluator,
        cases,
        (before, after),
        alpha=alpha,
        objective=objective,
        repeats=repeats,
        first_repeat=first_repeat,
        on_row=on_row or (lambda _: None),
    )
    await comparison.check()
    try:
        with comparison.evaluator.gateway.active():
            return await comparison.run(interrupt or Interrupt())
    finally:
        await restore_agent(agent)


def compare_profiles_sync(
    agent: Agent,
    evaluator: Evaluator,
    cases: EvalSet,
    before: Profile,
    after: Profile,
    *,
    alpha: float = 0.05,
    objective: Objective = "mean_score",
    repeats: int = 2,
    first_repeat: int = 0,
    on_row: OnRow | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> ProfileComparison:
    """`compare_profiles` from synchronous code, also inside a running event loop, as in a notebook.

    After the first Ctrl-C, the case runs in progress are finished. After the second, they are not. Both return what was
    measured so far. `notify` is called with a message for the user at each of them.
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


class _Comparison:
    """A comparison in progress, with the rows of each profile so far."""

    def __init__(
        self,
        agent: Agent,
        evaluator: Evaluator,
        cases: EvalSet,
        profiles: tuple[Profile, Profile],
        *,
        alpha: float,
        objective: Objective,
        repeats: int,
        first_repeat: int,
        on_row: OnRow,
    ) -> None:
        _check_inputs(agent, evaluator, cases, profiles)
        self.agent = agent
        self.evaluator = evaluator.for_run()
        self.cases = cases
        self.profiles = profiles
        self.alpha = alpha
        self.objective = objective
        self.repeats = repeats
        self.first_repeat = first_repeat
        self.on_row = on_row
        self.snapshot = agent.describe()
        self.differences = profiles[0].changes(profiles[1], self.snapshot)
        self.rows: dict[int, dict[tuple[str, int], CaseRow]] = {0: {}, 1: {}}
        self.difference = PairedDifference(answer="undecided", look=None, reason="")

    async def check(self) -> None:
        """Raise SetupError if the comparison could not start."""
        self.evaluator.check(self.agent, [(self.cases, profile) for profile in self.profiles])
        if not self.differences:
            raise SetupError("the profiles are the same, so there is nothing to compare; change a surface of one")
        for profile in self.profiles:
            await asyncio.to_thread(check_models, self.agent, self.evaluator, profile=profile)

    async def observe(self, event: Event) -> None:
        """Keep each row as it finishes. The evaluations of a block are numbered in the order of the profiles."""
        if isinstance(event.payload, CaseFinished):
            row = event.payload.row
            self.rows[event.payload.evaluation % 2][row.case_id, row.repeat - self.first_repeat] = row
            self.on_row(row)

    async def run(self, interrupt: Interrupt) -> ProfileComparison:
        """Run block after block until a look decides, or until a budget or a person stops it."""
        evaluations = Evaluations(await self._start_log(), self.agent, self.evaluator)
        done, wanted = 0, self.repeats
        while True:
            try:
                await self._run_block(evaluations, range(done, done + wanted))
            except BudgetEndedError as ended:
                return self._conclude(stop_reason=ended.cap)
            except asyncio.CancelledError:
                if interrupt.reason is None:
                    raise
                return self._conclude(stop_reason="user_stop")
            done += wanted
            found = self._conclude()
            if found.answer != "undecided" or found.problem is not None:
                return found
            wanted = self.difference.needed_repeats

    async def _start_log(self) -> EventLog:
        """Start the log, which is kept in memory: a comparison is a run of two evaluations at a time."""
        gateway = self.evaluator.gateway
        meter = Meter(time.monotonic, gateway.ledger)
        log = EventLog("comparison", MemoryJournal(), [self], meter=meter, redactor=gateway.redactor)
        cases = EvalSetSummary(id=self.cases.id, digest=self.cases.content_digest, cases=len(self.cases.cases))
        started = RunStarted(
            structure=self.snapshot.to_json(),
            profile=self.profiles[0],
            targets=(),
            train=cases,
            validation=cases,
            shape="one_set",
            objective=self.objective,
        )
        await log.append(started)
        return log

    async def _run_block(self, evaluations: Evaluations, repeats: range) -> None:
        runs = list_case_runs(self.cases, [self.first_repeat + repeat for repeat in repeats])
        is_first = not self.rows[0]
        await evaluations.evaluate_many(
            [
                EvaluationRequest(
                    eval_set=self.cases,
                    profile=profile,
                    phase="baseline" if is_first and profile is self.profiles[0] else "final_test",
                    runs=runs,
                )
                for profile in self.profiles
            ]
        )

    def _pair_arms(self) -> tuple[Evaluation, Evaluation]:
        """Both profiles on the runs that were made under both, with repeats counted from 0."""
        common = self.rows[0].keys() & self.rows[1].keys()
        before, after = (
            self.evaluator.build_evaluation(
                (replace(row, repeat=key[1]) for key, row in self.rows[place].items() if key in common),
                self.cases,
                self.profiles[place],
            )
            for place in (0, 1)
        )
        return before, after

    def _conclude(self, *, stop_reason: str | None = None) -> ProfileComparison:
        """Return what the runs so far show. The test is unfinished if it was stopped early."""
        made = self._pair_arms()
        before, after = leave_out_lost_pairs(*made)
        scores = pair_scores(before, after, self.objective)
        ledger = self.evaluator.gateway.ledger.snapshot()
        surface_ids = [change.surface_id for change in self.differences]
        reached = find_reached_cases(before, after, surface_ids)
        rows = [row for arm in self.rows.values() for row in arm.values()]
        found = ProfileComparison(
            answer="undecided",
            reason="",
            differences=self.differences,
            before=before,
            after=after,
            objective=self.objective,
            alpha=self.alpha,
            gain=mean_gain(scores) if scores else None,
            changed_cases=list_changed_cases(before, after, scores),
            reached=len(reached),
            unexplained=list_unexplained_cases(before, after, surface_ids),
            runs=PairedRuns(
                before=count_runs(made[0]),
                after=count_runs(made[1]),
                pairs=len(before.rows),
                cases=len(scores),
                unreached=len(scores) - len(reached),
            ),
            ledger=ledger,
            saved=compute_saving(rows, ledger),
            stop_reason=stop_reason,
        )
        if not scores:
            return replace(found, reason="no case was run under both profiles")
        problem = Evidence(accepted=before, candidate=after, objective=self.objective).problem
        if problem is not None:
            return replace(found, reason=problem, problem=problem)
        if stop_reason is not None:
            pairs = plural(len(before.rows), "pair of runs", "pairs of runs")
            return replace(found, reason=f"stopped after {pairs}, before the test was complete")
        self.difference = decide_difference(scores, alpha=self.alpha, repeats=self.repeats, seed=self.evaluator.seed)
        look = self.difference.look
        return replace(
            found,
            answer=self.difference.answer,
            reason=self.difference.reason,
            p_value=None if look is None else look.p_value,
            repeats=0 if look is None else look.repeats,
            smallest_gain=find_smallest_gain(scores, plan_blocks(self.alpha / 2, repeats=self.repeats), self.objective),
        )


def _check_inputs(agent: object, evaluator: object, cases: object, profiles: tuple[object, object]) -> None:
    check_agent(agent)
    if not isinstance(evaluator, Evaluator):
        raise SetupError(
            f"the evaluator is {shorten(evaluator)}; give an Evaluator, such as Evaluator(build_metrics())"
        )
    if not isinstance(cases, EvalSet):
        raise SetupError(f"the cases are {shorten(cases)}; give an EvalSet{advise_eval_set(cases)}")
    if not cases.cases:
        raise SetupError(f"the eval set {cases.id!r} has no cases to compare the profiles on; give at least one")
    for name, profile in zip(("before", "after"), profiles, strict=True):
        if not isinstance(profile, Profile):
            raise SetupError(
                f"{name} is {shorten(profile)}; give a Profile: Profile.baseline(agent.describe()), or Profile.of(...)"
            )
