"""The layout of a diagram: boxes in layers, arrows around them.

An arrow that passes through a layer has a bend there, which takes up space like a narrow box, so arrows never run
behind boxes. An arrow that closes a loop leaves its box at the side and goes up to the side of the other box, with a
bend beside each of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, TypeAlias

from traces.draw.diagram import Diagram
from traces.draw.layers import assign_layers

BOX_HEIGHT = 50
_GAP_BOXES, _GAP_BENDS, _GAP_LAYERS = 30, 22, 46
_LABEL_GAP = 8
_RADIUS = 12


class Point(NamedTuple):
    """A point of the picture, in pixels."""

    x: float
    y: float


Curve: TypeAlias = tuple[Point, Point, Point, Point]
"""A cubic Bézier curve: start, two control points, end."""


class _Bend(NamedTuple):
    arrow: int
    layer: int


_Item: TypeAlias = str | _Bend
"""A box by its id, or the bend of an arrow in a layer."""
_Near: TypeAlias = dict[_Item, list[_Item]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The position of each box (the middle of its top edge) and the route of each arrow, in the diagram's order."""

    boxes: Mapping[str, Point]
    routes: Sequence[Sequence[Curve]]
    width: float
    height: float


def arrange(diagram: Diagram, *, box_width: float, measure_label: Callable[[str], float]) -> Layout:
    """Compute the layout, with space for the labels of arrows."""
    grid = _Grid(diagram, box_width, measure_label)
    grid.sort_layers()
    x = grid.spread_columns()
    left = min(x[item] - grid.measure_extent(item)[0] for item in x)
    places = {
        item: Point(x[item] - left, number * (BOX_HEIGHT + _GAP_LAYERS))
        for number, row in enumerate(grid.build_rows())
        for item in row
    }
    width = max(place.x + grid.measure_extent(item)[1] for item, place in places.items())
    height = len(grid.layers) * (BOX_HEIGHT + _GAP_LAYERS) - _GAP_LAYERS
    routes = [list(grid.route(number, places)) for number in range(len(diagram.arrows))]
    return Layout({box.id: places[box.id] for box in diagram.boxes}, routes, width, height)


class _Grid:
    """The boxes and bends of a diagram while they are being arranged."""

    def __init__(self, diagram: Diagram, box_width: float, measure_label: Callable[[str], float]) -> None:
        self.arrows = diagram.arrows
        self.box_width = box_width
        self.layer_of = assign_layers(diagram)
        # Per layer, from left to right: its boxes, and the bends of arrows that pass it.
        self.layers: list[list[_Item]] = [[] for _ in range(max(self.layer_of.values()) + 1)]
        # Per arrow, the items it connects, from top to bottom.
        self.chains: list[list[_Item]] = []
        # Per box, the bends beside it, of arrows that start or end at its side.
        self.beside: dict[str, list[_Bend]] = {box.id: [] for box in diagram.boxes}
        self.is_left: set[int] = set()
        self.labels: dict[_Bend, float] = {}
        for box in diagram.boxes:
            self.layers[self.layer_of[box.id]].append(box.id)
        for number, arrow in enumerate(diagram.arrows):
            first, last = self.layer_of[arrow.source], self.layer_of[arrow.target]
            if first < last:
                bends = passed = [_Bend(number, layer) for layer in range(first + 1, last)]
                self.chains.append([arrow.source, *bends, arrow.target])
            else:
                bends = [_Bend(number, layer) for layer in range(last, first + 1)]
                passed = bends[1:-1]
                self.chains.append([*bends])
                self.beside[arrow.target].append(bends[0])
                if first > last:
                    self.beside[arrow.source].append(bends[-1])
            for bend in passed:
                self.layers[bend.layer].append(bend)
            if bends and arrow.label:
                self.labels[bends[len(bends) // 2]] = measure_label(arrow.label) + _LABEL_GAP
        self.above: _Near = {}
        self.below: _Near = {}
        for chain in self.chains:
            for upper, lower in pairwise(chain):
                self.below.setdefault(upper, []).append(lower)
                self.above.setdefault(lower, []).append(upper)

    def sort_layers(self) -> None:
        """Sort each layer by the mean position of its neighbours, top down and bottom up, so that few arrows cross."""
        down, up = range(1, len(self.layers)), range(len(self.layers) - 2, -1, -1)
        for _ in range(2):
            for near, numbers, step in [(self.above, down, -1), (self.below, up, 1)] * 3:
                for number in numbers:
                    self._sort_layer(number, self._rank(number + step), near)
            self.is_left = {number for number, chain in enumerate(self.chains) if self._belongs_left(number, chain)}

    def _sort_layer(self, number: int, ranks: Mapping[_Item, float], near: _Near) -> None:
        own = self._rank(number)
        self.layers[number].sort(
            key=lambda item: fmean(ranks[other] for other in near[item]) if item in near else own[item]
        )

    def _rank(self, number: int) -> dict[_Item, float]:
        """Number the items of a layer from left to right; bends beside a box rank right next to it."""
        ranks: dict[_Item, float] = {}
        for at, item in enumerate(self.layers[number]):
            ranks[item] = at
            if isinstance(item, str):
                ranks |= {bend: at + 0.4 * self._get_side(bend.arrow) for bend in self.beside[item]}
        return ranks

    def _get_side(self, arrow: int) -> int:
        """On which side of its boxes an arrow closes a loop: -1 is left, 1 is right."""
        return -1 if arrow in self.is_left else 1

    def _belongs_left(self, number: int, chain: Sequence[_Item]) -> bool:
        """Whether an arrow closes a loop and starts in the left half of its layer."""
        if isinstance(chain[0], str):
            return False
        source = self.arrows[number].source
        boxes = [item for item in self.layers[self.layer_of[source]] if isinstance(item, str)]
        return 2 * boxes.index(source) + 1 < len(boxes)

    def build_rows(self) -> list[list[_Item]]:
        """List all items of each layer from left to right."""
        ranks = [self._rank(number) for number in range(len(self.layers))]
        rows: list[list[_Item]] = []
        for layer, items in enumerate(self.layers):
            row: list[_Item] = []
            for item in items:
                left: list[_Item] = []
                right: list[_Item] = []
                if isinstance(item, str):
                    # The closer the other end, the closer to the box: this way loops nest and do not cross.
                    for bend in sorted(self.beside[item], key=lambda bend: self._measure_reach(bend, layer, ranks)):
                        (left if bend.arrow in self.is_left else right).append(bend)
                row += [*reversed(left), item, *right]
            rows.append(row)
        return rows

    def _measure_reach(self, bend: _Bend, layer: int, ranks: Sequence[Mapping[_Item, float]]) -> tuple[int, float]:
        chain = self.chains[bend.arrow]
        first, last = chain[0], chain[-1]
        assert isinstance(first, _Bend)
        assert isinstance(last, _Bend)
        other = last if bend == first else first
        return abs(other.layer - layer), self._get_side(bend.arrow) * ranks[other.layer][other]

    def measure_extent(self, item: _Item) -> tuple[float, float]:
        """Measure how far an item extends to the left and right of its x position."""
        if isinstance(item, str):
            return self.box_width / 2, self.box_width / 2
        label = self.labels.get(item, 0)
        return (label, 0) if item.arrow in self.is_left else (0, label)

    def spread_columns(self) -> dict[_Item, float]:
        """Compute x positions: each item as close to the mean of its neighbours as the items beside it allow."""
        rows = self.build_rows()
        step = self.box_width + _GAP_BOXES
        x = {item: (at - (len(row) - 1) / 2) * step for row in rows for at, item in enumerate(row)}
        both = {item: self.above.get(item, []) + self.below.get(item, []) for item in x}
        for near, sweep in [(self.above, rows), (self.below, rows[::-1])] * 3 + [(both, rows), (both, rows[::-1])]:
            for row in sweep:
                self._spread_row(row, near, x)
        for _ in range(2):  # moving one line may make room for another
            self._straighten(rows, x)
        return x

    def _spread_row(self, row: Sequence[_Item], near: _Near, x: dict[_Item, float]) -> None:
        wanted = {item: fmean(x[other] for other in near[item]) if near.get(item) else x[item] for item in row}
        for item in row:
            if isinstance(item, str):
                for bend in self.beside[item]:
                    away = self.box_width / 2 + _GAP_BENDS
                    wanted[bend] = wanted[item] + away * self._get_side(bend.arrow)
        distances = [self._measure_distance(one, other) for one, other in pairwise(row)]
        from_left = [wanted[item] for item in row]
        from_right = list(from_left)
        for at, distance in enumerate(distances):
            from_left[at + 1] = max(from_left[at + 1], from_left[at] + distance)
        for at, distance in reversed(list(enumerate(distances))):
            from_right[at] = min(from_right[at], from_right[at + 1] - distance)
        for item, low, high in zip(row, from_left, from_right, strict=True):
            x[item] = (low + high) / 2

    def _straighten(self, rows: Sequence[Sequence[_Item]], x: dict[_Item, float]) -> None:
        """Align the bends of each arrow in one column if there is room; loops use their outermost column."""
        for number, chain in enumerate(self.chains):
            bends = [item for item in chain if isinstance(item, _Bend)]
            if len(bends) < 2:
                continue
            columns = sorted({x[bend] for bend in bends}, key=lambda column: -self._get_side(number) * column)
            if isinstance(chain[0], _Bend):
                columns = columns[:1]
            for column in columns:
                if all(self._has_room(rows[bend.layer], bend, column, x) for bend in bends):
                    x |= dict.fromkeys(bends, column)
                    break

    def _has_room(self, row: Sequence[_Item], bend: _Bend, column: float, x: Mapping[_Item, float]) -> bool:
        at = row.index(bend)
        is_right_of_left = at == 0 or x[row[at - 1]] + self._measure_distance(row[at - 1], bend) <= column
        is_left_of_right = at == len(row) - 1 or column + self._measure_distance(bend, row[at + 1]) <= x[row[at + 1]]
        return is_right_of_left and is_left_of_right

    def _measure_distance(self, left: _Item, right: _Item) -> float:
        gap = _GAP_BOXES if isinstance(left, str) and isinstance(right, str) else _GAP_BENDS
        return self.measure_extent(left)[1] + gap + self.measure_extent(right)[0]

    def route(self, number: int, places: Mapping[_Item, Point]) -> Iterator[Curve]:
        """Yield the curves of an arrow, from its source to its target."""
        chain = self.chains[number]
        if isinstance(chain[0], str):
            yield from _route_down([places[item] for item in chain])
            return
        side = self._get_side(number) * self.box_width / 2
        source, target = places[self.arrows[number].source], places[self.arrows[number].target]
        bends = [places[item] for item in reversed(chain)]
        if source == target:
            yield _route_to_itself(source, side, bends[0].x)
        else:
            yield from _route_up(source, target, side, bends)


def _route_down(places: Sequence[Point]) -> Iterator[Curve]:
    """Go from the bottom of the first item, straight through the bends, to the top of the last."""
    for at, (upper, lower) in enumerate(pairwise(places)):
        if at:
            yield _swing(upper, Point(upper.x, upper.y + BOX_HEIGHT))
        is_last = at == len(places) - 2
        yield _swing(Point(upper.x, upper.y + BOX_HEIGHT), Point(lower.x, lower.y - 2 * is_last))


def _route_up(source: Point, target: Point, side: float, bends: Sequence[Point]) -> Iterator[Curve]:
    """Go from the side of the source, up through the bends, to the side of the target."""
    start = Point(source.x + side, source.y + 0.32 * BOX_HEIGHT)
    end = Point(target.x + side + (2 if side > 0 else -2), target.y + 0.68 * BOX_HEIGHT)
    yield from _turn(start, Point(bends[0].x, start.y), bends[0])
    for at, (lower, upper) in enumerate(pairwise(bends)):
        if at:
            yield _swing(Point(lower.x, lower.y + BOX_HEIGHT), lower)
        yield _swing(lower, Point(upper.x, upper.y + BOX_HEIGHT))
    yield from _turn(Point(bends[-1].x, target.y + BOX_HEIGHT), Point(bends[-1].x, end.y), end)


def _turn(start: Point, corner: Point, end: Point) -> Iterator[Curve]:
    """Draw two straight lines with a round corner."""
    first = _go_towards(corner, start)
    last = _go_towards(corner, end)
    yield start, first, start, first
    yield first, corner, corner, last
    yield last, end, last, end


def _go_towards(start: Point, end: Point) -> Point:
    """Return the point on the line that is a corner's radius away from `start`, or `end` if that is closer."""
    length = abs(end.x - start.x) + abs(end.y - start.y)
    share = min(1, _RADIUS / length) if length else 0
    return Point(start.x + share * (end.x - start.x), start.y + share * (end.y - start.y))


def _route_to_itself(box: Point, side: float, bend_x: float) -> Curve:
    start_x, far = box.x + side, box.x + side + 4 / 3 * (bend_x - box.x - side)
    top, bottom = box.y + 0.3 * BOX_HEIGHT, box.y + 0.7 * BOX_HEIGHT
    tip = Point(start_x + (2 if side > 0 else -2), bottom)
    return Point(start_x, top), Point(far, top - 8), Point(far, bottom + 8), tip


def _swing(start: Point, end: Point) -> Curve:
    """Draw a curve that starts and ends vertically."""
    middle = (start.y + end.y) / 2
    return start, Point(start.x, middle), Point(end.x, middle), end
