"""The figures of a comparison as texts in the cells of tables: means with their intervals, scores, budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from promptiter.evaluation.result import Objective
from promptiter.evaluation.stats.search_differences import ComparedFigure
from promptiter.evaluation.stats.sign_flips import CenterInterval
from promptiter.runs.cost_wording import format_count, format_time
from promptiter.runs.search_comparison import Basis, SearchComparison, SearchFigures
from promptiter.wording import dollars

UNKNOWN = "unknown"

BASES: Mapping[Basis, str] = {
    "test set": "on the test set",
    "final test": "run again on the validation cases in the final test",
    "validation": "on the validation cases, without a final test",
}
"""Where the compared scores are from."""

COUNTS: Mapping[str, str] = {"failed": "failed", "cut": "cut by budget"}
"""Columns of a table that are left out if no search has such runs, by their attribute of SearchFigures."""


@dataclass(frozen=True, slots=True)
class FigureWording:
    """How figures are written. A loss, which is negative as an objective, is shown as a positive number."""

    objective: Objective

    @property
    def score_name(self) -> str:
        return self.objective.replace("_", " ")

    def score(self, value: float | None) -> str:
        if value is None:
            return UNKNOWN
        return f"{-value + 0.0 if self.objective == 'weighted_loss' else value:.3f}"

    def scores(self, center: CenterInterval | None) -> str:
        """`0.917 (0.861 to 0.972)`."""
        if center is not None and self.objective == "weighted_loss" and center.low is not None:
            center = CenterInterval(mean=center.mean, low=center.high, high=center.low)
        return _format(center, self.score)

    def gain(self, center: CenterInterval | None) -> str:
        return _format(center, "{:+.3f}".format)

    def cost(self, figures: SearchFigures, name: ComparedFigure) -> str:
        """`312 (250 to 380)`, or dollars."""
        found: CenterInterval | None = getattr(figures, name)
        return _format(found, dollars if name == "usd" else format_count)

    def time(self, center: CenterInterval | None) -> str:
        return UNKNOWN if center is None else format_time(60 * center.mean)

    def amount(self, value: float | None, name: ComparedFigure) -> str:
        """The cost of one run."""
        if value is None:
            return UNKNOWN
        return dollars(value) if name == "usd" else format_count(value)


def list_counts(found: SearchComparison) -> dict[str, str]:
    """The columns of COUNTS that have anything to show."""
    return {name: text for name, text in COUNTS.items() if any(getattr(each, name) for each in found.figures.values())}


def describe_budget(budget: Mapping[str, float]) -> str:
    """`max_calls 500, max_usd 2`, or `no cap`."""
    return ", ".join(f"{name} {value:g}" for name, value in budget.items()) or "no cap"


def _format(center: CenterInterval | None, show: Callable[[float], str]) -> str:
    if center is None:
        return UNKNOWN
    if center.low is None or center.high is None:
        return show(center.mean)
    return f"{show(center.mean)} ({show(center.low)} to {show(center.high)})"
