"""The raw figure of an objective on the scale of scores, from 0 to 1. Decisions compare raw figures, never these."""

from __future__ import annotations

from promptiter.tasks.files.task import TaskObjective


def scale_figure(value: float, objective: TaskObjective, *, baseline: float) -> float:
    """The score of a figure.

    With a `scale`, the figure on it. Otherwise the figure itself, if it is to be maximized and the baseline's is from 0
    to 1. Otherwise 0.5 for the baseline, and more or less the better or worse the figure is.
    """
    if objective.scale is not None:
        worst, best = objective.scale
        return _clamp((value - worst) / (best - worst))
    if objective.direction == "maximize" and 0 <= baseline <= 1:
        return _clamp(value)
    gain = value - baseline if objective.direction == "maximize" else baseline - value
    return 0.5 + gain / (2 * (abs(gain) + max(abs(baseline), 1.0)))


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
