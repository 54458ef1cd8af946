"""What `promptiter trace structure` prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.cli.views.trace import KIND_STYLES
from promptiter.wording import plural
from traces.structure import StructureEdge, StructureSurface, TraceStructure
from traces.text import cut, one_line

MAX_VALUE = 100
"""Characters of a value."""


def print_structure(console: Console, structure: TraceStructure) -> None:
    """Print nodes with those they follow, and the surfaces with their values."""
    console.print(
        f"[bold]{plural(structure.traces, 'trace')}[/], {plural(len(structure.nodes), 'node')}, "
        f"{plural(len(structure.surfaces), 'surface')}\n"
    )
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("node", "kind"):
        table.add_column(name, no_wrap=True)
    table.add_column("steps", justify="right")
    for name in ("follows", "models"):
        table.add_column(name, overflow="fold")
    follows: dict[str, list[StructureEdge]] = {}
    for edge in structure.edges:
        if edge.kind == "control":
            follows.setdefault(edge.target, []).append(edge)
    for node in structure.nodes:
        table.add_row(
            Text(one_line(node.id)),
            Text(node.kind, KIND_STYLES[node.kind]),
            f"{node.steps:,}",
            Text(", ".join(_name_source(edge, node.traces) for edge in follows.get(node.id, ()))),
            Text(one_line(", ".join(node.models))),
        )
    console.print(table)
    if any(edge.is_guessed and edge.kind == "control" for edge in structure.edges):
        console.print("? guessed from texts or times", style="dim")
    if structure.surfaces:
        console.print()
        table = Table(box=None, header_style="dim", pad_edge=False)
        table.add_column("surface", no_wrap=True)
        table.add_column("value", overflow="fold")
        for surface in structure.surfaces:
            table.add_row(Text(one_line(surface.id)), Text(_describe_values(surface)))
        console.print(table)


def _name_source(edge: StructureEdge, traces: int) -> str:
    count = f" ({edge.traces:,} of {traces:,})" if edge.traces < traces else ""
    return one_line(edge.source) + ("?" if edge.is_guessed else "") + count


def _describe_values(surface: StructureSurface) -> str:
    count = len(surface.values) + surface.others
    if count == 1:
        return _shorten(surface.values[0].value)
    if surface.template is not None:
        return f"varies, {count:,} values: {_shorten(surface.template)}"
    shown = "; ".join(f"{_shorten(each.value)} ×{each.steps:,}" for each in surface.values[:3])
    return f"{count:,} values: {shown}" + ("; …" if count > 3 else "")


def _shorten(value: object) -> str:
    return "unknown" if value is None else cut(" ".join(one_line(str(value)).split()), MAX_VALUE)
