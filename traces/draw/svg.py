"""A Diagram as a self-contained SVG picture. Arrows may point back, so that graphs with loops can be drawn too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypeAlias
from xml.sax.saxutils import escape, quoteattr

from traces.draw.diagram import COLOURS, Arrow, Box, Diagram
from traces.text import cut, one_line

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _TOP = 190, 50, 30, 42, 24, 48

_Item: TypeAlias = str | tuple[str, str, int]
"""A box by its id, or the bend of an arrow (its ends) in a layer."""
_Places: TypeAlias = Mapping[_Item, tuple[float, float]]
_Bends: TypeAlias = Mapping[tuple[str, str], Sequence[_Item]]


def to_svg(diagram: Diagram) -> str:
    """The picture, with each box's input and output as its tooltip."""
    places, bends, width, height = _layout(diagram)
    arrows = [_arrow(arrow, places, bends) for arrow in sorted(diagram.arrows, key=lambda arrow: arrow.is_marked)]
    boxes = [_box(box, *places[box.id]) for box in diagram.boxes]
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" \
height="{height:.0f}" font-family="ui-sans-serif, system-ui, sans-serif">
<title>{escape(diagram.title)}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" markerHeight="10" \
markerUnits="userSpaceOnUse" orient="auto">\
<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{_MARGIN}" y="28" font-size="15" font-weight="600" fill="#1f2328">{escape(diagram.title)}</text>
{"".join(arrows)}{"".join(boxes)}</svg>
"""


def _box(box: Box, x: float, y: float) -> str:
    fill, stroke = COLOURS[box.tone]
    width = 2.5 if box.tone in ("failed", "path") else 1.2
    return f"""\
<g data-id={quoteattr(one_line(box.id))}><title>{escape(box.hover or box.title)}</title>
<rect x="{x - _WIDTH / 2:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="7" \
fill="{fill}" stroke="{stroke}" stroke-width="{width}"/>
<text x="{x:.1f}" y="{y + 21:.1f}" font-size="13" font-weight="600" text-anchor="middle" fill="#1f2328">\
{escape(cut(box.title, 24))}</text>
<text x="{x:.1f}" y="{y + 38:.1f}" font-size="11" text-anchor="middle" fill="#59636e">\
{escape(cut(box.detail, 32))}</text>
</g>
"""


def _arrow(arrow: Arrow, places: _Places, bends: _Bends) -> str:
    colour, width = ("#cf222e", 2.5) if arrow.is_marked else ("#8c959f", 1.4)
    path, (x, y) = _curve(places, bends, arrow)
    label = f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" fill="#59636e">{escape(arrow.label)}</text>\n'
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" marker-end="url(#tip)"/>\n'
        f"{label if arrow.label else ''}"
    )


def _layout(diagram: Diagram) -> tuple[_Places, _Bends, float, float]:
    """Where each box goes, the way-points of arrows that cross layers, and the size of it all."""
    layer_of = {box.id: box.layer for box in diagram.boxes}
    bends: dict[tuple[str, str], list[_Item]] = {}
    above: dict[_Item, list[_Item]] = {}
    below: dict[_Item, list[_Item]] = {}
    layers: list[list[_Item]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for box in diagram.boxes:
        layers[box.layer].append(box.id)
    for arrow in diagram.arrows:
        first, last = layer_of[arrow.source], layer_of[arrow.target]
        chain: list[_Item] = [arrow.source]
        for layer in range(first + 1, last):
            bend = (arrow.source, arrow.target, layer)
            layers[layer].append(bend)
            chain.append(bend)
        chain.append(arrow.target)
        if last > first:
            bends[arrow.source, arrow.target] = chain
            for upper, lower in pairwise(chain):
                below.setdefault(upper, []).append(lower)
                above.setdefault(lower, []).append(upper)
    for near, numbers in [(above, range(1, len(layers))), (below, range(len(layers) - 2, -1, -1))] * 3:
        for number in numbers:
            _untangle(layers[number], layers[number + (-1 if near is above else 1)], near)
    x = _columns(layers, above, below)
    left = min(x.values())
    places = {
        item: (x[item] - left + _MARGIN + _WIDTH / 2, _TOP + number * (_HEIGHT + _GAP_Y))
        for number, layer in enumerate(layers)
        for item in layer
    }
    has_loops = any(layer_of[arrow.target] <= layer_of[arrow.source] for arrow in diagram.arrows)
    width = max(place[0] for place in places.values()) + _WIDTH / 2 + _MARGIN + (70 if has_loops else 0)
    return (
        places,
        bends,
        max(width, 8.8 * len(diagram.title) + 2 * _MARGIN),
        _TOP + len(layers) * (_HEIGHT + _GAP_Y) - _GAP_Y + _MARGIN,
    )


def _untangle(layer: list[_Item], beside: Sequence[_Item], near: Mapping[_Item, Sequence[_Item]]) -> None:
    """Sort a layer by the middle of each item's neighbours in the layer beside it."""
    rank = {item: float(at) for at, item in enumerate(beside)}
    place = {item: float(at) for at, item in enumerate(layer)}
    layer.sort(key=lambda item: fmean(rank[other] for other in near[item]) if item in near else place[item])


def _columns(
    layers: Sequence[Sequence[_Item]], above: Mapping[_Item, Sequence[_Item]], below: Mapping[_Item, Sequence[_Item]]
) -> dict[_Item, float]:
    """Horizontal places: each item as near to the middle of its neighbours as those beside it allow."""
    step = _WIDTH + _GAP_X
    x = {item: (at - (len(layer) - 1) / 2) * step for layer in layers for at, item in enumerate(layer)}
    for near in (above, below, above, below):
        for layer in layers:
            wanted = [fmean([x[other] for other in near[item]]) if item in near else x[item] for item in layer]
            widths = [step if isinstance(item, str) else _GAP_X for item in layer]
            from_left, from_right = list(wanted), list(wanted)
            for at in range(1, len(layer)):
                from_left[at] = max(wanted[at], from_left[at - 1] + (widths[at - 1] + widths[at]) / 2)
            for at in range(len(layer) - 2, -1, -1):
                from_right[at] = min(wanted[at], from_right[at + 1] - (widths[at] + widths[at + 1]) / 2)
            for at, item in enumerate(layer):
                x[item] = (from_left[at] + from_right[at]) / 2
    return x


def _curve(places: _Places, bends: _Bends, arrow: Arrow) -> tuple[str, tuple[float, float]]:
    """The path of an arrow, and where its label goes."""
    chain = bends.get((arrow.source, arrow.target))
    if chain is None:  # backwards, along the right side
        (x1, y1), (x2, y2) = places[arrow.source], places[arrow.target]
        x1, x2 = x1 + _WIDTH / 2, x2 + _WIDTH / 2
        y1, y2 = y1 + _HEIGHT / 2, y2 + _HEIGHT / 2 + (8 if arrow.source == arrow.target else 0)
        passed = [x for x, y in places.values() if min(y1, y2) - _HEIGHT < y < max(y1, y2)]
        far = (max(passed) + _WIDTH / 2 + 36 - 0.125 * (x1 + x2)) / 0.75  # the curve comes so far at its middle
        return f"M{x1:.1f} {y1:.1f}C{far:.1f} {y1:.1f} {far:.1f} {y2:.1f} {x2:.1f} {y2:.1f}", (
            max(passed) + _WIDTH / 2 + 40,
            (y1 + y2) / 2,
        )
    points = []
    for item in chain:
        x, y = places[item]
        if item == arrow.source:
            points.append((x, y + _HEIGHT))
        elif item == arrow.target:
            points.append((x, y - 2))
        else:
            points += [(x, y), (x, y + _HEIGHT)]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        path += f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    (x1, y1), (x2, y2) = points[:2]
    return path, ((x1 + x2) / 2 + 8, (y1 + y2) / 2 - 6)
