"""A graph to be drawn: boxes in layers, arrows between them; made from a trace step by step or node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from traces.graph import TraceGraph
from traces.model import ExecutionTrace, Snapshot, Step, total_usage

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


def to_mermaid(diagram: Diagram) -> str:
    """Mermaid flowchart text, for Markdown pages that render it."""
    alias = {box.id: f"s{number}" for number, box in enumerate(diagram.boxes)}
    lines = ["flowchart TD"]
    for box in diagram.boxes:
        label = "<br/>".join(_mermaid_text(part) for part in (box.title, box.detail) if part)
        lines.append(f'    {alias[box.id]}["{label}"]:::{box.tone}')
    for arrow in diagram.arrows:
        tip = "==>" if arrow.is_marked else "-->"
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        lines.append(f"    {alias[arrow.source]} {tip}{label} {alias[arrow.target]}")
    for tone, (fill, stroke) in COLOURS.items():
        lines.append(f"    classDef {tone} fill:{fill},stroke:{stroke},color:#1f2328")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    """Text inside quotes: only these four characters mean something to Mermaid."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def _figures(steps: Sequence[Step]) -> str:
    """Time, tokens and dollars of some steps, in a few characters."""
    error = next((step.error for step in steps if step.error), None)
    durations = [step.duration_ns for step in steps if step.duration_ns is not None]
    usage = total_usage(step.usage for step in steps)
    parts = [
        error.type.rpartition(".")[2] if error else "",
        seconds(sum(durations)) if durations else "",
        f"{usage.tokens:,} tok" if usage.tokens else "",
        f"${usage.cost_usd:.4f}" if usage.cost_usd else "",
    ]
    return " · ".join(one_line(part) for part in parts if part)


def seconds(nanoseconds: int) -> str:
    """A duration as people say it."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1e3:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1e6:.0f} ms"
    if nanoseconds < 60_000_000_000:
        return f"{nanoseconds / 1e9:.2f} s"
    minutes, rest = divmod(round(nanoseconds / 1e9), 60)
    return f"{minutes} min {rest:02d} s"


def _title(trace: ExecutionTrace) -> str:
    duration = f", {seconds(trace.duration_ns)}" if trace.duration_ns is not None else ""
    return f"{one_line(trace.id)}: {trace.status}, {len(trace.steps):,} steps{duration}"


def _hover(step: Step) -> str:
    lines = [step.id, f"in: {preview(step.input)}", f"out: {preview(step.output)}"]
    if step.error:
        lines.append(str(step.error))
    return cut("\n".join(map(one_line, lines)), 600)


def preview(snapshot: Snapshot, limit: int = 200) -> str:
    """The beginning of a snapshot on one line."""
    value = snapshot.text if snapshot.text is not None else "" if snapshot.data is None else str(snapshot.data)
    return cut(" ".join(value[: 4 * limit].split()), limit)


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which XML, Mermaid and terminals take badly."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def cut(text: str, limit: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
