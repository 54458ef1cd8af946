"""Metric noise: how much of the run noise of a metric comes from the agent, and how much from the judge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, AgentRun
from promptiter.concurrency import call_any
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.metrics.metric import Metric, check_score
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.llm.judgement import judge_again
from promptiter.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNoise:
    """The variance of one metric between runs of a case, and between judgements of one output. None: unknown."""

    metric: str
    agent_variance: float | None
    judge_variance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNoiseReport:
    """The noise of each metric, and the evaluation it was measured on, with the first judgement of each run."""

    judge_repeats: int
    metrics: tuple[MetricNoise, ...]
    evaluation: Evaluation


async def measure_metric_noise(
    evaluator: Evaluator,
    agent: Agent,
    eval_set: EvalSet,
    *,
    repeats: int,
    judge_repeats: int,
    on_row: Callable[[CaseRow], None] | None = None,
) -> MetricNoiseReport:
    """Run each case `repeats` times, judge each output `judge_repeats` times, and separate the two sources of noise.

    A judge is really asked again: each judgement has its own answers in the cache, so measuring a second time costs
    nothing.
    """
    if repeats < 2 or judge_repeats < 2:
        raise SetupError(
            f"metric noise needs at least 2 repeats and 2 judge_repeats, got {repeats} and {judge_repeats}"
        )
    profile = Profile.baseline(agent.describe())
    rows: list[CaseRow] = []
    judging = evaluator.with_metrics(
        _Judgement(metric, number) for number in range(judge_repeats) for metric in evaluator.metrics
    )
    async for row in judging.stream_rows(agent, eval_set, profile, runs=list_case_runs(eval_set, range(repeats))):
        rows.append(row)
        if on_row is not None:
            on_row(row)
    rows.sort(key=lambda row: (row.case_id, row.repeat))  # sums of floats must not depend on which case finished first
    names = [metric.name for metric in evaluator.metrics]
    first_judgements = (
        replace(row, scores=tuple(replace(score, metric=name) for score, name in zip(row.scores, names, strict=False)))
        for row in rows
    )
    metrics = tuple(_estimate_metric_noise(name, rows, at=at, step=len(names)) for at, name in enumerate(names))
    evaluation = evaluator.build_evaluation(first_judgements, eval_set, profile)
    return MetricNoiseReport(judge_repeats=judge_repeats, metrics=metrics, evaluation=evaluation)


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


def _estimate_metric_noise(name: str, rows: Iterable[CaseRow], *, at: int, step: int) -> MetricNoise:
    by_case: dict[str, list[list[float]]] = {}
    for row in rows:
        values = [score.value for score in row.scores[at::step] if score.value is not None]
        by_case.setdefault(row.case_id, []).append(values)
    agent, judge = estimate_variances(by_case.values())
    return MetricNoise(metric=name, agent_variance=agent, judge_variance=judge)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """One of several judgements by a metric, as a metric of its own."""

    metric: Metric
    number: int

    @property
    def name(self) -> str:
        return f"{self.number} {self.metric.name}"

    @property
    def threshold(self) -> float:
        return self.metric.threshold

    @property
    def needs_reference(self) -> bool:
        return self.metric.needs_reference

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        with judge_again(self.number):
            return check_score(await call_any(self.metric, case, run), self.metric)
