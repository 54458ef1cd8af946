"""Checks a judge against people: how far it agrees with their labels, how noisy it is, and what biases it.

    labels = load_labels("labels.csv")
    check = await check_judge(metric, labels, gateway=gateway)
    print(check.kappa, check.noise_std, check.length_bias, check.position)

Each labelled answer is judged several times, as in the repeats of a run, and once with the other order of what the
judge is shown: rubrics reversed, the reference after the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean

from promptiter.agents.base import AgentRun
from promptiter.concurrency import call_any, run_together
from promptiter.errors import BudgetEndedError, MetricError, SetupError, UnexpectedCallError
from promptiter.evaluation.data.labels import LabelledAnswer, LabelSet
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.metric import Metric, check_score, report_exception
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.agreement import (
    IntervalEstimate,
    JudgedAnswer,
    estimate_kappa,
    estimate_mean,
    estimate_rank_correlation,
)
from promptiter.evaluation.stats.metric_noise import estimate_variances
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.judgement import judge_repeat

JUDGEMENTS = 3
"""How often each answer is judged."""

CONCURRENT_ANSWERS = 16

MAX_UNSCORED = 0.25
"""If the judge fails on a larger share of the answers, the check fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBias:
    """What the order of rubrics, or of reference and response, changes.

    `shift` is the mean change of the score in the other order. `changed` is the share of verdicts that differ between
    both orders, and `changed_by_noise` that between two judgements in the same order; `excess` is their difference.
    With several rubrics, each has a verdict.
    """

    shift: IntervalEstimate
    changed: float
    changed_by_noise: float
    excess: IntervalEstimate

    @property
    def is_shown(self) -> bool:
        return self.shift.excludes_zero or self.excess.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCheck:
    """How a judge compares with people on `answers` labelled answers; `unscored` could not be judged.

    `kappa` is chance-corrected agreement; None if it is undefined. `agreement` is the share of equal verdicts, for
    grades 1 minus the mean absolute difference. `leniency` is how much more the judge gives than people. `noise_std` is
    the standard deviation of its values for one answer, `inconsistent` the number of answers on which its verdicts
    differ. `length_bias` is the rank correlation of its error with the length of the answer. `position` is None if the
    judge is shown nothing in an order. `repeated_labels` are rows of the same answer and label, which count once, and
    `contradicted` answers have several labels.
    """

    metric: str
    answers: int
    unscored: int
    judgements: int
    is_graded: bool
    kappa: IntervalEstimate | None
    agreement: float
    leniency: IntervalEstimate
    noise_std: float
    inconsistent: int
    length_bias: IntervalEstimate | None
    position: PositionBias | None
    definition: str = ""
    repeated_labels: int = 0
    contradicted: int = 0


async def check_judge(
    metric: Metric,
    labels: LabelSet,
    *,
    gateway: Gateway | None = None,
    judgements: int = JUDGEMENTS,
    on_judgement: Callable[[], None] = lambda: None,
) -> JudgeCheck:
    """Compare a metric with the labels: its verdicts with words such as `pass`, its values with grades.

    `on_judgement` is called after each judgement. MetricError if too many answers could not be judged.
    """
    if judgements < 2:
        raise SetupError(f"judgements is {judgements!r}; give 2 or more, so that the noise of the judge can be seen")
    other = metric.in_other_order() if isinstance(metric, JudgeMetric) else None
    slots = asyncio.Semaphore(CONCURRENT_ANSWERS)

    async def judge(answer: LabelledAnswer) -> _AnswerScores:
        async with slots:
            return await _judge_answer(metric, other, answer, judgements, on_judgement)

    with (gateway or current_gateway()).active():
        judged = await run_together(map(judge, labels.answers))
    known = [(answer, each) for answer, each in zip(labels.answers, judged, strict=True) if each.problem is None]
    _check_unscored(metric, judged, len(known))
    return _compare(metric, labels, known, judgements)


@dataclass(frozen=True, slots=True)
class _AnswerScores:
    """The scores of one answer: several in the usual order, and one in the other order if there is one."""

    scores: tuple[Score, ...]
    other: Score | None

    @property
    def problem(self) -> str | None:
        """Why the answer could not be judged; None if it was."""
        scores = (*self.scores, *(() if self.other is None else (self.other,)))
        return next((score.error or "unscored" for score in scores if not score.is_scored), None)

    def values(self, *, is_graded: bool) -> tuple[float, ...]:
        return tuple(_find_value(score, is_graded=is_graded) for score in self.scores)


async def _judge_answer(
    metric: Metric, other: Metric | None, answer: LabelledAnswer, judgements: int, on_judgement: Callable[[], None]
) -> _AnswerScores:
    scores = []
    for number in range(judgements):
        scores.append(await _judge_once(metric, answer, repeat=number))
        on_judgement()
    swapped = None if other is None else await _judge_once(other, answer, repeat=0)
    return _AnswerScores(tuple(scores), swapped)


async def _judge_once(metric: Metric, answer: LabelledAnswer, *, repeat: int) -> Score:
    try:
        with judge_repeat(repeat):
            return check_score(await call_any(metric, answer.case, AgentRun(output=answer.output)), metric)
    except (BudgetEndedError, UnexpectedCallError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a metric is user code; a failure is unscored
        return report_exception(metric, error)


def _check_unscored(metric: Metric, judged: Sequence[_AnswerScores], known: int) -> None:
    if known >= 2 and len(judged) - known <= MAX_UNSCORED * len(judged):
        return
    problem = next(each.problem for each in judged if each.problem is not None)
    raise MetricError(
        f"metric {metric.name!r} could not judge {len(judged) - known} of {len(judged)} answers: {problem}"
    )


def _compare(
    metric: Metric, labels: LabelSet, known: Sequence[tuple[LabelledAnswer, _AnswerScores]], judgements: int
) -> JudgeCheck:
    is_graded = labels.is_graded
    answers = [JudgedAnswer(answer.label, each.values(is_graded=is_graded)) for answer, each in known]
    _, variance = estimate_variances([[answer.values] for answer in answers])
    errors = [(float(len(labelled.output)), answer.error) for (labelled, _), answer in zip(known, answers, strict=True)]
    return JudgeCheck(
        metric=metric.name,
        answers=len(known),
        unscored=len(labels.answers) - len(known),
        judgements=judgements,
        is_graded=is_graded,
        kappa=estimate_kappa(answers),
        agreement=1 - fmean(fmean(abs(value - answer.label) for value in answer.values) for answer in answers),
        leniency=estimate_mean([answer.error for answer in answers]),
        noise_std=sqrt(variance or 0.0),
        inconsistent=sum(len({score.passed for score in each.scores}) > 1 for _, each in known),
        length_bias=estimate_rank_correlation(errors),
        position=_find_position_bias(metric, [each for _, each in known], is_graded=is_graded),
        definition=metric.definition if isinstance(metric, JudgeMetric) else "",
        repeated_labels=labels.repeated,
        contradicted=labels.contradicted,
    )


def _find_position_bias(metric: Metric, judged: Sequence[_AnswerScores], *, is_graded: bool) -> PositionBias | None:
    shifts, changed, by_noise = [], [], []
    for each in judged:
        if each.other is None or not isinstance(metric, JudgeMetric):
            return None
        other, *verdicts = (_list_verdicts(metric, score) for score in (each.other, *each.scores))
        shifts.append(_find_value(each.other, is_graded=is_graded) - fmean(each.values(is_graded=is_graded)))
        changed.append(fmean(_compare_verdicts(verdict, other) for verdict in verdicts))
        by_noise.append(fmean(_compare_verdicts(one, two) for one, two in combinations(verdicts, 2)))
    return PositionBias(
        shift=estimate_mean(shifts),
        changed=fmean(changed),
        changed_by_noise=fmean(by_noise),
        excess=estimate_mean([one - two for one, two in zip(changed, by_noise, strict=True)]),
    )


def _list_verdicts(metric: JudgeMetric, score: Score) -> list[bool]:
    """Whether the answer passed; with several rubrics, whether it met each of them, in the order of their ids."""
    if len(metric.rubrics) < 2:
        return [score.passed]
    failed = {finding.predicate for finding in score.findings}
    return [f"rubric:{name}" not in failed for name in sorted(rubric.id for rubric in metric.rubrics)]


def _compare_verdicts(one: Sequence[bool], other: Sequence[bool]) -> float:
    """The share of verdicts that differ."""
    return fmean(first != second for first, second in zip(one, other, strict=True))


def _find_value(score: Score, *, is_graded: bool) -> float:
    return score.value or 0.0 if is_graded else float(score.passed)
