"""Which steps of a trace can share a box: parallel executions that look alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from traces.graph import TraceGraph
from traces.model import Step

FEWEST_FOLDED = 5
"""Fewer steps that look alike than this are drawn side by side."""


def fold_steps(graph: TraceGraph) -> list[list[Step]]:
    """Group the steps of a trace, in canonical order, so that each group can be drawn as one box.

    Steps share a group if they are executions of one node, at one depth, between groups of the same nodes. Failed steps
    and those on the failing path keep apart from the others. The boxes form a DAG, as the steps do.
    """
    path = {step.id for step in graph.failing_path()}
    apart: set[str] = set()
    while True:
        groups = _group_alike(graph, path, apart)
        few = {step.id for group in groups if 1 < len(group) < FEWEST_FOLDED for step in group}
        if not few:
            return groups
        apart |= few  # drawn one by one, they tell their neighbours apart too


def _group_alike(graph: TraceGraph, path: set[str], apart: set[str]) -> list[list[Step]]:
    steps = graph.trace.steps
    own: dict[str, Hashable] = {
        step.id: step.id
        if step.id in apart
        else (step.node_id, graph.layers[step.id], step.error is not None, step.id in path)
        for step in steps
    }
    upstream = _number_alike((step.id, own[step.id], step.predecessors) for step in steps)
    downstream = _number_alike((step.id, own[step.id], graph.digraph.successors(step.id)) for step in reversed(steps))
    groups: dict[tuple[int, int], list[Step]] = {}
    for step in steps:
        groups.setdefault((upstream[step.id], downstream[step.id]), []).append(step)
    return list(groups.values())


def _number_alike(steps: Iterable[tuple[str, Hashable, Iterable[str]]]) -> dict[str, int]:
    """Give steps that look alike, with neighbours that look alike, one number; neighbours must come first."""
    known: dict[Hashable, int] = {}
    numbers: dict[str, int] = {}
    for step_id, own, neighbours in steps:
        look = (own, frozenset(numbers[neighbour] for neighbour in neighbours))
        numbers[step_id] = known.setdefault(look, len(known))
    return numbers
