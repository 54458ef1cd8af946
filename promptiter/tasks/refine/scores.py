"""Scores as parts of a RunRecord: values and thresholds are metrics, and what failed scores say are defects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from promptiter.backprop.loss import severity_of
from promptiter.errors import MetricError
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.score import Score
from promptiter.tasks.refine.records import Defect, MetricValue

MOST_FINDINGS = 12
"""Findings of one score that become defects of their own."""


def list_metrics(scores: Iterable[Score], weights: Mapping[str, float]) -> tuple[MetricValue, ...]:
    """The metrics of a run. Raises MetricError if one could not be scored: the loss would not be comparable."""
    found = []
    for score in scores:
        if score.value is None:
            raise MetricError(f"{score.metric!r} could not be scored: {score.error}")
        found.append(
            MetricValue(
                name=score.metric,
                value=score.value,
                threshold=score.threshold,
                weight=weights.get(score.metric, 1.0),
            )
        )
    return tuple(found)


def list_defects(scores: Iterable[Score]) -> tuple[Defect, ...]:
    """The findings and the reason of each failed score."""
    return tuple(defect for score in scores if score.is_scored and not score.passed for defect in _describe(score))


def _describe(score: Score) -> Iterator[Defect]:
    severity = severity_of(score)
    for finding in score.findings[:MOST_FINDINGS]:
        text = summarize_findings([finding])
        yield Defect(description=text, severity=severity, category=score.metric, location=finding.where)
    listed = summarize_findings(score.findings) if score.findings else ""
    reason = score.reason.strip()
    is_repeated = any(isinstance(each.actual, str) and each.actual and each.actual in reason for each in score.findings)
    if reason and reason not in listed and not (listed and listed in reason) and not is_repeated:
        yield Defect(description=reason, severity=severity, category=score.metric)
    elif not score.findings and not reason:
        text = f"{score.metric} is {score.value:.3f}, below {score.threshold:.3f}"
        yield Defect(description=text, severity=severity, category=score.metric)
