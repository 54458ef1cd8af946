"""Metric noise: how much of the noise comes from the agent, and how much from the judge, for each metric and in all.

Each run of a case is judged several times. What differs between the judgements of one run is the judge's noise; what
runs differ by beyond that is the agent's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.grouping import group_by

Bound: TypeAlias = Literal["floor", "ceiling", "either"]
"""Where all scores are, if there is no room between them: the worst, the best, or for each case one of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSplit:
    """The variance of a score between runs of a case, and between judgements of one run. None: unknown."""

    agent_variance: float | None
    judge_variance: float | None

    @property
    def judge_share(self) -> float | None:
        """The judge's share of the variance of one score; None if it is unknown, or there is no noise."""
        if self.agent_variance is None or self.judge_variance is None:
            return None
        total = self.agent_variance + self.judge_variance
        return self.judge_variance / total if total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNoise(NoiseSplit):
    """The noise of one metric, its mean, and the share of runs that reach its threshold.

    `bound` is set if every case has only the worst or only the best score. Then nothing is known about noise.
    """

    metric: str
    mean: float | None = None
    met: float | None = None
    bound: Bound | None = None

    @property
    def is_saturated(self) -> bool:
        """Whether every run reaches the threshold, so that nothing can be won."""
        return self.met == 1.0

    @property
    def is_never_met(self) -> bool:
        """Whether no run reaches the threshold."""
        return self.met == 0.0


def estimate_metric_noise(judgements: Sequence[Evaluation]) -> tuple[MetricNoise, ...]:
    """The noise of each metric, from evaluations that are judgements of the same runs."""
    found = []
    for metric in judgements[0].thresholds:
        cases = _collect_values(judgements, partial(_find_value, metric=metric))
        values = [[value for run in runs for value in run] for runs in cases]
        bound = find_bound(values, worst=0.0, best=1.0)
        agent, judge = estimate_variances(cases) if bound is None else (None, None)
        scores = [score for row in judgements[0].rows for score in row.scores if score.metric == metric]
        known = [score for score in scores if score.value is not None]
        found.append(
            MetricNoise(
                metric=metric,
                agent_variance=agent,
                judge_variance=judge,
                mean=judgements[0].metric_means[metric],
                met=sum(score.passed for score in known) / len(known) if known else None,
                bound=bound,
            )
        )
    return tuple(found)


def split_noise(judgements: Sequence[Evaluation], figure: Callable[[CaseRow], float | None]) -> NoiseSplit:
    """The noise of one figure of a run, such as its mean score."""
    agent, judge = estimate_variances(_collect_values(judgements, figure))
    return NoiseSplit(agent_variance=agent, judge_variance=judge)


def find_bound(cases: Iterable[Sequence[float]], *, worst: float, best: float) -> Bound | None:
    """Whether the scores of each case are all the worst or all the best; None if one has another score, or none is."""
    found = set[Bound]()
    for scores in cases:
        if not scores:
            continue
        if all(score <= worst for score in scores):
            found.add("floor")
        elif all(score >= best for score in scores):
            found.add("ceiling")
        else:
            return None
    return found.pop() if len(found) == 1 else "either" if found else None


def estimate_variances(cases: Iterable[Sequence[Sequence[float]]]) -> tuple[float | None, float | None]:
    """The variances (between runs, within a run) of scores given as case, run, judgement: one-way random effects.

    Sums of squares and their degrees of freedom are pooled over the cases, so that differences between cases do not
    count. With unequal numbers of judgements these are the usual ANOVA estimators (Searle, Casella and McCulloch,
    Variance Components, 3.6). A negative estimate becomes 0. None: there are too few scores.
    """
    between, within, between_df, within_df, per_run = 0.0, 0.0, 0, 0, 0.0
    for runs in cases:
        known = [list(run) for run in runs if run]
        values = [value for run in known for value in run]
        if not values:
            continue
        grand = statistics.mean(values)  # exact: equal values have a variance of exactly 0
        means = [statistics.mean(run) for run in known]
        within += math.fsum((value - mean) ** 2 for run, mean in zip(known, means, strict=True) for value in run)
        between += math.fsum(len(run) * (mean - grand) ** 2 for run, mean in zip(known, means, strict=True))
        within_df += len(values) - len(known)
        between_df += len(known) - 1
        per_run += len(values) - sum(len(run) ** 2 for run in known) / len(values)
    judge = within / within_df if within_df else None
    if judge is None or not between_df:
        return None, judge
    return max(0.0, (between - between_df * judge) / per_run), judge


def _collect_values(
    judgements: Sequence[Evaluation], figure: Callable[[CaseRow], float | None]
) -> list[list[list[float]]]:
    """The figures by case, run and judgement, without unscored ones."""
    rows = [row for evaluation in judgements for row in evaluation.rows]
    by_run = group_by(rows, lambda row: (row.case_id, row.repeat))
    cases: dict[str, list[list[float]]] = {}
    for (case_id, _), judged in sorted(by_run.items()):
        values = [value for row in judged if (value := figure(row)) is not None]
        cases.setdefault(case_id, []).append(values)
    return list(cases.values())


def _find_value(row: CaseRow, *, metric: str) -> float | None:
    return next((score.value for score in row.scores if score.metric == metric), None)
