"""Where the labels of arrows go: beside their line, clear of boxes, of other lines and of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from traces.draw.diagram import Arrow
from traces.draw.layout import BOX_HEIGHT, Curve, Layout, Point

_CELL = 3
_HEIGHT = 12
_GAP = 5

_Cells: TypeAlias = set[tuple[int, int]]
"""Small squares of the picture."""


def place_labels(
    arrows: Sequence[Arrow], layout: Layout, *, box_width: float, measure: Callable[[str], float]
) -> dict[int, Point]:
    """Find a place for the label of each arrow that has one: where its text begins, on the base line."""
    if not any(arrow.label for arrow in arrows):
        return {}
    taken: _Cells = set()
    for box in layout.boxes.values():
        taken |= _cover(Point(box.x - box_width / 2, box.y), box_width, BOX_HEIGHT)
    for route in layout.routes:
        for curve in route:
            taken |= {_cell(point_on(curve, at / 24)) for at in range(25)}
    places = {}
    for number, arrow in enumerate(arrows):
        if arrow.label:
            width = measure(arrow.label)
            covers = ((corner, _cover(corner, width, _HEIGHT)) for corner in _corners(layout.routes[number], width))
            corner, cover = min(covers, key=lambda candidate: len(candidate[1] & taken))
            taken |= cover
            places[number] = Point(corner.x, corner.y + _HEIGHT - 2)
    return places


def point_on(curve: Curve, share: float) -> Point:
    """The point at a share of a Bézier curve."""
    rest = 1 - share
    weights = (rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3)
    return Point(
        sum(weight * point.x for weight, point in zip(weights, curve, strict=True)),
        sum(weight * point.y for weight, point in zip(weights, curve, strict=True)),
    )


def _corners(route: Sequence[Curve], width: float) -> Iterator[Point]:
    """Upper left corners to try, best first: from the middle of the way outwards, on each side of the line."""
    middle = (len(route) - 1) / 2
    for curve in sorted(route, key=lambda curve: abs(route.index(curve) - middle)):
        for share in (0.5, 0.35, 0.65, 0.2, 0.8):
            x, y = point_on(curve, share)
            yield Point(x + _GAP, y - _HEIGHT / 2)
            yield Point(x - _GAP - width, y - _HEIGHT / 2)
            yield Point(x + _GAP, y - _GAP - _HEIGHT)
            yield Point(x - _GAP - width, y - _GAP - _HEIGHT)


def _cover(corner: Point, width: float, height: float) -> _Cells:
    left, top = _cell(corner)
    right, bottom = _cell(Point(corner.x + width, corner.y + height))
    return {(column, row) for column in range(left, right + 1) for row in range(top, bottom + 1)}


def _cell(point: Point) -> tuple[int, int]:
    return int(point.x // _CELL), int(point.y // _CELL)
