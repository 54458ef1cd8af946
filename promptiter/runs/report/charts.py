"""The charts of a report: SVG that stands alone. Colours are CSS variables of the page, so light and dark share one.

pygal draws them; this is the only module that imports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from promptiter.runs.report.trajectory import TrajectoryPoint
from promptiter.runs.trial_phases import TrialSummary
from promptiter.wording import plural
from traces.text import cut, one_line

MOST_POINTS = 200
"""A chart of more points is neither readable nor small; trajectory.csv has all of them."""

MOST_LABELS = 15
MOST_LONG_LABELS = 8
"""Places of a chart that have a label, and that have room for a long one."""

MAX_REASON = 200
_LATER_PHASES = ("final test", "test set")
SERIES = {
    "accepted": ("accepted so far", "var(--accent)"),
    "rejected": ("rejected", "var(--bad)"),
    "undecided": ("not decided", "var(--muted)"),
    "baseline": ("baseline, tested", "var(--muted)"),
    "best": ("best, tested", "var(--good)"),
}
"""The series by kind: their names in the legend, and their colours."""

TRIAL_SERIES = {
    "best": ("lowest accepted so far", "var(--accent)"),
    "accepted": ("accepted", "var(--good)"),
    "rejected": ("rejected", "var(--bad)"),
}
"""The same for the trials of coordinate descent."""


def chart_trajectory(points: Sequence[TrajectoryPoint], *, objective: str) -> str:
    """Draw the search round by round, then the final test. Bars are the noise; a line marks where a phase begins."""
    shown = choose_points(points)
    used = [kind for kind in SERIES if any(_name_series(each) == kind for each in shown)]
    slots = _arrange(shown)
    labels = list(_label(slots))
    chart = _new_line_chart(
        [SERIES[kind][1] for kind in used],
        height=340,
        dots_size=4,
        x_labels=labels,
        x_labels_major=[label for label in labels if label.startswith(_LATER_PHASES)],
        y_title=objective,
        range=_find_range(shown),
    )
    chart.uuid = "trajectory"
    for kind in used:
        chart.add(SERIES[kind][0], list(_draw_series(slots, kind)), stroke=kind == "accepted")
    return finish_svg(chart.render(is_unicode=True), f"{objective} over {plural(len(shown), 'evaluation')}")


def chart_trials(trials: Sequence[TrialSummary]) -> str:
    """Draw the loss on train trial by trial, with a mark where a phase begins, and the lowest accepted loss so far."""
    shown = list(trials[-MOST_POINTS:])
    labels = list(_label_phases(shown))
    kinds: dict[str, list[float | None]] = {
        "best": [each.best for each in shown],
        "accepted": [each.loss if each.outcome == "accepted" else None for each in shown],
        "rejected": [None if each.outcome == "accepted" else each.loss for each in shown],
    }
    chart = _new_line_chart(
        [TRIAL_SERIES[kind][1] for kind in kinds],
        height=300,
        dots_size=3,
        x_labels=labels,
        x_labels_major=[label for label in labels if label.strip()],
        show_minor_x_labels=False,
        y_title="loss on train",
        range=_pad_range([loss for each in shown for loss in (each.loss, each.best) if loss is not None]),
    )
    chart.uuid = "trials"
    for kind, values in kinds.items():
        points = [
            None
            if value is None
            else {"value": value, "label": _describe_trial(row), "node": {"r": 0 if kind == "best" else 3}}
            for row, value in zip(shown, values, strict=True)
        ]
        chart.add(TRIAL_SERIES[kind][0], points, stroke=kind == "best")
    return finish_svg(chart.render(is_unicode=True), f"loss on train over {plural(len(shown), 'trial')}")


def _pad_range(losses: Sequence[float]) -> tuple[float, float]:
    """Room around the losses, so that no point is cut off by an axis."""
    low, high = min(losses, default=0.0), max(losses, default=1.0)
    room = 0.06 * (high - low) or 0.05
    return max(0.0, low - room), high + room


def _label_phases(trials: Sequence[TrialSummary]) -> Iterator[str]:
    """`1 numeric` at the first trial of each phase."""
    last: tuple[int, str] | None = None
    for number, each in enumerate(trials):
        begins = last != (each.cycle, each.phase)
        yield f"{each.cycle} {each.phase}" if begins else " " * (number + 1)
        last = (each.cycle, each.phase)


def _describe_trial(row: TrialSummary) -> str:
    figures = "" if row.loss is None else f": {row.loss:.3f}"
    return f"trial {row.number}, {row.outcome.replace('_', ' ')}{figures}\n{cut(one_line(row.proposal), MAX_REASON)}"


def _new_line_chart(colors: Sequence[str], **options: Any) -> Any:
    """An empty chart of lines in these colours, with a legend below."""
    return import_pygal().Line(
        style=new_style(colors),
        js=(),
        width=860,
        margin=8,
        legend_at_bottom=True,
        legend_at_bottom_columns=len(colors),
        truncate_legend=-1,
        truncate_label=-1,
        show_x_guides=True,
        formatter=lambda value: f"{value:.3f}",
        **options,
    )


def new_style(colors: Sequence[str]) -> Any:
    """The style of a chart whose series have these colours."""
    style: Any = import_pygal().style.Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--muted)",
        foreground_strong="var(--text)",
        foreground_subtle="var(--muted)",
        guide_stroke_color="var(--border)",
        major_guide_stroke_color="var(--muted)",
        colors=tuple(colors),
        value_colors=("var(--text)",) * len(colors),
        ci_colors=tuple(colors),
        font_family="inherit",
        label_font_size=12,
        major_label_font_size=12,
        legend_font_size=13,
        title_font_size=12,
        opacity="1",
        stroke_opacity="1",
        stroke_width="2",
    )
    return style


def import_pygal() -> Any:
    """Import pygal, and remove its hook for plugins, which would slow down and warn about every later import."""
    import pygal

    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "PluginImportFixer"]
    return pygal


def choose_points(points: Sequence[TrajectoryPoint]) -> list[TrajectoryPoint]:
    """The points that a chart shows, in order: at most MOST_POINTS.

    Rejected candidates only fill the room that the others leave; what does not fit is thinned evenly.
    """
    kept: list[int] = []
    for is_rejected in (False, True):
        numbers = [at for at, each in enumerate(points) if (each.kind == "rejected") is is_rejected]
        tested = [at for at in numbers if points[at].phase != "search"]
        searched = numbers[: len(numbers) - len(tested)]
        kept += [*_thin(searched, MOST_POINTS - len(kept) - len(tested)), *tested]
    return [points[at] for at in sorted(kept)]


def _thin(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, evenly spaced, including the first and the last."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(at * (len(numbers) - 1) / (most - 1))] for at in range(most)] if most > 1 else []


def _name_series(point: TrajectoryPoint) -> str:
    if point.phase != "search":
        return "baseline" if point.kind == "baseline" else "best"
    return "accepted" if point.kind == "baseline" else point.kind


def _arrange(points: Sequence[TrajectoryPoint]) -> list[TrajectoryPoint | None]:
    """The points with empty places between those of the final test if there are many, so that they can be read."""
    gap = _measure_gap(points)
    slots: list[TrajectoryPoint | None] = []
    for each in points:
        slots += [None] * (gap - 1 if slots and each.phase != "search" else 0)
        slots.append(each)
    return [*slots, *[None] * (gap // 2)]


def _measure_gap(slots: Sequence[TrajectoryPoint | None]) -> int:
    """How many places from one label to the next, so that they do not overlap."""
    return math.ceil(sum(each is not None for each in slots) / MOST_LABELS)


def _label(slots: Sequence[TrajectoryPoint | None]) -> Iterator[str]:
    """`baseline`, `round 1`, `2`, ..., `final test: baseline`, `best`. Only the first candidate of a round has one.

    Of many rounds only some have one, and that of the final test is short.
    """
    gap, is_long = _measure_gap(slots), len(slots) <= MOST_LONG_LABELS
    labelled, phase, last = -gap, "search", -1
    for at, each in enumerate(slots):
        if each is None or (each.phase == "search" and (each.round == last or at - labelled < gap)):
            yield " "
            continue
        if each.phase != "search":
            name = "baseline" if each.kind == "baseline" else "best"
            begins = each.phase != phase
            yield (f"{each.phase}: {name}" if is_long else each.phase) if begins else name
        else:
            yield "baseline" if each.round == 0 else f"round {each.round}" if last < 1 else str(each.round)
        labelled, phase, last = at, each.phase, each.round


def _draw_series(slots: Sequence[TrajectoryPoint | None], kind: str) -> Iterator[dict[str, Any] | None]:
    """The points of a series. The line of what is accepted stays level until the next is."""
    level: float | None = None
    for each in slots:
        if each is not None and _name_series(each) == kind:
            level = each.score
            yield _draw_point(each)
        elif kind == "accepted" and level is not None and each is not None and each.phase == "search":
            yield {"value": level, "node": {"r": 0}}
        else:
            yield None


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


def finish_svg(svg: str, title: str) -> str:
    """The SVG without scripts and comments, and with the labels of points as tooltips."""
    root = fromstring(svg)  # leaves out comments
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        label = next((each.text for each in parent if each.get("class") == "label"), None)
        for child in [each for each in parent if each.tag.endswith(("script", "desc", "title")) or _is_blank(each)]:
            parent.remove(child)
        if label is not None:
            SubElement(parent, "title").text = label
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title}
    return tostring(root, encoding="unicode")


def _is_blank(element: Element) -> bool:
    """Whether it is the guide of a place without a label."""
    return element.get("class") == "guides" and not "".join(element.itertext()).strip()
