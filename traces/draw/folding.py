"""Folding: parallel steps that look alike share one box."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from traces.graph import TraceGraph
from traces.model import Step

FEWEST_FOLDED = 5
"""Smallest number of steps that are folded into one box."""


def fold_steps(graph: TraceGraph) -> list[list[Step]]:
    """Group the steps of a trace, in canonical order, so that each group can be drawn as one box.

    Steps are in one group if they are executions of the same node at the same depth, and their predecessors and
    successors are in the same groups. Failed steps and steps on the failing path are grouped separately. The groups
    form a DAG, as the steps do.
    """
    path = {step.id for step in graph.failing_path()}
    apart: set[str] = set()
    while True:
        groups = _group_alike(graph, path, apart)
        few = {step.id for group in groups if 1 < len(group) < FEWEST_FOLDED for step in group}
        if not few:
            return groups
        apart |= few  # drawn separately, so their neighbours are no longer alike


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
    """Give the same number to steps that look alike and have neighbours that look alike. Neighbours must come first."""
    known: dict[Hashable, int] = {}
    numbers: dict[str, int] = {}
    for step_id, own, neighbours in steps:
        look = (own, frozenset(numbers[neighbour] for neighbour in neighbours))
        numbers[step_id] = known.setdefault(look, len(known))
    return numbers
