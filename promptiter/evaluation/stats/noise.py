"""Run noise: how much the repeats of one profile differ, and which gains can be detected despite that.

An A/A run compares a profile with itself, so every difference is noise. A `NoiseReport` can be made from any evaluation
with two or more repeats of each case; with several judgements of each run it also says how much of the noise is the
judge's. What it says about gains is planned from the noise, never from an observed gain. If the figures of the
evaluation are not meaningful, `problem` says why. If all scores are the worst or the best, `bound` says so: then
nothing is known about noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from promptiter.evaluation.result import CaseRow, Evaluation, Objective, get_best_value, get_worst_value
from promptiter.evaluation.stats.final_test import BLOCKS, Block, Scope, count_repeats, fit_to_cases
from promptiter.evaluation.stats.headroom import ContenderResult, Headroom, find_headroom
from promptiter.evaluation.stats.metric_noise import (
    Bound,
    MetricNoise,
    NoiseSplit,
    estimate_metric_noise,
    find_bound,
    split_noise,
)
from promptiter.evaluation.stats.permutation import PairedScores, mean_gain
from promptiter.evaluation.stats.power import (
    POWER,
    FinalTestPlan,
    RunNoise,
    estimate_run_noise,
    noise_floor,
    pooled_std,
)
from promptiter.llm.ledger import NOTHING, Spending

REPEATS = count_repeats(BLOCKS)
"""The repeats of each case in a default final test without its extra block, in each of its two arms."""

ARMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseScores:
    """The objective in each repeat of one case. Higher is better, and a loss counts as negative.

    A repeat that could not be scored counts as the worst.
    """

    case_id: str
    figures: tuple[float, ...]
    passed: tuple[bool, ...]
    unscored: int = 0

    @property
    def std(self) -> float:
        return pooled_std([self.figures])

    @property
    def is_settled(self) -> bool:
        """Whether all repeats have the same value."""
        return len(set(self.figures)) < 2

    @property
    def flips(self) -> bool:
        """Whether it passes in some repeats and fails in others."""
        return len(set(self.passed)) > 1


def collect_case_scores(evaluation: Evaluation, objective: Objective = "mean_score") -> tuple[CaseScores, ...]:
    """The objective of each case in each repeat, by case id and in the order of the repeats.

    As in decisions about candidates, the worst is 0, a loss of 1, or the lowest value of any repeat if that is lower.
    """
    single = [(row, replace(evaluation, rows=(row,))) for row in evaluation.rows]
    found = [(row, one, one.objective(objective)) for row, one in single]
    worst = min([get_worst_value(objective), *(figure for _, _, figure in found if figure is not None)])
    cases = []
    for case_id, group in groupby(found, key=lambda each: each[0].case_id):
        repeats = list(group)
        cases.append(
            CaseScores(
                case_id=case_id,
                figures=tuple(worst if figure is None else figure for _, _, figure in repeats),
                passed=tuple(one.cases[0].passed for _, one, _ in repeats),
                unscored=sum(not row.is_scored for row, _, _ in repeats),
            )
        )
    return tuple(cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSize:
    """What it takes to show a gain: the power of these cases, and how many cases, or repeats of them, are needed.

    None: no number is enough.
    """

    gain: float
    power: float
    cases: int | None
    repeats: int | None

    @property
    def is_within(self) -> bool:
        return self.power >= POWER


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRunCost:
    """The mean cost of one case run. `tokens` is None if the usage of a call is unknown, `usd` if a price is."""

    tokens: float | None
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class NoiseReport:
    """The noise of one profile on these cases. `stop_reason` says why the measurement ended early, if it did.

    `rejudged` are further judgements of the runs of `evaluation`. `spent` is the cost of `paid_runs` case runs, with
    the `judge_spent` of judges; `blocks` are those of the planned final test. `reached` is what a stronger model or the
    teacher reaches on these cases.
    """

    evaluation: Evaluation
    rejudged: tuple[Evaluation, ...] = ()
    objective: Objective = "mean_score"
    stop_reason: str | None = None
    spent: Spending = NOTHING
    judge_spent: Spending = NOTHING
    paid_runs: int = 0
    blocks: Sequence[Block] = BLOCKS
    reached: tuple[ContenderResult, ...] = ()

    @cached_property
    def cases(self) -> tuple[CaseScores, ...]:
        return collect_case_scores(self.evaluation, self.objective)

    @property
    def repeats(self) -> int:
        """The number of repeats that every case has."""
        return min((len(case.figures) for case in self.cases), default=0)

    @cached_property
    def problem(self) -> str | None:
        """Why the noise cannot be determined; None if it can."""
        evaluation = self.evaluation
        if not evaluation.is_reliable:
            share, limit = evaluation.errored_fraction, evaluation.max_errored_fraction
            return (
                f"{share:.0%} of the runs or scores failed, the limit is {limit:.0%}: {evaluation.commonest_errors}; "
                "fix the agent, the metric or the cases, then measure again"
            )
        if evaluation.rows and not any(case.is_scored for case in evaluation.cases):
            return f"none of the {len(self.cases)} cases could be scored: {evaluation.commonest_errors}"
        if self.repeats < 2:
            return f"every case needs at least 2 repeats to measure noise, and some have {self.repeats}"
        return None

    @cached_property
    def noise(self) -> RunNoise:
        return estimate_run_noise([case.figures for case in self.cases], best=get_best_value(self.objective))

    @cached_property
    def bound(self) -> Bound | None:
        """Set if every case has only the worst or only the best score, so that nothing is known about noise.

        A profile between these may be noisy. A mean of metrics that are all at such a bound says no more.
        """
        figures = [case.figures for case in self.cases]
        found = find_bound(figures, worst=get_worst_value(self.objective), best=get_best_value(self.objective))
        if found is None and self.metrics and all(each.bound is not None for each in self.metrics):
            return "either"
        return found

    @property
    def judgements(self) -> tuple[Evaluation, ...]:
        """The evaluation, and the further judgements of its runs."""
        return (self.evaluation, *self.rejudged)

    @cached_property
    def metrics(self) -> tuple[MetricNoise, ...]:
        """The noise of each metric: the agent's and the judge's."""
        return estimate_metric_noise(self.judgements)

    @cached_property
    def split(self) -> NoiseSplit:
        """How much of the noise of the objective is the agent's, and how much the judge's."""
        if self.bound is not None:
            return NoiseSplit(agent_variance=None, judge_variance=None)

        def find_figure(row: CaseRow) -> float | None:
            return replace(self.evaluation, rows=(row,)).objective(self.objective) if row.is_scored else None

        return split_noise(self.judgements, find_figure)

    @cached_property
    def headroom(self) -> Headroom:
        """Whether there is anything to win on these cases."""
        return find_headroom(
            {case.case_id: case.passed for case in self.cases},
            [case.figures for case in self.cases],
            saturated=[each.metric for each in self.metrics if each.is_saturated],
            never_met=[each.metric for each in self.metrics if each.is_never_met],
            reached=self.reached,
        )

    @property
    def settled(self) -> tuple[CaseScores, ...]:
        return tuple(case for case in self.cases if case.is_settled)

    @property
    def flipping(self) -> tuple[CaseScores, ...]:
        return tuple(case for case in self.cases if case.flips)

    @property
    def noisiest(self) -> tuple[CaseScores, ...]:
        """The cases with different values in their repeats, the noisiest first."""
        return tuple(sorted((case for case in self.cases if not case.is_settled), key=lambda case: -case.std))

    @property
    def repeats_in_half(self) -> int:
        return self.repeats // 2

    @cached_property
    def gain(self) -> float:
        """The gain of the last half of the repeats over the first. The profile is the same, so this is noise."""
        half = self.repeats_in_half
        halves = [
            PairedScores(case_id=case.case_id, before=case.figures[:half], after=case.figures[-half:])
            for case in self.cases
        ]
        return mean_gain(halves)

    @property
    def final_test_repeats(self) -> int:
        """The repeats of a case in the final test, in each arm, without an extra block."""
        return count_repeats(self.blocks)

    def most_repeats(self, *, cases: int | None = None, repeats: int | None = None) -> int:
        """The repeats of a case in each arm with an extra block, if there is one, given those without."""
        longer = (repeats or self.final_test_repeats) / self.final_test_repeats
        return round(longer * sum(block.repeats for block in fit_to_cases(self.blocks, cases or len(self.cases))))

    def final_test_runs(self, *, cases: int | None = None, repeats: int | None = None) -> int:
        """The most case runs in the final test: both arms, all blocks, also an extra one."""
        return ARMS * (cases or len(self.cases)) * self.most_repeats(cases=cases, repeats=repeats)

    def floor(self, repeats: int | None = None) -> float:
        """The gain that an A/A comparison exceeds in 5% of all cases, with this many repeats per arm."""
        return noise_floor(self.noise, cases=len(self.cases), repeats=repeats or self.final_test_repeats)

    def plan_final_test(self, *, times: int = 1, scope: Scope = "these cases") -> FinalTestPlan:
        """A final test on `times` as many cases. With the scope *new cases* they are a test set."""
        return FinalTestPlan(noise=self.noise, cases=times * len(self.cases), blocks=self.blocks, scope=scope)

    def power(self, gain: float, *, scope: Scope = "these cases") -> float:
        """The probability of showing this gain on these cases, or on a test set of as many cases."""
        return self.plan_final_test(scope=scope).power(gain)

    def smallest_gain(self, *, times: int = 1, scope: Scope = "these cases") -> float | None:
        """The smallest gain that is shown with 80% power, on `times` as many cases; None if none is."""
        return self.plan_final_test(times=times, scope=scope).smallest_gain()

    def estimate_required_size(self, gain: float, *, scope: Scope = "these cases") -> RequiredSize:
        """Whether this gain can be shown, and how many cases or repeats that takes."""
        plan = self.plan_final_test(scope=scope)
        cases, repeats = plan.cases_needed(gain), plan.repeats_needed(gain)
        return RequiredSize(gain=gain, power=plan.power(gain), cases=cases, repeats=repeats)

    @property
    def case_run_cost(self) -> CaseRunCost:
        """The cost of a case run, judged once. If all answers were cached, the original cost of the agent."""
        if self.paid_runs:
            again = 1 - 1 / len(self.judgements)
            usd = None if self.spent.unpriced_calls else self.spent.cost_usd
            if usd is not None:
                usd -= again * (self.judge_spent.cost_usd or 0.0)
            tokens = None if self.spent.uncounted_calls else self.spent.tokens - again * self.judge_spent.tokens
            return _divide_cost(tokens, usd, self.paid_runs)
        usage = self.evaluation.usage
        return _divide_cost(usage.tokens, usage.cost_usd, max(1, len(self.evaluation.rows)))


def _divide_cost(tokens: float | None, usd: float | None, runs: int) -> CaseRunCost:
    return CaseRunCost(tokens=None if tokens is None else tokens / runs, usd=None if usd is None else usd / runs)
