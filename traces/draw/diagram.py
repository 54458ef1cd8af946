"""A graph to draw: boxes, and arrows between them. Arrows may form loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Tone: TypeAlias = Literal["agent", "llm", "function", "tool", "failed", "blamed", "candidate", "frontier", "best"]
"""What the colour of a box stands for: the kind of its node, a failure, or that failures come from it.

In a tree of candidates it says which are on the frontier, and which is the best.
"""


class Colours(NamedTuple):
    """Fill and outline of a box, on light and on dark pages."""

    fill: str
    stroke: str
    dark_fill: str
    dark_stroke: str


COLOURS: dict[Tone, Colours] = {
    "agent": Colours("#fbefff", "#8250df", "#2a1f3d", "#a371f7"),
    "llm": Colours("#ddf4ff", "#0969da", "#12263f", "#58a6ff"),
    "function": Colours("#f6f8fa", "#8c959f", "#21262d", "#8b949e"),
    "tool": Colours("#fff8c5", "#9a6700", "#2e2a12", "#d29922"),
    "failed": (_red := Colours("#ffc9c4", "#cf222e", "#67201f", "#f85149")),
    "blamed": _red,
    "candidate": Colours("#f6f8fa", "#8c959f", "#21262d", "#8b949e"),
    "frontier": Colours("#ddf4ff", "#0969da", "#12263f", "#58a6ff"),
    "best": Colours("#aceebb", "#1a7f37", "#1c4428", "#3fb950"),
}

MEANINGS: dict[Tone, str] = {
    "agent": "agent",
    "llm": "model call",
    "function": "function",
    "tool": "tool",
    "failed": "failed",
    "blamed": "blamed for failures",
    "candidate": "kept",
    "frontier": "on the Pareto frontier",
    "best": "the best",
}
"""The texts of the legend."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the graph; a marked one is on the failing path. `hover` is the text of its tooltip."""

    id: str
    title: str
    detail: str
    tone: Tone
    hover: str = ""
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge; a marked one is on the failing path, a guessed one is suggested by texts or times only."""

    source: str
    target: str
    is_marked: bool = False
    label: str = ""
    is_guessed: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """A graph to draw, with a title. Boxes are in the order in which they were reached.

    `marked` says in the legend what marked boxes and arrows have in common.
    """

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    subtitle: str = ""
    marked: str = "on the failing path"
