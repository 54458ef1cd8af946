"""Write a Diagram as a Mermaid flowchart."""

from __future__ import annotations

from traces.draw.diagram import COLOURS, Diagram


def to_mermaid(diagram: Diagram) -> str:
    """Write a diagram as Mermaid text, for Markdown pages that render it."""
    alias = {box.id: f"s{number}" for number, box in enumerate(diagram.boxes)}
    lines = ["flowchart TD"]
    for box in diagram.boxes:
        label = "<br/>".join(_escape(part) for part in (box.title, box.detail) if part)
        lines.append(f'    {alias[box.id]}["{label}"]:::{box.tone}')
    for arrow in diagram.arrows:
        tip = "==>" if arrow.is_marked else "-.->" if arrow.is_guessed else "-->"
        label = f'|"{_escape(arrow.label)}"|' if arrow.label else ""
        lines.append(f"    {alias[arrow.source]} {tip}{label} {alias[arrow.target]}")
    if marked := [alias[box.id] for box in diagram.boxes if box.is_marked]:
        lines.append(f"    class {','.join(marked)} marked")
    used = {box.tone for box in diagram.boxes}
    for tone, colours in COLOURS.items():
        if tone in used:
            lines.append(f"    classDef {tone} fill:{colours.fill},stroke:{colours.stroke},color:#1f2328")
    lines.append(f"    classDef marked stroke:{COLOURS['failed'].stroke},stroke-width:3px")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Escape text in quotes, where these characters are special to Mermaid. `%%{` begins a directive anywhere."""
    return (
        text.replace("#", "#35;").replace("%", "#37;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    )
