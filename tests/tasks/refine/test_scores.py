from __future__ import annotations

import pytest

from promptiter.errors import MetricError
from promptiter.evaluation.score import Finding, Score
from promptiter.tasks.refine.records import Defect, MetricValue
from promptiter.tasks.refine.scores import list_defects, list_metrics


def test_failed_scores_are_defects_by_their_findings_and_reasons() -> None:
    finding = Finding(kind="violated", predicate="rubric:short", expected="Be short.", actual="it is long")
    scores = (
        Score(metric="met", value=1.0, reason="fine"),
        Score(metric="judge", value=0.5, findings=(finding,), reason="rubric 'short' failed: it is long"),
        Score(metric="words", value=0.0, reason="no sources"),
        Score(metric="bare", value=0.9),
    )
    first, second, third = list_defects(scores)
    assert (first.category, first.severity) == ("judge", "P1")
    assert "it is long" in first.description
    assert second == Defect(description="no sources", severity="P0", category="words")
    assert third == Defect(description="bare is 0.900, below 1.000", severity="P3", category="bare")


def test_values_thresholds_and_weights_are_metrics() -> None:
    scores = [Score(metric="a", value=0.5, threshold=0.8), Score(metric="b", value=1.0)]
    assert list_metrics(scores, {"a": 2.0}) == (
        MetricValue(name="a", value=0.5, threshold=0.8, weight=2.0),
        MetricValue(name="b", value=1.0, threshold=1.0),
    )
    with pytest.raises(MetricError, match="'a' could not be scored: no judge"):
        list_metrics([Score(metric="a", value=None, error="no judge")], {})
