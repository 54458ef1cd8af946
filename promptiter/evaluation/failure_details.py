"""What a report of a failed case says, as plain data: JUnit files and failing tests show it as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.score import Score
from traces.model import Json


def describe_failures(case: EvalCase, rows: Iterable[CaseRow]) -> list[dict[str, Json]]:
    """What was asked and expected, what came, and which metric refused it, for each failed score of some runs."""
    return [_describe(case, row, score) for row in rows for score in row.scores if not score.passed]


def _describe(case: EvalCase, row: CaseRow, score: Score) -> dict[str, Json]:
    return {
        "input": [turn.user for turn in case.turns],
        "expected": [turn.expected for turn in case.turns],
        "actual": row.output,
        "metric": score.metric,
        "score": score.value,
        "reason": score.error or score.reason,
        "repeat": row.repeat,
    }
