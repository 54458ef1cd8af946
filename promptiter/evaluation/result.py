"""The result of an evaluation: rows, and the figures computed from them.

A row is one run of one case: its scores, output, error and usage, and the digest of its trace. Everything that is equal
in two equal evaluations is in the row itself; clocks are in `measured`. Means are exact sums over sorted rows, so they
do not depend on the order in which cases finished.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import groupby
from typing import Literal, TypeAlias

from promptiter.errors import AnswerError, MetricError, ModelNotFoundError
from promptiter.evaluation.penalties import NO_PENALTIES, Penalties
from promptiter.evaluation.score import JUDGE_FAILED, Score, share_text
from promptiter.evaluation.surface_reads import Reads, share_reads
from promptiter.grouping import group_by
from promptiter.outages import OWN_NAMES, is_outage_name
from traces import Failure, Usage
from traces.model import sum_usage
from traces.notebook import html_block, html_heading, html_table

Origin: TypeAlias = Literal["executed", "cache", "kept", "audited"]
"""Where a row came from: paid calls, cached answers only, an earlier evaluation, or a check of one."""

SETUP_ERRORS = tuple(each.__name__ for each in (AnswerError, MetricError, ModelNotFoundError))
"""Mistakes in the code of the agent or of a metric, or in the name of a model: the case does not matter."""

CODE_ERRORS = tuple(
    each.__name__
    for each in (
        TypeError,
        AttributeError,
        NameError,
        UnboundLocalError,
        ImportError,
        ModuleNotFoundError,
        KeyError,
        IndexError,
    )
)
"""Errors that Python raises for mistakes in code. ValueError is not one: agents raise it for an unusable answer."""

Figures: TypeAlias = Mapping[str, float]

NO_FIGURES: Figures = {}

Objective: TypeAlias = Literal["mean_score", "pass_rate", "weighted_loss"]


def get_best_value(objective: Objective) -> float:
    """The best value of an objective with scores up to 1. A loss counts as negative, so its best value is 0."""
    return 0.0 if objective == "weighted_loss" else 1.0


def get_worst_value(objective: Objective) -> float:
    """The worst value of an objective with scores from 0, used for runs that could not be scored."""
    return get_best_value(objective) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What differs between equal evaluations: clocks, and which answers had to be paid for."""

    duration_s: float = 0.0
    origin: Origin = "executed"
    paid_calls: int = 0
    cache_hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One run of one case under one profile. `reads` are the surfaces that its nodes read; None: unknown.

    `eval_set_id` is the eval set that the case came from. `figures` are what a scorer measured besides its scores, as
    it measured them: `{"runtime_s": 41.2}`.
    """

    case_id: str
    eval_set_id: str = ""
    repeat: int = 0
    scores: tuple[Score, ...] = ()
    output: str = ""
    error: Failure | None = None
    usage: Usage = field(default=Usage())
    trace_digests: tuple[str, ...] = ()
    reads: Reads | None = None
    figures: Figures = field(default_factory=lambda: NO_FIGURES, metadata={"exclude_if": operator.not_})
    measured: Measured = field(default=Measured(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "case_id", share_text(self.case_id))
        object.__setattr__(self, "eval_set_id", share_text(self.eval_set_id))
        object.__setattr__(self, "output", share_text(self.output))
        object.__setattr__(self, "reads", share_reads(self.reads))
        if not self.figures:
            object.__setattr__(self, "figures", NO_FIGURES)

    @property
    def origin(self) -> Origin:
        return self.measured.origin

    @property
    def is_scored(self) -> bool:
        return self.error is None and all(score.is_scored for score in self.scores)

    @property
    def passed(self) -> bool:
        """Whether it was scored and every score reached its threshold."""
        return self.error is None and bool(self.scores) and all(score.passed for score in self.scores)

    @property
    def outage(self) -> str | None:
        """The error, if a service that the agent or a metric called caused it; otherwise None.

        What the error says does not count: it may quote an answer.
        """
        if self.error is not None:
            kind, message = self.error.type, self.error.message
            is_lost = self.error.is_outage or is_outage_name(kind)
            return (message if kind in OWN_NAMES and message else f"{kind}: {message}") if is_lost else None
        return next((score.error or "" for score in self.scores if score.is_outage), None)

    @property
    def setup_error(self) -> str | None:
        """The error, if it is a mistake in the code of the agent or of a metric, or in a setting; otherwise None."""
        errors = [str(self.error)] if self.error is not None else [score.error or "" for score in self.scores]
        return next((error for error in errors if error.partition(":")[0] in SETUP_ERRORS), None)

    @property
    def judge_error(self) -> str | None:
        """The error of a judge that failed or gave no usable answer, unless its service is down; otherwise None."""
        errors = (score.error or "" for score in self.scores if not score.is_outage)
        return next((error for error in errors if error.startswith(JUDGE_FAILED)), None)

    @property
    def code_error(self) -> Failure | None:
        """The error, if the agent's code raised it and it is one that Python raises for mistakes; otherwise None."""
        is_mistake = self.error is not None and self.error.type in CODE_ERRORS and self.outage is None
        return self.error if is_mistake else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case over all its repeats: the mean of each metric, None if nothing was scored.

    `score` is the weighted mean over the metrics; None if one of them could not be scored. `penalty` is what cost and
    latency add to its loss.
    """

    case_id: str
    means: Mapping[str, float | None]
    score: float | None
    passed: bool
    is_scored: bool
    penalty: float = 0.0

    def objective(self, name: Objective = "mean_score") -> float | None:
        """The figure of this case that is optimized. Higher is better, so a loss counts as negative."""
        if name == "pass_rate":
            return float(self.passed)
        if name == "mean_score" or self.score is None:
            return self.score
        return -(min(1.0, max(0.0, 1.0 - self.score)) + self.penalty)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The rows of one profile on one eval set, or on several that were merged, sorted by case and repeat.

    `weights` of metrics in the score of a case default to 1; `penalties` are part of its loss. `number` and `phase` are
    its place in a run: which evaluation it was, and what for. `criteria` say what the metrics look at, by name.
    """

    eval_set_id: str
    profile_digest: str
    rows: tuple[CaseRow, ...] = field(repr=False)
    thresholds: Mapping[str, float]
    max_errored_fraction: float = 0.25
    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Penalties = NO_PENALTIES
    number: int | None = field(default=None, compare=False)
    phase: str = field(default="", compare=False)
    criteria: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: (row.case_id, row.repeat))))

    @cached_property
    def cases(self) -> tuple[CaseResult, ...]:
        """One result per case. The score of a metric is its mean over the repeats that could be scored."""
        return tuple(self.summarize(case_id, rows) for case_id, rows in self.rows_by_case.items())

    @cached_property
    def rows_by_case(self) -> dict[str, tuple[CaseRow, ...]]:
        """The rows of each case, in the order of the repeats."""
        return {case_id: tuple(rows) for case_id, rows in groupby(self.rows, key=lambda row: row.case_id)}

    @cached_property
    def by_eval_set(self) -> dict[str, Evaluation]:
        """The same for each eval set that the cases came from, by id."""
        rows = group_by(self.rows, lambda row: row.eval_set_id or self.eval_set_id)
        return {name: replace(self, eval_set_id=name, rows=tuple(found)) for name, found in sorted(rows.items())}

    def merge(self, other: Evaluation) -> Evaluation:
        """This evaluation with the rows of another of the same profile; of equal repeats the other's count."""
        rows = {(row.case_id, row.repeat): row for row in (*self.rows, *other.rows)}
        return replace(self, rows=tuple(rows.values()), number=None)

    def summarize(self, case_id: str, rows: Iterable[CaseRow]) -> CaseResult:
        """The result of some runs of a case."""
        rows = tuple(rows)
        values: dict[str, list[float]] = {metric: [] for metric in self.thresholds}
        for row in rows:
            for score in row.scores:
                if score.value is not None:
                    values[score.metric].append(score.value)
        means = {metric: _average(known) for metric, known in values.items()}
        passed = all(mean is not None and mean >= self.thresholds[metric] for metric, mean in means.items())
        return CaseResult(
            case_id=case_id,
            means=means,
            score=self._average_metrics(means),
            passed=passed and bool(means),
            is_scored=all(mean is not None for mean in means.values()),
            penalty=self._find_penalty(rows) if self.penalties else 0.0,
        )

    def _find_penalty(self, rows: Sequence[CaseRow]) -> float:
        return self.penalties.add_up(
            costs_usd=[row.usage.cost_usd for row in rows],
            durations_s=[row.measured.duration_s for row in rows],
            cases=len(self.rows_by_case),
        )

    def _average_metrics(self, means: Mapping[str, float | None]) -> float | None:
        """The weighted mean over the metrics; None if one of them is unknown, or all weights are 0."""
        weighed = [(mean, self.weights.get(metric, 1.0)) for metric, mean in means.items()]
        total = math.fsum(weight for _, weight in weighed)
        known = [mean * weight for mean, weight in weighed if mean is not None]
        return math.fsum(known) / total if total and len(known) == len(means) else None

    @property
    def mean_score(self) -> float | None:
        """The mean over scored cases of their weighted mean over metrics; None if no case was scored."""
        return self.objective("mean_score")

    @property
    def pass_rate(self) -> float | None:
        """The share of cases that pass every metric; a case that could not be scored does not pass."""
        return self.objective("pass_rate")

    @property
    def weighted_loss(self) -> float | None:
        """1 minus the mean score, clamped to [0, 1] for each case, plus the penalties."""
        found = self.objective("weighted_loss")
        return None if found is None else 0.0 - found

    def objective(self, name: Objective = "mean_score") -> float | None:
        """The figure that is optimized: the mean over the cases that have it. Higher is better."""
        return _average(case.objective(name) for case in self.cases)

    @property
    def metric_means(self) -> dict[str, float | None]:
        """The mean of each metric over the cases it could score."""
        return {metric: _average(case.means[metric] for case in self.cases) for metric in self.thresholds}

    @property
    def usage(self) -> Usage:
        return sum_usage(row.usage for row in self.rows)

    @property
    def errored_fraction(self) -> float:
        """The share of case runs, or of the scores of one metric, that failed; the largest of these."""
        if not self.rows:
            return 0.0
        unscored = Counter(score.metric for row in self.rows for score in row.scores if not score.is_scored)
        failed = sum(row.error is not None for row in self.rows)
        return max(failed, *(unscored[metric] for metric in self.thresholds), 0) / len(self.rows)

    @property
    def commonest_errors(self) -> str:
        """Why runs could not be scored: the three most common errors, with their counts."""
        errors = Counter(
            str(row.error or next((score.error for score in row.scores if score.error), "unscored"))
            for row in self.rows
            if not row.is_scored
        )
        return "; ".join(
            f"{_shorten_middle(error)} (×{count})" if count > 1 else _shorten_middle(error)
            for error, count in errors.most_common(3)
        )

    @property
    def is_reliable(self) -> bool:
        """Whether few enough runs and scores failed for the figures to be meaningful."""
        return self.errored_fraction <= self.max_errored_fraction

    def _repr_html_(self) -> str:
        metrics = tuple(self.thresholds)
        rows = (
            (
                case.case_id,
                "passed" if case.passed else "failed",
                *(_format_figure(case.means[name]) for name in metrics),
            )
            for case in self.cases
        )
        passed = f"{sum(case.passed for case in self.cases)} of {len(self.cases)} cases pass"
        details = f"mean score {_format_figure(self.mean_score)}, {passed}, {self.usage.tokens:,} tokens"
        table = html_table(("case", "", *metrics), rows, count=len(self.cases))
        return html_block(html_heading(f"Evaluation on {self.eval_set_id}", details), table)


def _format_figure(figure: float | None) -> str:
    return "unscored" if figure is None else f"{figure:.3f}"


def merge_evaluations(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """One evaluation with the rows of several of the same profile; None if there are none."""
    found = list(evaluations)
    return reduce(Evaluation.merge, found) if found else None


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _shorten_middle(error: str, *, start: int = 500, end: int = 250) -> str:
    """An error without its middle if it is long: the cause is often at the end, after what a program printed."""
    return error if len(error) <= start + end else f"{error[:start].rstrip()} … {error[-end:].lstrip()}"
