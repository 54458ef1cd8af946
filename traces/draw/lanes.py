"""The edges of a trace as lanes of text, like `git log --graph`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traces.graph import TraceGraph
from traces.model import Step


def to_lanes(graph: TraceGraph, steps: Sequence[Step], *, widest: int = 40) -> list[tuple[str, Step | None]] | None:
    """Draw the edges as rows of text: one per step, and one between steps where lanes split or merge.

    A lane runs down from a step to its next successor. `steps` must be all steps, in canonical order. Returns None if
    the drawing would be wider than `widest` columns.
    """
    rows: list[tuple[str, Step | None]] = []
    lanes: list[str | None] = []
    for step in steps:
        if step.id not in lanes:
            _open_lane(lanes, step.id)
        column = lanes.index(step.id)
        rows.append(
            (
                " ".join(
                    _choose_symbol(step) if at == column else "│" if lane else " " for at, lane in enumerate(lanes)
                ),
                step,
            )
        )
        if 2 * len(lanes) > widest:
            return None
        before = list(lanes)
        lanes[column] = None
        reached = []
        for follower in graph.successors(step.id):
            if follower.id not in lanes:
                if lanes[column] is None:
                    lanes[column] = follower.id
                else:
                    _open_lane(lanes, follower.id)
            reached.append(lanes.index(follower.id))
        if any(at != column for at in reached):
            rows.append((_draw_connector(before, lanes, column, reached), None))
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rows


def _open_lane(lanes: list[str | None], step_id: str) -> None:
    if None in lanes:
        lanes[lanes.index(None)] = step_id
    else:
        lanes.append(step_id)


def _choose_symbol(step: Step) -> str:
    if step.error:
        return "✗"
    return "●" if step.end_ns is not None or step.start_ns is None else "○"


_LINES = dict(zip((3, 12, 10, 6, 9, 5, 11, 7, 14, 13, 15, 2, 1), "│─╭╮╰╯├┤┬┴┼╷╵", strict=True))
"""Box-drawing characters by the directions of their lines: up 1, down 2, left 4, right 8."""


def _draw_connector(
    before: Sequence[str | None], after: Sequence[str | None], column: int, reached: Iterable[int]
) -> str:
    """Draw the row below a step whose successors are in other lanes: lines from its column to theirs."""
    width = max(len(before), len(after))
    arms = [0] * width
    for at in range(width):
        if at < len(before) and before[at] is not None:
            arms[at] |= 1
        if at < len(after) and after[at] is not None:
            arms[at] |= 2
    arms[column] |= 1
    for target in reached:
        low, high = sorted((column, target))
        for at in range(low, high + 1):
            arms[at] |= (8 if at < high else 0) | (4 if at > low else 0)
    return "".join(_LINES.get(arm, " ") + ("─" if arm & 8 else " ") for arm in arms).rstrip()
