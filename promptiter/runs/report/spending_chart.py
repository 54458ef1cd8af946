"""The chart of a comparison: score against spending, one line per search, bars for the 95% intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from promptiter.evaluation.result import Objective
from promptiter.evaluation.stats.search_differences import ComparedFigure
from promptiter.runs.report.charts import finish_svg, import_pygal, new_style
from promptiter.runs.search_verdict import NOUNS
from promptiter.runs.spending_curves import CurvePoint
from promptiter.wording import dollars, plural
from traces.text import cut, one_line

COLORS = 6
"""Colours of searches; the page has the variables --search-0 and so on. More searches use them again."""

MAX_NAME = 30


def chart_spending(curves: Mapping[str, Sequence[CurvePoint]], *, axis: ComparedFigure, objective: Objective) -> str:
    """Draw the curve of each search that has one; empty if none has."""
    drawn = {name: curve for name, curve in curves.items() if curve}
    if not drawn:
        return ""
    pygal = import_pygal()
    shown = [(at, name) for at, name in enumerate(curves) if name in drawn]
    is_loss = objective == "weighted_loss"
    ends = [end for curve in drawn.values() for point in curve for end in _list_ends(point, is_loss=is_loss)]
    chart = pygal.XY(
        style=new_style([f"var(--search-{at % COLORS})" for at, name in shown for _ in range(2)]),
        js=(),
        width=860,
        height=360,
        margin=8,
        margin_bottom=14,
        dots_size=3,
        legend_at_bottom=True,
        legend_at_bottom_columns=min(len(drawn), 4),
        truncate_legend=-1,
        truncate_label=-1,
        max_scale=8,
        show_x_guides=False,
        x_title=f"{NOUNS[axis]} of a run",
        y_title="weighted loss on validation" if is_loss else f"{objective.replace('_', ' ')} on validation",
        range=(min(0.0, *ends), max(1.0, *ends)),
        xrange=(0, max(point.spent for curve in drawn.values() for point in curve)),
        value_formatter=lambda value: f"{value:.2f}",
        x_value_formatter=dollars if axis == "usd" else lambda value: f"{value:,.0f}",
    )
    chart.uuid = f"spending-{axis}"
    for name, curve in drawn.items():
        chart.add(cut(one_line(name), MAX_NAME), list(_draw_means(name, curve, axis, is_loss=is_loss)))
        bars = list(_draw_intervals(curve, is_loss=is_loss))
        chart.add(None, bars, show_dots=False, allow_interruptions=True, stroke_style={"width": 1})
    title = f"{objective.replace('_', ' ')} against {NOUNS[axis]} of {plural(len(drawn), 'search', 'searches')}"
    return finish_svg(chart.render(is_unicode=True), title)


def _draw_means(
    name: str, curve: Sequence[CurvePoint], axis: ComparedFigure, *, is_loss: bool
) -> Iterator[dict[str, Any]]:
    for point in curve:
        score, *ends = _list_ends(point, is_loss=is_loss)
        spent = dollars(point.spent) if axis == "usd" else f"{point.spent:,.0f} {NOUNS[axis]}"
        interval = f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else ""
        yield {"value": (point.spent, score), "label": f"{name}, {spent}: {score:.3f}{interval}"}


def _draw_intervals(curve: Sequence[CurvePoint], *, is_loss: bool) -> Iterator[tuple[float, float] | None]:
    """A vertical line per interval: charts of two axes have no bars of their own."""
    for point in curve:
        _, *ends = _list_ends(point, is_loss=is_loss)
        yield from ((point.spent, end) for end in ends)
        yield None


def _list_ends(point: CurvePoint, *, is_loss: bool) -> list[float]:
    """The mean score, and the ends of its interval if there is one. A loss is shown as a positive number."""
    found = (point.score.mean, point.score.low, point.score.high)
    known = [each for each in found if each is not None]
    return known if not is_loss else [-known[0], *sorted(-each for each in known[1:])]
