"""Draw a Diagram as a self-contained SVG picture, for light and dark mode."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from math import ceil
from xml.sax.saxutils import escape, quoteattr

from traces.draw.diagram import COLOURS, MEANINGS, Arrow, Box, Diagram
from traces.draw.labels import place_labels
from traces.draw.layout import BOX_HEIGHT, Curve, Point, arrange
from traces.text import cut_middle, one_line

_MARGIN = 24
_NARROWEST, _WIDEST, _PADDING = 120, 250, 14
_TITLE, _BOX_TITLE, _SMALL = 15, 13, 11  # font sizes
_LEGEND_ROW = 22
_DASHES = ' stroke-dasharray="5 4"'


def to_svg(diagram: Diagram, *, name: str = "") -> str:
    """Draw a diagram as SVG. The tooltip of a box shows its `hover` text. The background is transparent.

    Several diagrams in one page need a `name` each, which makes their ids unique.
    """
    box_width = _choose_box_width(diagram.boxes)
    layout = arrange(diagram, box_width=box_width, measure_label=_measure_small)
    labels = place_labels(diagram.arrows, layout, box_width=box_width, measure=_measure_small)
    head = _measure(diagram.title, _TITLE, is_bold=True), _measure_small(diagram.subtitle)
    inner = max(layout.width, *head)
    left, top = (inner - layout.width) / 2, 46 if diagram.subtitle else 28
    legend, legend_height = _draw_legend(diagram, inner, top + layout.height + 18)
    width, height = inner + 2 * _MARGIN, top + layout.height + legend_height + 2 * _MARGIN
    arrows = sorted(enumerate(diagram.arrows), key=lambda numbered: numbered[1].is_marked)
    parts = [
        *(_draw_arrow(arrow, layout.routes[number], name) for number, arrow in arrows),
        *(_draw_box(box, layout.boxes[box.id], box_width) for box in diagram.boxes),
        *(_draw_label(diagram.arrows[number].label, place) for number, place in labels.items()),
    ]
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}" width="{width:.0f}" \
height="{height:.0f}" class="promptiter-diagram" style="color-scheme: light dark" \
font-family="ui-sans-serif, system-ui, sans-serif">
<title>{escape(one_line(diagram.title))}</title>
<style>
{_STYLE}</style>
<defs>{_draw_tip("tip", name)}{_draw_tip("marked-tip", name)}</defs>
<text y="4" font-size="{_TITLE}" font-weight="600">{escape(one_line(diagram.title))}</text>
<text y="23" font-size="{_SMALL}" class="small">{escape(one_line(diagram.subtitle))}</text>
<g transform="translate({left:.1f} {top})">
{"".join(parts)}</g>
{legend}</svg>
"""


def _build_style() -> str:
    """Build the style sheet. Colours are in rules, not attributes, so that dark mode can change them."""
    light, dark = [], []
    for tone, colours in COLOURS.items():
        light.append(f".{tone} {{ fill: {colours.fill}; stroke: {colours.stroke} }}")
        dark.append(f".{tone} {{ fill: {colours.dark_fill}; stroke: {colours.dark_stroke} }}")
    for rules, text, small, line, page, marked in (
        (light, "#1f2328", "#59636e", "#8c959f", "#ffffff", COLOURS["failed"].stroke),
        (dark, "#e6edf3", "#9198a1", "#7d8590", "#0d1117", COLOURS["failed"].dark_stroke),
    ):
        rules += [
            f"text {{ fill: {text} }}",
            f".small {{ fill: {small} }}",
            f".label {{ stroke: {page} }}",
            f".arrow {{ stroke: {line} }}",
            f".marked {{ stroke: {marked} }}",
            f".tip {{ fill: {line} }}",
            f".marked-tip {{ fill: {marked} }}",
        ]
    scope = ".promptiter-diagram "
    return "\n".join(
        [
            *(scope + rule for rule in light),
            f"{scope}.label {{ stroke-width: 3px; stroke-linejoin: round; paint-order: stroke }}",
            "@media (prefers-color-scheme: dark) {",
            *(scope + rule for rule in dark),
            "}\n",
        ]
    )


_STYLE = _build_style()


def _draw_tip(kind: str, name: str) -> str:
    return (
        f'<marker id="{name}{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" markerHeight="10" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="{kind}"/></marker>'
    )


def _draw_box(box: Box, place: Point, width: float) -> str:
    room = width - 2 * _PADDING
    name, outline = (f"{box.tone} marked", 2.5) if box.is_marked else (box.tone, 1.2)
    return f"""\
<g data-id={quoteattr(one_line(box.id))}><title>{escape(box.hover or box.title)}</title>
<rect x="{place.x - width / 2:.1f}" y="{place.y:.1f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="7" \
class="{name}" stroke-width="{outline}"/>
<text x="{place.x:.1f}" y="{place.y + 21:.1f}" font-size="{_BOX_TITLE}" font-weight="600" text-anchor="middle">\
{escape(_fit(box.title, room, _BOX_TITLE, is_bold=True))}</text>
<text x="{place.x:.1f}" y="{place.y + 38:.1f}" font-size="{_SMALL}" text-anchor="middle" class="small">\
{escape(_fit_parts(box.detail, room + _PADDING))}</text>
</g>
"""


def _draw_arrow(arrow: Arrow, route: Sequence[Curve], diagram: str) -> str:
    start = route[0][0]
    path = f"M{start.x:.1f} {start.y:.1f}" + "".join(
        "C" + " ".join(f"{point.x:.1f} {point.y:.1f}" for point in curve[1:]) for curve in route
    )
    name, tip, width = ("marked", "marked-tip", 2.5) if arrow.is_marked else ("arrow", "tip", 1.4)
    dashes = _DASHES if arrow.is_guessed else ""
    end = f'marker-end="url(#{diagram}{tip})"'
    return f'<path d="{path}" class="{name}" fill="none" stroke-width="{width}"{dashes} {end}/>\n'


def _draw_label(text: str, place: Point) -> str:
    return f'<text x="{place.x:.1f}" y="{place.y:.1f}" font-size="{_SMALL}" class="small label">{escape(text)}</text>\n'


def _draw_legend(diagram: Diagram, width: float, top: float) -> tuple[str, float]:
    """Draw a legend of the colours and lines in use, if there are several. Also returns its height."""
    boxes = diagram.boxes
    words: dict[str, str] = {tone: MEANINGS[tone] for tone in COLOURS if any(box.tone == tone for box in boxes)}
    if any(box.is_marked for box in boxes):
        words["marked"] = diagram.marked
    if any(arrow.is_guessed for arrow in diagram.arrows):
        words["arrow"] = "guessed from texts or times"
    if len(words) < 2 and "arrow" not in words:
        return "", 0
    x, y, parts = 0.0, top, []
    for name, meaning in words.items():
        size = 20 + _measure_small(meaning)
        if x and x + size > width:
            x, y = 0.0, y + _LEGEND_ROW
        outline = 'fill="none" stroke-width="2.5"' if name == "marked" else 'stroke-width="1.2"'
        sample = f'<rect x="{x:.1f}" y="{y:.1f}" width="14" height="12" rx="3" class="{name}" {outline}/>'
        if name == "arrow":
            sample = f'<path d="M{x:.1f} {y + 6:.1f}h16" class="arrow" fill="none" stroke-width="1.4"{_DASHES}/>'
        parts.append(
            f'{sample}<text x="{x + 20:.1f}" y="{y + 10:.1f}" font-size="{_SMALL}" class="small">'
            f"{escape(meaning)}</text>\n"
        )
        x += size + 16
    return "".join(parts), y - top + _LEGEND_ROW


def _choose_box_width(boxes: Sequence[Box]) -> float:
    """Choose one width for all boxes that fits their texts, within limits."""
    texts = (
        max(_measure(box.title, _BOX_TITLE, is_bold=True) + 2 * _PADDING, _measure_small(box.detail) + _PADDING)
        for box in boxes
    )
    return ceil(min(_WIDEST, max(_NARROWEST, *texts)))


def _measure_small(text: str) -> float:
    return _measure(text, _SMALL)


def _measure(text: str, size: int, *, is_bold: bool = False) -> float:
    """Estimate the width of a text in pixels. Fonts differ, so the estimate is generous."""
    letters = sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.56 for letter in text)
    capitals = sum(letter.isupper() for letter in text)
    return size * (letters + 0.14 * capitals) * (1.12 if is_bold else 1)


def _fit(text: str, room: float, size: int, *, is_bold: bool = False) -> str:
    """Cut a text in the middle until it fits."""
    width = _measure(text, size, is_bold=is_bold)
    return text if width <= room else cut_middle(text, max(4, int(len(text) * room / width)))


def _fit_parts(text: str, room: float) -> str:
    """Drop figures from the end of a line until it fits."""
    while _measure_small(text) > room and " · " in text:
        text = text.rpartition(" · ")[0]
    return _fit(text, room, _SMALL)
