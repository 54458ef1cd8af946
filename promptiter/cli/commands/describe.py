"""`promptiter describe`: the structure of an agent, as text or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.load import build_subject, read_subject
from promptiter.cli.options import Output, Subject
from promptiter.cli.output import OutputFormat, console, guess_format, json_text, new_table, write_text
from promptiter.llm.redaction import process_redactor
from promptiter.structure import StructureSnapshot
from promptiter.wording import plural
from traces.draw.diagram import Arrow, Box, Diagram
from traces.draw.mermaid import to_mermaid
from traces.draw.svg import to_svg
from traces.text import cut, one_line


def describe(
    subject: Subject = None,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option("--format", metavar="FORMAT", help="text, mermaid, svg or json; by default from --output."),
    ] = None,
    output: Output = None,
) -> None:
    """Show the nodes, edges and surfaces of an agent.

    Surfaces are what may change: prompts, tool descriptions, models, parameters.
    """
    snapshot = _redact(build_subject(read_subject(subject)).describe())
    match output_format or guess_format(output):
        case OutputFormat.json:
            write_text(json_text(snapshot.to_json()), output)
        case OutputFormat.svg:
            write_text(to_svg(draw_structure(snapshot)), output)
        case OutputFormat.mermaid:
            write_text(to_mermaid(draw_structure(snapshot)), output)
        case OutputFormat.text:
            _print(snapshot, output)


def _redact(snapshot: StructureSnapshot) -> StructureSnapshot:
    """The structure without known secrets."""
    plain = snapshot.to_json()
    safe = process_redactor().redact_known_json(plain)
    return snapshot if safe is plain else StructureSnapshot.from_json(safe)


def draw_structure(snapshot: StructureSnapshot) -> Diagram:
    """Draw the static graph, the entry first; hover shows the values of a node's surfaces."""
    boxes = tuple(
        Box(
            node.id,
            one_line(node.id),
            ", ".join(surface.id.partition("#")[2] for surface in snapshot.surfaces_of(node.id)) or node.kind,
            node.kind,
            "\n".join(
                one_line(cut(f"{surface.id}: {surface.value}", 400)) for surface in snapshot.surfaces_of(node.id)
            ),
        )
        for node in sorted(snapshot.nodes, key=lambda node: node.id != snapshot.entry)
    )
    arrows = tuple(Arrow(edge.source, edge.target, label=one_line(edge.condition or "")) for edge in snapshot.edges)
    return Diagram(one_line(snapshot.name or snapshot.entry or "agent"), boxes, arrows)


def _print(snapshot: StructureSnapshot, output: Path | None) -> None:
    from rich.text import Text

    screen = console(output)
    screen.print(
        Text.assemble(
            (one_line(snapshot.name) or "agent", "bold"),
            f"  {plural(len(snapshot.nodes), 'node')}, {plural(len(snapshot.edges), 'edge')}, "
            f"{plural(len(snapshot.surfaces), 'surface')}",
        )
    )
    screen.print(Text(f"structure {snapshot.structure_id[:12]}, baseline {snapshot.baseline_id[:12]}\n", "dim"))
    table = new_table("node", "kind", "leads to")
    for node in snapshot.nodes:
        followers = [
            f"{edge.target} ({edge.condition})" if edge.condition else edge.target
            for edge in snapshot.edges
            if edge.source == node.id
        ]
        entry = " (entry)" if node.id == snapshot.entry else ""
        table.add_row(Text(one_line(node.id) + entry), node.kind, Text(one_line(", ".join(followers))))
    screen.print(table)
    screen.print()
    table = new_table("surface")
    table.expand = True
    table.add_column("value", no_wrap=True, overflow="ellipsis", ratio=1)
    for surface in snapshot.surfaces:
        table.add_row(Text(one_line(surface.id), "cyan"), Text(cut(one_line(str(surface.value)), 200)))
    screen.print(table)
