"""Judgements: each run of a case scored several times by the same metrics, so that the noise of judges can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, AgentRun
from promptiter.concurrency import call_any
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import Evaluator, OnRow, list_case_runs
from promptiter.evaluation.metrics.metric import Metric, check_score
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.noise import NoiseReport
from promptiter.llm.judgement import MAX_JUDGEMENTS, judge_again
from promptiter.profile import Profile

JUDGE_REPEATS = 2
"""Judgements of each run. With several cases and repeats, two show the noise of a judge."""


def judge_repeatedly(evaluator: Evaluator, count: int) -> Evaluator:
    """An evaluator that scores each run this many times. `split_judgements` takes its rows apart.

    A judge is asked again, with answers of its own in the cache. The first judgement is that of the given evaluator.
    """
    if not 1 <= count < MAX_JUDGEMENTS:
        raise SetupError(f"judge_repeats is {count!r}; give a number from 1 to {MAX_JUDGEMENTS - 1}")
    return evaluator.with_metrics(
        RepeatedMetric(metric, number) for number in range(count) for metric in evaluator.metrics
    )


def split_judgements(row: CaseRow, count: int) -> list[CaseRow]:
    """The row of each judgement of a run that was scored `count` times."""
    metrics = len(row.scores) // count
    return [replace(row, scores=row.scores[at * metrics : (at + 1) * metrics]) for at in range(count)]


def build_judgements(
    evaluator: Evaluator, rows: Iterable[Sequence[CaseRow]], eval_set: EvalSet, profile: Profile
) -> tuple[Evaluation, ...]:
    """One evaluation for each judgement, from the rows of each run."""
    return tuple(evaluator.build_evaluation(judged, eval_set, profile) for judged in zip(*rows, strict=True)) or (
        evaluator.build_evaluation((), eval_set, profile),
    )


async def measure_metric_noise(
    evaluator: Evaluator,
    agent: Agent,
    eval_set: EvalSet,
    *,
    repeats: int,
    judge_repeats: int = JUDGE_REPEATS,
    on_row: OnRow | None = None,
) -> NoiseReport:
    """Run each case `repeats` times, judge each run `judge_repeats` times, and separate the two sources of noise."""
    if repeats < 2 or judge_repeats < 2:
        raise SetupError(
            f"metric noise needs at least 2 repeats and 2 judge_repeats, got {repeats} and {judge_repeats}"
        )
    profile = Profile.baseline(agent.describe())
    rows: list[list[CaseRow]] = []
    judging = judge_repeatedly(evaluator, judge_repeats)
    async for row in judging.stream_rows(agent, eval_set, profile, runs=list_case_runs(eval_set, range(repeats))):
        rows.append(split_judgements(row, judge_repeats))
        if on_row is not None:
            on_row(rows[-1][0])
    first, *others = build_judgements(evaluator, rows, eval_set, profile)
    return NoiseReport(evaluation=first, rejudged=tuple(others))


@dataclass(frozen=True, slots=True)
class RepeatedMetric:
    """One of several judgements by a metric, as a metric of its own."""

    metric: Metric
    number: int

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def threshold(self) -> float:
        return self.metric.threshold

    @property
    def needs_reference(self) -> bool:
        return self.metric.needs_reference

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        with judge_again(self.number):
            return check_score(await call_any(self.metric, case, run), self.metric)
