"""Diagrams of a trace: step by step, with wide fan-outs folded into one box, or node by node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from traces.draw.diagram import Arrow, Box, Diagram
from traces.draw.folding import fold_steps
from traces.graph import TraceGraph
from traces.model import ExecutionTrace, Step, sum_usage
from traces.text import cut, cut_middle, format_duration, one_line, preview

MOST_BOXES = 25
"""A trace that needs more boxes than this is drawn by node by default."""

_INDEX = re.compile(r"\[[^\[\]]*\]")


def draw_trace(trace: ExecutionTrace) -> Diagram:
    """Draw a trace step by step with fan-outs folded; node by node if that takes more than MOST_BOXES boxes."""
    return draw_nodes(trace) if needs_node_view(trace) else draw_steps(trace)


def needs_node_view(trace: ExecutionTrace) -> bool:
    """Whether the steps of a trace, folded, take more than MOST_BOXES boxes."""
    return len(trace.steps) > MOST_BOXES and len(fold_steps(TraceGraph(trace))) > MOST_BOXES


def draw_steps(trace: ExecutionTrace, *, unfold: bool = False) -> Diagram:
    """Draw the steps of a trace; the path to the first failure is marked.

    Parallel steps that look alike share one box (`research ×40`), unless `unfold` asks for a box per step.
    """
    graph = TraceGraph(trace)
    folded = [[step] for step in trace.steps] if unfold else fold_steps(graph)
    folded.sort(key=_order_by_start(graph))
    groups = [_Group(steps[0].id, _name_steps(steps), steps) for steps in folded]
    subtitle = "×N: N parallel steps in one box" if len(groups) < len(trace.steps) else ""
    return _draw_groups(graph, groups, subtitle)


def draw_nodes(trace: ExecutionTrace) -> Diagram:
    """Draw one box per node, however often it ran: for long traces, and to show loops."""
    visits: dict[str, list[Step]] = {}
    for step in trace.steps:
        visits.setdefault(step.node_id, []).append(step)
    groups = [_Group(node_id, node_id, steps) for node_id, steps in visits.items()]
    return _draw_groups(TraceGraph(trace), groups, "one box per node; ×N: N executions", count_edges=True)


class _Group(NamedTuple):
    """Steps that share a box."""

    id: str
    name: str
    steps: Sequence[Step]


def _order_by_start(graph: TraceGraph) -> Callable[[Sequence[Step]], tuple[int, int]]:
    """Make a sort key: layer by layer, branches in the order in which their nodes started."""
    starts: dict[tuple[int, str], int] = {}
    for step in graph.trace.steps:
        key = graph.layers[step.id], step.node_id
        starts[key] = min(starts.get(key, step.start_ns or 0), step.start_ns or 0)
    return lambda steps: (graph.layers[steps[0].id], starts[graph.layers[steps[0].id], steps[0].node_id])


def _name_steps(steps: Sequence[Step]) -> str:
    """Return the id of a step; for several, the id they share apart from the index, otherwise their node."""
    if len(steps) == 1:
        return steps[0].id
    shared = {_INDEX.sub("", step.id) for step in steps}
    return shared.pop() if len(shared) == 1 else steps[0].node_id


def _draw_groups(graph: TraceGraph, groups: Sequence[_Group], subtitle: str, *, count_edges: bool = False) -> Diagram:
    group_of = {step.id: group.id for group in groups for step in group.steps}
    path = [group_of[step.id] for step in graph.failing_path()]
    marked_boxes, marked_arrows = set(path), set(pairwise(path))
    edges = Counter((group_of[source], group_of[target]) for source, target in graph.digraph.edges)
    stated = {
        (group_of[source], group_of[target])
        for source, target, known in graph.digraph.edges(data=True)
        if not (known and all(edge.is_guessed for edge in known.values()))
    }
    boxes = tuple(
        Box(
            group.id,
            one_line(group.name) + (f" ×{len(group.steps):,}" if len(group.steps) > 1 else ""),
            _summarize_steps(group.steps),
            "failed" if any(step.error for step in group.steps) else group.steps[0].kind,
            _describe_steps(group.steps),
            is_marked=group.id in marked_boxes,
        )
        for group in groups
    )
    arrows = tuple(
        Arrow(
            *ends,
            is_marked=ends in marked_arrows,
            label=f"×{count:,}" if count_edges and count > 1 else "",
            is_guessed=ends not in stated,
        )
        for ends, count in edges.items()
    )
    return Diagram(_write_title(graph.trace), boxes, arrows, subtitle)


def _write_title(trace: ExecutionTrace) -> str:
    duration = f", {format_duration(trace.duration_ns)}" if trace.duration_ns is not None else ""
    steps = f"{len(trace.steps):,} step{'s' * (len(trace.steps) != 1)}"
    return f"{cut_middle(one_line(trace.id), 60)}: {trace.status}, {steps}{duration}"


def _summarize_steps(steps: Sequence[Step]) -> str:
    """Summarize error, time, tokens and cost of the steps in a few characters."""
    error = next((step.error for step in steps if step.error), None)
    durations = [step.duration_ns for step in steps if step.duration_ns is not None]
    usage = sum_usage(step.usage for step in steps)
    parts = [
        f"✗ {error.type.rpartition('.')[2]}".strip() if error else "",
        format_duration(sum(durations)) + " total" * (len(durations) > 1) if durations else "",
        f"{usage.tokens:,} tok" if usage.tokens else "",
        f"${usage.cost_usd:.4f}" if usage.cost_usd else "",
    ]
    return " · ".join(one_line(part) for part in parts if part)


def _describe_steps(steps: Sequence[Step], *, most: int = 3) -> str:
    """Show input and output of the steps, failed ones first, and at most `most` of them."""
    shown = sorted(steps, key=lambda step: step.error is None)[:most]
    limit = 400 if len(steps) == 1 else 160
    lines = []
    for step in shown:
        span_id = step.attributes.get("span_id")
        lines.append(f"{cut_middle(step.id, 100)} ({step.kind}{f', span {span_id}' if span_id else ''})")
        lines += [f"input: {preview(step.input, limit)}", f"output: {preview(step.output, limit)}"]
        if step.error:
            lines.append(f"error: {cut(str(step.error), limit)}")
    if len(steps) > len(shown):
        lines.append(f"… and {len(steps) - len(shown):,} more")
    return "\n".join(map(one_line, lines))
