"""ProfileComparison: what `compare_profiles` found out, built from the case runs of both profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from promptiter.engine.comparison import is_replayable
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.stats.gain_interval import GainInterval
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.power import FinalTestPlan
from promptiter.evaluation.surface_reads import may_touch
from promptiter.llm.ledger import LedgerSnapshot, Spending
from promptiter.policies.paired_runs import NO_RUNS, PairedRuns
from promptiter.profile import ProfileDiff
from promptiter.wording import format_score, join_names, plural
from traces.model import sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """The value of a metric under each profile, in one repeat. None: it could not be scored."""

    metric: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """A case whose score differs between the profiles: its mean under each, and the repeat that shows it best.

    `before_output` and `after_output` are the answers of that `repeat`, which is counted from 0, and `metrics` those
    whose value differs in it. Scores are values of the objective: higher is better, a loss is negative.
    """

    case_id: str
    before: float
    after: float
    before_output: str = ""
    after_output: str = ""
    repeat: int = 0
    metrics: tuple[MetricChange, ...] = ()

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What both profiles would have taken besides what was spent, if the cache had no answers. None is unknown."""

    calls: int = 0
    tokens: int | None = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class ProfileComparison:
    """The answer of `compare_profiles`, for these cases only, and what it rests on.

    `before_mean` and `after_mean` are the objective over the cases, with the worst value for runs that could not be
    scored, and `gain` is their difference. `interval` has the true gains that the runs agree with. All are None if
    nothing was measured. With run noise, `p_value` was compared with `threshold`, the share of `alpha` for this
    direction and these `repeats`. `runs` counts the runs of each profile, and the cases that read nothing that differs.
    `unexplained` are cases with another result in a repeat that read nothing that differs: the agent depends on
    something that is not recorded. `gain_plan` and `loss_plan` are the test as planned by the noise of the first
    profile; None if that is unknown. `first_profile_calls` were paid for what the cache did not have of the first
    profile, and the others for the second.

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
    before_mean: float | None = None
    after_mean: float | None = None
    gain: float | None = None
    interval: GainInterval | None = None
    p_value: float | None = None
    threshold: float | None = None
    repeats: int = 0
    changed_cases: tuple[CaseChange, ...] = ()
    unexplained: tuple[str, ...] = ()
    gain_plan: FinalTestPlan | None = None
    loss_plan: FinalTestPlan | None = None
    runs: PairedRuns = NO_RUNS
    first_profile_calls: int = 0
    saved: Saving = Saving()
    stop_reason: str | None = None
    problem: str | None = None

    def __repr__(self) -> str:
        scores = f"{format_score(self.before_mean)} → {format_score(self.after_mean)}"
        better = sum(case.change > 0 for case in self.changed_cases)
        worse = len(self.changed_cases) - better
        return (
            f"ProfileComparison({self.answer}, {self.objective} {scores}, {self.reason})\n"
            f"  changed: {join_names(self.surface_ids, limit=5)}; {plural(better, 'case')} better, {worse} worse, of "
            f"{self.runs.cases}\n"
            f"  {plural(self.spent.calls, 'model call')}, {self.saved.calls:,} saved by the cache"
        )

    @cached_property
    def smallest_gain(self) -> float | None:
        """The smallest gain that the test shows with a power of 80%; None if it shows none, or if that is unknown."""
        return None if self.gain_plan is None else self.gain_plan.smallest_gain()

    @cached_property
    def smallest_loss(self) -> float | None:
        """The smallest loss that the test shows with a power of 80%; None if it shows none, or if that is unknown."""
        return None if self.loss_plan is None else self.loss_plan.smallest_gain()

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
        changes = [(two - one) * case.gain for one, two in zip(case.before, case.after, strict=True)]
        place = changes.index(max(changes))
        first, second = before.rows_by_case[case.case_id][place], after.rows_by_case[case.case_id][place]
        found.append(
            CaseChange(
                case_id=case.case_id,
                before=fmean(case.before),
                after=fmean(case.after),
                before_output=first.output,
                after_output=second.output,
                repeat=first.repeat,
                metrics=_list_changed_metrics(first, second),
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


def count_first_profile_calls(
    before: Mapping[tuple[str, int], CaseRow], after: Mapping[tuple[str, int], CaseRow], surface_ids: Sequence[str]
) -> int:
    """The paid calls of the agent that the first profile needed, by the rows of both profiles.

    Calls that both need are paid by the run that asks first, which may be that of the second profile.
    """
    total = 0
    for run, row in before.items():
        made, other = row.measured, after.get(run)
        paid_by_other = 0 if other is None else other.measured.paid_calls
        if made.paid_calls or not may_touch(row.reads, surface_ids):
            total += min(made.paid_calls + made.cache_hits, made.paid_calls + paid_by_other)
    return total


def compute_saving(rows: Sequence[CaseRow], ledger: LedgerSnapshot, *, is_complete: bool = True) -> Saving:
    """What the answers in the cache would have cost. The tokens of judges are not in the rows, so they are missing.

    Without all rows, the tokens and dollars are unknown: those of runs that were stopped are missing.
    """
    if not is_complete:
        return Saving(calls=ledger.of_models.cache_hits, tokens=None, cost_usd=None)
    usage = sum_usage(row.usage for row in rows)
    paid = ledger.by_role().get("agent", Spending())
    cost = None if usage.cost_usd is None or paid.cost_usd is None else max(0.0, usage.cost_usd - paid.cost_usd)
    return Saving(calls=ledger.of_models.cache_hits, tokens=max(0, usage.tokens - paid.tokens), cost_usd=cost)


def _list_changed_metrics(before: CaseRow, after: CaseRow) -> tuple[MetricChange, ...]:
    values = [{score.metric: score.value for score in row.scores} for row in (before, after)]
    changes = (MetricChange(metric=name, before=values[0].get(name), after=values[1].get(name)) for name in values[1])
    return tuple(each for each in changes if each.before != each.after)


def _get_result(row: CaseRow) -> object:
    return row.output, row.error, row.scores
