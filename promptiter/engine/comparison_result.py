"""ProfileComparison: what `compare_profiles` found out, built from the case runs of both profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptiter.engine.comparison import is_replayable
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.stats.gain_interval import GainInterval
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.surface_reads import may_touch
from promptiter.llm.ledger import LedgerSnapshot, Spending
from promptiter.policies.paired_runs import NO_RUNS, PairedRuns
from promptiter.profile import ProfileDiff
from traces.model import sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """A case whose score differs between the profiles: its mean under each, and an answer of each that differs.

    Scores are values of the objective: higher is better, a loss is negative.
    """

    case_id: str
    before: float
    after: float
    before_output: str = ""
    after_output: str = ""

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What both profiles would have taken besides what was spent, if the cache had no answers. None is unknown."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class ProfileComparison:
    """The answer of `compare_profiles`, for these cases only, and what it rests on.

    `gain` is the mean change of the objective over the cases, and `interval` the true gains that the runs agree with;
    both are None if nothing was measured. `runs` counts the runs of each profile, and the cases that read nothing that
    differs. `unexplained` are cases with another result in a repeat that read nothing that differs: the agent depends
    on something that is not recorded. `smallest_gain` is the smallest gain that the test would show with a power of
    80%, by the noise of the first profile; None if it would show none, or if that is unknown.

    If a budget or a person stopped it early, the answer is `undecided` and `stop_reason` says why. `problem` is why the
    figures cannot be relied on.
    """

    answer: ComparisonAnswer
    reason: str
    differences: ProfileDiff
    before: Evaluation
    after: Evaluation
    ledger: LedgerSnapshot
    objective: Objective = "mean_score"
    alpha: float = 0.05
    gain: float | None = None
    interval: GainInterval | None = None
    p_value: float | None = None
    repeats: int = 0
    changed_cases: tuple[CaseChange, ...] = ()
    unexplained: tuple[str, ...] = ()
    smallest_gain: float | None = None
    runs: PairedRuns = NO_RUNS
    saved: Saving = Saving()
    stop_reason: str | None = None
    problem: str | None = None

    @property
    def spent(self) -> Spending:
        """What the comparison spent on models."""
        return self.ledger.of_models

    @property
    def surface_ids(self) -> tuple[str, ...]:
        """The surfaces that differ between the profiles."""
        return tuple(change.surface_id for change in self.differences)


def list_changed_cases(before: Evaluation, after: Evaluation, scores: Sequence[PairedScores]) -> tuple[CaseChange, ...]:
    """The cases whose score changed, the largest loss first and the largest gain last."""
    found = []
    for case in scores:
        if not case.gain:
            continue
        pairs = zip(before.rows_by_case[case.case_id], after.rows_by_case[case.case_id], strict=True)
        first, second = next((pair for pair in pairs if _get_result(pair[0]) != _get_result(pair[1])), (None, None))
        found.append(
            CaseChange(
                case_id=case.case_id,
                before=sum(case.before) / len(case.before),
                after=sum(case.after) / len(case.after),
                before_output="" if first is None else first.output,
                after_output="" if second is None else second.output,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.change, each.case_id)))


def find_reached_cases(before: Evaluation, after: Evaluation, surface_ids: Sequence[str]) -> frozenset[str]:
    """The cases with a run that read one of these surfaces, or may have read it."""
    return frozenset(row.case_id for row in (*before.rows, *after.rows) if may_touch(row.reads, surface_ids))


def list_unexplained_cases(before: Evaluation, after: Evaluation, surface_ids: Sequence[str]) -> tuple[str, ...]:
    """The cases with a repeat that read none of these surfaces under either profile, and still differs."""
    pairs = zip(before.rows, after.rows, strict=True)
    return tuple(
        sorted(
            {
                one.case_id
                for one, other in pairs
                if is_replayable(one)
                and not any(may_touch(row.reads, surface_ids) for row in (one, other))
                and _get_result(one) != _get_result(other)
            }
        )
    )


def compute_saving(rows: Sequence[CaseRow], ledger: LedgerSnapshot) -> Saving:
    """What the answers in the cache would have cost. The tokens of judges are not in the rows, so they are missing."""
    usage = sum_usage(row.usage for row in rows)
    paid = ledger.by_role().get("agent", Spending())
    cost = None if usage.cost_usd is None or paid.cost_usd is None else max(0.0, usage.cost_usd - paid.cost_usd)
    return Saving(calls=ledger.of_models.cache_hits, tokens=max(0, usage.tokens - paid.tokens), cost_usd=cost)


def _get_result(row: CaseRow) -> object:
    return row.output, row.error, row.scores
