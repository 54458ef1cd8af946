"""The diagram of the static graph that a set of traces shows."""

from __future__ import annotations

from traces.draw.diagram import Arrow, Box, Diagram
from traces.structure import StructureNode, TraceStructure
from traces.text import cut, one_line


def draw_structure(structure: TraceStructure) -> Diagram:
    """Draw one box per node. Arrows say in how many traces of it, if not in all. What was only read is left out."""
    surfaces: dict[str, list[str]] = {}
    for surface in structure.surfaces:
        values = len(surface.values) + surface.others
        text = surface.template or next((str(each.value) for each in surface.values if each.value is not None), "")
        varies = f" ({values:,} values)" if values > 1 else ""
        surfaces.setdefault(surface.node_id, []).append(
            f"{surface.id.rpartition('#')[2]}{varies}: {cut(one_line(text), 200)}"
        )
    runs = {node.id: node.traces for node in structure.nodes}
    boxes = tuple(
        Box(node.id, one_line(node.id), _describe(node), node.kind, "\n".join(surfaces.get(node.id, [node.id])))
        for node in structure.nodes
    )
    arrows = tuple(
        Arrow(
            edge.source,
            edge.target,
            label=f"{edge.traces:,} of {runs[edge.target]:,}" if edge.traces < runs[edge.target] else "",
            is_guessed=edge.is_guessed,
        )
        for edge in structure.edges
        if edge.kind == "control"
    )
    count = f"{structure.traces:,} trace{'s' * (structure.traces != 1)}"
    return Diagram(f"{len(boxes):,} nodes seen in {count}", boxes, arrows)


def _describe(node: StructureNode) -> str:
    models = one_line(", ".join(node.models))
    return " · ".join(part for part in (f"{node.steps:,} steps" if node.steps != 1 else "1 step", models) if part)
