"""The Metric protocol, and the rules that all metrics share.

The value of a metric is the mean over turns. A missing turn counts as 0, and an extra turn counts, too. What cannot be
judged is unscored: it is neither 0 nor left out. All indices in findings (turns, characters, tool calls) start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol, TypeAlias, runtime_checkable

from promptiter.agents.base import AgentRun
from promptiter.errors import MetricError, ModelError, SetupError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.score import Finding, Score
from promptiter.outages import is_outage
from promptiter.wording import shorten

MAX_FINDINGS = 100
"""A score keeps at most this many findings. Its reason counts the others."""

SHOWN_FINDINGS = 3

ROUNDING = 1e-9
"""Scores may be outside 0 to 1 by this much."""


class Metric(Protocol):
    """Judges runs. The evaluator calls it once per run of a case, concurrently, so it must not block the event loop.

    What cannot be judged (a failed run, a case without a reference, a judge that fails) is an unscored Score with an
    error, never an exception. If a metric raises anyway, the evaluator records an unscored Score.
    """

    @property
    def name(self) -> str:
        """The name in reports, unique among the metrics of an evaluation."""

    @property
    def threshold(self) -> float:
        """A value at or above the threshold passes."""

    @property
    def needs_reference(self) -> bool:
        """Whether a case needs an expected answer."""

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        """The score of one run."""


@runtime_checkable
class DescribedMetric(Protocol):
    """A metric that says what it looks at, such as `JSON, only order_id`, for the models that explain failures."""

    @property
    def description(self) -> str: ...


def describe_metric(metric: Metric) -> str:
    """What a metric looks at, and from which score it passes, such as `JSON, only order_id; passes at 0.8`."""
    threshold = f"passes at {metric.threshold:g}" if metric.threshold != 1.0 else ""
    description = metric.description if isinstance(metric, DescribedMetric) else ""
    return "; ".join(part for part in (description, threshold) if part)


def check_metric(metric: object) -> None:
    """Raise SetupError if an object is not a metric, or its threshold can never decide anything."""
    if not is_metric(metric):
        raise SetupError(
            f"{shorten(metric)} is not a metric; give FunctionMetric(name=..., function=...), or use build_metrics"
        )
    name, threshold = getattr(metric, "name", ""), getattr(metric, "threshold", None)
    if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise SetupError(
            f"the threshold of metric {name!r} is {threshold!r}; scores are from 0 to 1, so give a number in that range"
        )


def is_metric(value: object) -> bool:
    """Whether an object has what a metric needs."""
    return not isinstance(value, type) and callable(value) and all(hasattr(value, name) for name in _ATTRIBUTES)


_ATTRIBUTES = ("name", "threshold", "needs_reference")


def check_score(score: object, metric: Metric) -> Score:
    """The score that a metric returned, or an unscored one if it is not a score from 0 to 1."""
    if not isinstance(score, Score):
        return blame_metric(metric, f"returned {shorten(score)}; return a Score")
    if score.value is None or -ROUNDING <= score.value <= 1 + ROUNDING:
        return score
    return blame_metric(metric, f"returned {score.value:g}; return a score from 0 to 1")


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The judgement of one turn. Its findings need not name the turn. `reasons` are those of a judge for failures."""

    value: float
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()


TurnJudge: TypeAlias = Callable[[Turn | None, AgentRun], TurnScore]
"""Judges one turn. The Turn is None only if the metric needs no reference. Raises MetricError on a bad reference."""


def score_by_turn(
    metric: Metric,
    case: EvalCase,
    run: AgentRun,
    *,
    judge: TurnJudge,
    has_reference: Callable[[Turn], bool] = lambda turn: turn.expected is not None,
) -> Score:
    """The mean of what `judge` returns for each turn.

    A metric that needs a reference skips turns that have none. If no turn has one, the case is unscored.
    """
    if problem := describe_failure(run):
        return leave_unscored(metric, problem)
    needs_reference = metric.needs_reference
    if needs_reference and not any(map(has_reference, case.turns)):
        return leave_unscored(metric, f"{metric.name} needs a reference and case {case.id!r} has none")

    values: list[float] = []
    findings: list[Finding] = []
    reasons: list[str] = []
    for index, (turn, turn_run) in enumerate(pair_turns(case, run)):
        reasons.append("")
        if needs_reference and turn is not None and not has_reference(turn):
            continue
        try:
            judged = _judge_turn(metric, case, turn, turn_run, judge)
        except MetricError as error:
            return leave_unscored(metric, f"turn {index} of case {case.id!r} cannot be judged: {error}")
        values.append(judged.value)
        findings += (replace(finding, turn=index) for finding in judged.findings)
        if judged.reasons or judged.findings:
            reasons[-1] = "; ".join(judged.reasons) or summarize_findings(judged.findings)
    return Score(
        metric=metric.name,
        value=mean(values),
        threshold=metric.threshold,
        reason=summarize_findings(findings, turns=len(values)),
        findings=tuple(findings[:MAX_FINDINGS]),
        turn_reasons=tuple(reasons) if len(reasons) > 1 and findings else (),
    )


def pair_turns(case: EvalCase, run: AgentRun) -> list[tuple[Turn | None, AgentRun | None]]:
    """Pair the turns of case and run. The first of a pair is None for an extra turn, the second for a missing one."""
    return list(zip_longest(case.turns, run.by_turn))


def describe_failure(run: AgentRun) -> str | None:
    """Why a run cannot be judged: its own error or that of one of its turns; None if it can."""
    if run.error is not None:
        return f"the run failed: {run.error.text}"
    for index, turn in enumerate(run.turns):
        if turn.error is not None:
            return f"turn {index} of the run failed: {turn.error.text}"
    return None


def report_exception(metric: Metric, error: BaseException) -> Score:
    """The score of a run whose metric raised. A model or service that failed is not a mistake of the metric."""
    raised = f"raised {type(error).__name__}: {error}"
    if isinstance(error, ModelError) or is_outage(error):
        return leave_unscored(metric, f"metric {metric.name!r} {raised}", is_outage=is_outage(error))
    return blame_metric(metric, raised)


def blame_metric(metric: Metric, what: str) -> Score:
    """The score of a run that a metric could not judge because of a mistake in its code."""
    return leave_unscored(metric, f"{MetricError.__name__}: metric {metric.name!r} {what}")


def leave_unscored(metric: Metric, error: str, *, is_outage: bool = False) -> Score:
    return Score(metric=metric.name, value=None, threshold=metric.threshold, error=error, is_outage=is_outage)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def summarize_findings(findings: Sequence[Finding], *, turns: int = 1) -> str:
    """One sentence for people and models: the first findings, and how many more there are."""
    if not findings:
        return "as expected" if turns == 1 else f"all {turns} turns are as expected"
    sentences = [
        _describe_finding(finding) + (f" (turn {finding.turn})" if turns > 1 else "")
        for finding in findings[:SHOWN_FINDINGS]
    ]
    if len(findings) > SHOWN_FINDINGS:
        sentences.append(f"and {len(findings) - SHOWN_FINDINGS} more")
    return "; ".join(sentences)


def name_characters(start: int, end: int) -> str:
    """A range of the output, as findings refer to it: `characters 4-9`."""
    return f"characters {start}-{end}"


def _judge_turn(metric: Metric, case: EvalCase, turn: Turn | None, run: AgentRun | None, judge: TurnJudge) -> TurnScore:
    if run is None:
        expected = turn.expected if turn is not None else None
        return TurnScore(0.0, (Finding(kind="missing", expected=expected, predicate="turn"),))
    if turn is not None or not case.turns:
        return judge(turn, run)
    extra = Finding(kind="unexpected", actual=run.output, predicate="turn")
    if metric.needs_reference:
        return TurnScore(0.0, (extra,))
    judged = judge(turn, run)
    return replace(judged, findings=(extra, *judged.findings))


def _describe_finding(finding: Finding) -> str:
    if finding.kind == "violated":
        text = f"{finding.predicate} {shorten(finding.expected)} is violated by {shorten(finding.actual)}"
    else:
        what = f"{finding.predicate.replace('_', ' ')}: " if finding.predicate else ""
        text = {
            "missing": f"{what}{shorten(finding.expected)} is missing",
            "unexpected": f"{what}{shorten(finding.actual)} is not expected",
            "wrong": f"{what}expected {shorten(finding.expected)}, got {shorten(finding.actual)}",
        }[finding.kind]
    return f"{text} at {finding.where}" if finding.where else text
