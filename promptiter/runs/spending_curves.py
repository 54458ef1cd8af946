"""Spending curves: the score of a search against what it had spent, averaged over its runs.

Between two rounds a run has the score of its best profile so far, and after its end the last one. The curve begins
where every run has evaluated its baseline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from promptiter.evaluation.stats.search_differences import ComparedFigure
from promptiter.evaluation.stats.sign_flips import CenterInterval, estimate_center
from promptiter.runs.search_runs import SearchRun, SpentPoint

POINTS = 13
"""Places on the axis of spending at which a curve is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The mean score of the runs once each had spent this much."""

    spent: float
    score: CenterInterval


def average_curves(runs: Sequence[SearchRun], axis: ComparedFigure) -> list[CurvePoint]:
    """The curve of a search against calls, case runs or dollars; empty if these are unknown for a run."""
    curves = [[(_read_spent(point, axis), point.score) for point in run.curve] for run in runs]
    known = [[(spent, score) for spent, score in curve if spent is not None] for curve in curves]
    if not known or any(len(curve) < max(1, len(all_points)) for curve, all_points in zip(known, curves, strict=True)):
        return []
    first, last = max(curve[0][0] for curve in known), max(curve[-1][0] for curve in known)
    places = [first + (last - first) * at / (POINTS - 1) for at in range(POINTS)] if last > first else [first]
    return [
        CurvePoint(spent=place, score=estimate_center([_find_score(curve, place) for curve in known]))
        for place in places
    ]


def _read_spent(point: SpentPoint, axis: ComparedFigure) -> float | None:
    return {"calls": point.calls, "case_runs": point.case_runs, "usd": point.usd}.get(axis)


def _find_score(curve: Sequence[tuple[float, float]], spent: float) -> float:
    at = bisect_right(curve, spent + 1e-9 * max(1.0, spent), key=lambda point: point[0])
    return curve[max(0, at - 1)][1]
