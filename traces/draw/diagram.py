"""A graph to be drawn: boxes in layers, arrows between them; made from a trace step by step or node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from traces.graph import TraceGraph
from traces.model import ExecutionTrace, Step, total_usage
from traces.text import cut, format_duration, one_line, preview

Tone: TypeAlias = Literal["agent", "llm", "function", "tool", "path", "failed"]


COLOURS: dict[Tone, tuple[str, str]] = {
    "agent": ("#fbefff", "#8250df"),
    "llm": ("#ddf4ff", "#0969da"),
    "function": ("#f6f8fa", "#8c959f"),
    "tool": ("#fff8c5", "#9a6700"),
    "path": ("#fff1e5", "#bc4c00"),
    "failed": ("#ffebe9", "#cf222e"),
}


@dataclass(frozen=True, slots=True)
class Box:
    id: str
    title: str
    detail: str
    layer: int
    tone: Tone
    hover: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    source: str
    target: str
    is_marked: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def of_trace(trace: ExecutionTrace) -> Diagram:
    """One box per step; the path to the first failure is marked."""
    graph = TraceGraph(trace)
    path = [step.id for step in graph.failing_path()]
    marked = set(pairwise(path))
    boxes = tuple(
        Box(
            step.id,
            one_line(step.id),
            _figures([step]),
            graph.layers[step.id],
            "failed" if step.error else "path" if step.id in path else step.kind,
            _hover(step),
        )
        for step in trace.steps
    )
    arrows = tuple(
        Arrow(source, step.id, (source, step.id) in marked) for step in trace.steps for source in step.predecessors
    )
    return Diagram(_title(trace), boxes, arrows)


def of_nodes(trace: ExecutionTrace) -> Diagram:
    """One box per node, with its visits together: for long traces and for seeing the loops."""
    graph = TraceGraph(trace)
    path = {step.node_id for step in graph.failing_path()}
    layers: dict[str, int] = {}
    visits: dict[str, list[Step]] = {}
    for step in trace.steps:
        layers.setdefault(step.node_id, graph.layers[step.id])
        visits.setdefault(step.node_id, []).append(step)
    rows = {depth: row for row, depth in enumerate(sorted(set(layers.values())))}
    counts = Counter((graph.step(source).node_id, graph.step(target).node_id) for source, target in graph.digraph.edges)
    boxes = tuple(
        Box(
            node_id,
            one_line(node_id) + (f" ×{len(steps)}" if len(steps) > 1 else ""),
            _figures(steps),
            rows[layers[node_id]],
            "failed" if any(step.error for step in steps) else "path" if node_id in path else steps[0].kind,
            _hover(next((step for step in steps if step.error), steps[0])),
        )
        for node_id, steps in visits.items()
    )
    arrows = tuple(
        Arrow(source, target, label=f"×{count}" if count > 1 else "") for (source, target), count in counts.items()
    )
    return Diagram(_title(trace), boxes, arrows)


def _figures(steps: Sequence[Step]) -> str:
    """Time, tokens and dollars of some steps, in a few characters."""
    error = next((step.error for step in steps if step.error), None)
    durations = [step.duration_ns for step in steps if step.duration_ns is not None]
    usage = total_usage(step.usage for step in steps)
    parts = [
        error.type.rpartition(".")[2] if error else "",
        format_duration(sum(durations)) if durations else "",
        f"{usage.tokens:,} tok" if usage.tokens else "",
        f"${usage.cost_usd:.4f}" if usage.cost_usd else "",
    ]
    return " · ".join(one_line(part) for part in parts if part)


def _title(trace: ExecutionTrace) -> str:
    duration = f", {format_duration(trace.duration_ns)}" if trace.duration_ns is not None else ""
    return f"{one_line(trace.id)}: {trace.status}, {len(trace.steps):,} steps{duration}"


def _hover(step: Step) -> str:
    lines = [step.id, f"in: {preview(step.input)}", f"out: {preview(step.output)}"]
    if step.error:
        lines.append(str(step.error))
    return cut("\n".join(map(one_line, lines)), 600)
