"""The charts of a report: SVG that stands alone. Colours are CSS variables of the page, so light and dark share one.

pygal draws them; this is the only module that imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import SubElement, fromstring, tostring

from promptiter.runs.report.trajectory import TrajectoryPoint
from promptiter.wording import plural
from traces.text import cut, one_line

MOST_POINTS = 200
"""A chart of more points is neither readable nor small; trajectory.csv has all of them."""

MAX_REASON = 200
SERIES = {
    "accepted": ("accepted so far", "var(--accent)"),
    "rejected": ("rejected", "var(--bad)"),
    "undecided": ("not decided", "var(--muted)"),
    "baseline": ("baseline, tested", "var(--muted)"),
    "best": ("best, tested", "var(--good)"),
}
"""The series by kind: their names in the legend, and their colours."""


def chart_trajectory(points: Sequence[TrajectoryPoint], *, objective: str) -> str:
    """Draw the search round by round, then the final test. Bars are the noise; a line marks where a phase begins."""
    pygal = _import_pygal()
    shown = choose_points(points)
    used = [kind for kind in SERIES if any(_name_series(each) == kind for each in shown)]
    labels, starts = list(_label(shown)), list(_find_phase_starts(shown))
    style = pygal.style.Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--muted)",
        foreground_strong="var(--text)",
        foreground_subtle="var(--muted)",
        guide_stroke_color="var(--border)",
        major_guide_stroke_color="var(--muted)",
        colors=tuple(SERIES[kind][1] for kind in used),
        value_colors=("var(--text)",) * len(used),
        ci_colors=tuple(SERIES[kind][1] for kind in used),
        font_family="inherit",
        label_font_size=12,
        major_label_font_size=12,
        legend_font_size=13,
        title_font_size=12,
        opacity="1",
        stroke_opacity="1",
        stroke_width="2",
    )
    chart = pygal.Line(
        style=style,
        js=(),
        width=860,
        height=340,
        margin=8,
        dots_size=4,
        legend_at_bottom=True,
        legend_at_bottom_columns=len(used),
        truncate_legend=-1,
        truncate_label=-1,
        x_labels=labels,
        x_labels_major=[labels[at] for at in starts],
        show_x_guides=True,
        show_minor_x_labels=len(labels) <= 40,
        y_title=objective,
        range=_find_range(shown),
        formatter=lambda value: f"{value:.3f}",
    )
    chart.uuid = "trajectory"
    for kind in used:
        values = [_draw_point(each) if _name_series(each) == kind else None for each in shown]
        chart.add(SERIES[kind][0], values, stroke=kind == "accepted")
    return _finish(chart.render(is_unicode=True), f"{objective} over {plural(len(shown), 'evaluation')}")


def _import_pygal() -> Any:
    """Import pygal, and remove its hook for plugins, which would slow down and warn about every later import."""
    import pygal

    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "PluginImportFixer"]
    return pygal


def choose_points(points: Sequence[TrajectoryPoint]) -> list[TrajectoryPoint]:
    """The points that a chart shows: of many, those that were not rejected, and the last of all."""
    kept = list(points)
    if len(kept) > MOST_POINTS:
        kept = [each for each in points if each.kind != "rejected"][: MOST_POINTS // 2]
        kept += [each for each in points[-(MOST_POINTS - len(kept)) :] if each not in kept]
    return kept


def _name_series(point: TrajectoryPoint) -> str:
    if point.phase != "search":
        return "baseline" if point.kind == "baseline" else "best"
    return "accepted" if point.kind == "baseline" else point.kind


def _label(points: Sequence[TrajectoryPoint]) -> Iterator[str]:
    """`baseline`, `round 1`, `2`, ..., `final test: baseline`, `best`. Only the first candidate of a round has one."""
    phase, last = "search", -1
    for each in points:
        if each.phase != "search":
            name = "baseline" if each.kind == "baseline" else "best"
            yield f"{each.phase}: {name}" if each.phase != phase else name
        elif each.round == last:
            yield " "
        else:
            yield "baseline" if each.round == 0 else f"round {each.round}" if each.round == 1 else str(each.round)
        phase, last = each.phase, each.round


def _find_phase_starts(points: Sequence[TrajectoryPoint]) -> Iterator[int]:
    for at, each in enumerate(points):
        if at and each.phase != points[at - 1].phase:
            yield at


def _find_range(points: Sequence[TrajectoryPoint]) -> tuple[float, float]:
    """The scale: 0 to 1 for scores, more if a score or its bar needs it."""
    ends = [each.score + side * (each.noise or 0.0) for each in points for side in (-1, 1)]
    return min(0.0, *ends), max(1.0, *ends)


def _draw_point(point: TrajectoryPoint) -> dict[str, Any]:
    where = point.phase if point.phase != "search" else f"round {point.round}" if point.round else "baseline"
    bar = "noise unknown" if point.noise is None else f"± {point.noise:.3f}"
    passed = f"{point.passed} of {plural(point.cases, 'case')} pass"
    reason = f"\n{cut(one_line(point.reason), MAX_REASON)}" if point.reason else ""
    label = f"{where}, {point.kind}: {point.score:.3f} {bar}, {passed}{reason}"
    drawn: dict[str, Any] = {"value": point.score, "label": label}
    if point.noise:
        drawn["ci"] = {"low": point.score - point.noise, "high": point.score + point.noise}
    return drawn


def _finish(svg: str, title: str) -> str:
    """The SVG without scripts and comments, and with the labels of points as tooltips."""
    root = fromstring(svg)  # leaves out comments
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        label = next((each.text for each in parent if each.get("class") == "label"), None)
        for child in [each for each in parent if each.tag.endswith(("script", "desc", "title"))]:
            parent.remove(child)
        if label is not None:
            SubElement(parent, "title").text = label
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title}
    return tostring(root, encoding="unicode")
