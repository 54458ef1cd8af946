"""Text on a terminal: control characters of names, traces and errors are shown, never obeyed.

A terminal obeys escape sequences in what it prints: they can hide text, change the title, or fake output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except for tabs and line breaks, and those that change the direction of text."""


def show_controls(text: str) -> str:
    """Replace control characters by escapes that JSON reads back, such as `\\u001b`."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class SafeConsole(Console):
    """A console that shows control characters in texts. Its own colors and cursor movements work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or _CONTROLS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)
