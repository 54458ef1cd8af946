"""Pieces of HTML for notebooks: escaped, self-contained, without scripts, and short however large the data is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

MAX_ROWS = 50
"""Rows of a table that are shown; the others are counted."""
MAX_TEXT = 200
"""Characters of a cell that are shown."""
MAX_LINES = 60
"""Lines of a diff that are shown."""

_CELL = "text-align:left;vertical-align:top;padding:2px 8px;max-width:32em;overflow-wrap:anywhere"
_COLOURS = {"+": "color:#1a7f37", "-": "color:#cf222e"}


def html_block(*parts: str) -> str:
    """Join pieces of HTML."""
    return f'<div style="font-size:90%">{"".join(parts)}</div>'


def html_heading(title: str, details: str = "") -> str:
    """A line with a bold title."""
    return f"<p><b>{_shorten(title)}</b> {_shorten(details)}</p>"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, count: int) -> str:
    """A table of the first rows; `count` is the number of all rows."""
    lines = [_html_row("th", head), *(_html_row("td", row) for row in islice(rows, MAX_ROWS))]
    return f"<table>{''.join(lines)}</table>{_count_hidden(count - MAX_ROWS, 'rows')}"


def html_diff(title: str, text: str) -> str:
    """A diff, as lines that begin with `+`, `-` or a space, below its title."""
    lines = text.split("\n")
    coloured = "\n".join(
        f'<span style="{_COLOURS.get(line[:1], "")}">{_shorten(line, 4 * MAX_TEXT)}</span>'
        for line in lines[:MAX_LINES]
    )
    hidden = _count_hidden(len(lines) - MAX_LINES, "lines")
    return f'<p><code>{_shorten(title)}</code></p><pre style="white-space:pre-wrap">{coloured}</pre>{hidden}'


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{_shorten(cell)}</{tag}>' for cell in cells) + "</tr>"


def _shorten(text: str, limit: int = MAX_TEXT) -> str:
    return escape(text if len(text) <= limit else f"{text[: limit - 1]}…")


def _count_hidden(number: int, what: str) -> str:
    return f"<p>… {number:,} more {what}</p>" if number > 0 else ""
