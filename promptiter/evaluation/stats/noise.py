"""Run noise: how much the repeats of one profile differ from each other, and which gains show through that.

An A/A run compares a profile with itself, so whatever it sees is noise. `NoiseReport` is made of any evaluation with
two repeats or more of each case; what it says of gains is planned from the noise, never from a gain that was observed.
An evaluation whose figures mean nothing has a `problem`, in words, and no noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from promptiter.evaluation.result import Evaluation, Objective, get_best_value, get_worst_value
from promptiter.evaluation.stats.final_test import BLOCKS, Block, Scope
from promptiter.evaluation.stats.permutation import PairedScores, mean_gain
from promptiter.evaluation.stats.power import (
    POWER,
    RunNoise,
    cases_needed,
    estimate_run_noise,
    noise_floor,
    pooled_std,
    power,
    repeats_needed,
    smallest_gain,
)
from promptiter.llm.ledger import NOTHING, Spending

REPEATS = sum(block.repeats for block in BLOCKS)
"""So many repeats of each case a claim takes at most, in each of its two arms."""

ARMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseScores:
    """The repeats of one case, in figures of the objective: higher is better, a loss counts negative.

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
        """Whether all repeats have the same figure."""
        return len(set(self.figures)) < 2

    @property
    def flips(self) -> bool:
        """Whether it passes in some repeats only."""
        return len(set(self.passed)) > 1


def collect_case_scores(evaluation: Evaluation, objective: Objective = "mean_score") -> tuple[CaseScores, ...]:
    """What each case got in each of its repeats, by case id and in the order of the repeats.

    As in a decision about a candidate, the worst is 0, a loss of 1, or the lowest figure of any repeat if that is
    lower.
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
    """Whether a wanted gain can be claimed: the power, and how many cases, or repeats of these cases, it needs.

    None: no number of them is enough.
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
    """What one run of one case costs on average; `usd` is None if a price is unknown."""

    tokens: float
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class NoiseReport:
    """The noise of one profile on these cases. `stop_reason` says what cut the measuring short, if something did.

    `spent` is what `paid_runs` runs of cases cost while it was measured; `blocks` are those of the claim to come.
    """

    evaluation: Evaluation
    objective: Objective = "mean_score"
    stop_reason: str | None = None
    spent: Spending = NOTHING
    paid_runs: int = 0
    blocks: Sequence[Block] = BLOCKS

    @cached_property
    def cases(self) -> tuple[CaseScores, ...]:
        return collect_case_scores(self.evaluation, self.objective)

    @property
    def repeats(self) -> int:
        """How many repeats every case has."""
        return min((len(case.figures) for case in self.cases), default=0)

    @cached_property
    def problem(self) -> str | None:
        """Why nothing can be said of noise, in words; None if it can."""
        evaluation = self.evaluation
        if not evaluation.is_reliable:
            share, limit = evaluation.errored_fraction, evaluation.max_errored_fraction
            return (
                f"{share:.0%} of the runs or scores failed, the limit is {limit:.0%}: {evaluation.commonest_errors}; "
                "mend the agent, the metric or the cases, then measure again"
            )
        if evaluation.rows and not any(case.is_scored for case in evaluation.cases):
            return f"none of the {len(self.cases)} cases could be scored: {evaluation.commonest_errors}"
        if self.repeats < 2:
            return f"every case needs 2 repeats or more before noise shows, and some have {self.repeats}"
        return None

    @cached_property
    def noise(self) -> RunNoise:
        return estimate_run_noise([case.figures for case in self.cases], best=get_best_value(self.objective))

    @property
    def settled(self) -> tuple[CaseScores, ...]:
        return tuple(case for case in self.cases if case.is_settled)

    @property
    def flipping(self) -> tuple[CaseScores, ...]:
        return tuple(case for case in self.cases if case.flips)

    @property
    def noisiest(self) -> tuple[CaseScores, ...]:
        """The cases that are not settled, those that differ most from themselves first."""
        return tuple(sorted((case for case in self.cases if not case.is_settled), key=lambda case: -case.std))

    @property
    def repeats_in_half(self) -> int:
        return self.repeats // 2

    @cached_property
    def gain(self) -> float:
        """What the last half of the repeats gained over the first: the same profile, so a gain of noise alone."""
        half = self.repeats_in_half
        halves = [
            PairedScores(case_id=case.case_id, before=case.figures[:half], after=case.figures[-half:])
            for case in self.cases
        ]
        return mean_gain(halves)

    @property
    def final_test_repeats(self) -> int:
        """How many repeats of a case the claim takes at most, in each arm."""
        return sum(block.repeats for block in self.blocks)

    def final_test_runs(self, *, cases: int | None = None, repeats: int | None = None) -> int:
        """How many runs of cases the claim takes at most: both arms, all blocks."""
        return ARMS * (cases or len(self.cases)) * (repeats or self.final_test_repeats)

    def floor(self, repeats: int | None = None) -> float:
        """The gain that a profile compared with itself exceeds in 5%, with so many repeats in each arm."""
        return noise_floor(self.noise, cases=len(self.cases), repeats=repeats or self.final_test_repeats)

    def power(self, gain: float, *, scope: Scope = "these cases") -> float:
        """The chance that a candidate with this gain is claimed on these cases, or on as many cases of a test set."""
        return power(self.noise, gain, cases=len(self.cases), blocks=self.blocks, scope=scope)

    def smallest_gain(self, *, times: int = 1, scope: Scope = "these cases") -> float | None:
        """The smallest gain that a claim shows with 80% power, also on so many times the cases. None: no gain."""
        return smallest_gain(self.noise, cases=times * len(self.cases), blocks=self.blocks, scope=scope)

    def estimate_required_size(self, gain: float, *, scope: Scope = "these cases") -> RequiredSize:
        """Whether this gain is within reach, and what it takes."""
        return RequiredSize(
            gain=gain,
            power=self.power(gain, scope=scope),
            cases=cases_needed(self.noise, gain, blocks=self.blocks, scope=scope),
            repeats=repeats_needed(self.noise, gain, cases=len(self.cases), blocks=self.blocks, scope=scope),
        )

    @property
    def case_run_cost(self) -> CaseRunCost:
        """What a run of a case costs, judges included; what its agent once cost if all answers were known already."""
        if self.paid_runs:
            usd = None if self.spent.unpriced_calls else self.spent.cost_usd
            return _cost(self.spent.tokens, usd, self.paid_runs)
        usage = self.evaluation.usage
        return _cost(usage.tokens, usage.cost_usd, max(1, len(self.evaluation.rows)))


def _cost(tokens: float, usd: float | None, runs: int) -> CaseRunCost:
    return CaseRunCost(tokens=tokens / runs, usd=None if usd is None else usd / runs)
