"""A Diagram as Mermaid flowchart text, for Markdown pages that render it."""

from __future__ import annotations

from traces.draw.diagram import COLOURS, Diagram


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
