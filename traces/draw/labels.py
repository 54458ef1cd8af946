"""The positions of arrow labels: beside their line, without covering boxes, lines or each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from traces.draw.diagram import Arrow
from traces.draw.layout import BOX_HEIGHT, Curve, Layout, Point

_CELL = 3
_HEIGHT = 12
_GAP = 5
_SAMPLES = 40
_MOST_AVOIDED = 200
"""With more arrows than this, labels may cover lines."""

_Cells: TypeAlias = set[tuple[int, int]]
"""Small squares of the picture."""


def place_labels(
    arrows: Sequence[Arrow], layout: Layout, *, box_width: float, measure: Callable[[str], float]
) -> dict[int, Point]:
    """Find a position for the label of each arrow that has one: the start of its text, on the baseline."""
    if not any(arrow.label for arrow in arrows):
        return {}
    taken: _Cells = set()
    for box in layout.boxes.values():
        taken |= _cover(Point(box.x - box_width / 2, box.y), box_width, BOX_HEIGHT)
    for route in layout.routes if len(arrows) <= _MOST_AVOIDED else ():
        for curve in route:
            taken |= {_find_cell(find_point(curve, at / _SAMPLES)) for at in range(_SAMPLES + 1)}
    places = {}
    for number, arrow in enumerate(arrows):
        if arrow.label:
            width = measure(arrow.label)
            corner = _find_free_corner(_propose_corners(layout.routes[number], width), width, taken)
            taken |= _cover(corner, width, _HEIGHT)
            places[number] = Point(corner.x, corner.y + _HEIGHT - 2)
    return places


def find_point(curve: Curve, share: float) -> Point:
    """Return the point at parameter `share` (0 to 1) of a Bézier curve."""
    rest = 1 - share
    a, b, c, d = rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = curve
    return Point(a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3)


def _find_free_corner(corners: Iterable[Point], width: float, taken: _Cells) -> Point:
    """Return the first corner at which the label covers nothing, otherwise the one at which it covers least."""
    least: tuple[int, Point] | None = None
    for corner in corners:
        covered = len(_cover(corner, width, _HEIGHT) & taken)
        if least is None or covered < least[0]:
            least = covered, corner
        if not covered:
            break
    assert least is not None  # every route has a curve
    return least[1]


def _propose_corners(route: Sequence[Curve], width: float) -> Iterator[Point]:
    """Yield upper left corners to try, best first: from the middle of the route outwards, on both sides of the line."""
    middle = (len(route) - 1) / 2
    for at in sorted(range(len(route)), key=lambda at: abs(at - middle)):
        for share in (0.5, 0.35, 0.65, 0.2, 0.8):
            x, y = find_point(route[at], share)
            yield Point(x + _GAP, y - _HEIGHT / 2)
            yield Point(x - _GAP - width, y - _HEIGHT / 2)
            yield Point(x + _GAP, y - _GAP - _HEIGHT)
            yield Point(x - _GAP - width, y - _GAP - _HEIGHT)


def _cover(corner: Point, width: float, height: float) -> _Cells:
    left, top = _find_cell(corner)
    right, bottom = _find_cell(Point(corner.x + width, corner.y + height))
    return {(column, row) for column in range(left, right + 1) for row in range(top, bottom + 1)}


def _find_cell(point: Point) -> tuple[int, int]:
    return int(point.x // _CELL), int(point.y // _CELL)
