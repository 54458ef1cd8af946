"""The code blocks of a Markdown page, and whether a command printed what the page says.

A `text` block right below another block is what it must print. `...` matches any text in a line; on its own, any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

TITLE = re.compile(r'(\w+) title="([\w./]+)"')


class Block(NamedTuple):
    kind: str
    code: str
    line: int
    expected: str | None
    file: str | None


class Output(NamedTuple):
    printed: str
    errors: str


def blocks(page: Path) -> Iterator[Block]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    for number, token in enumerate(tokens):
        if token.type != "fence" or token.info == "text":
            continue
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        expected = following.content if following and following.type == "fence" and following.info == "text" else None
        titled = TITLE.fullmatch(token.info)
        kind, file = titled.groups() if titled else (token.info, None)
        yield Block(kind, token.content, (token.map or [0])[0] + 1, expected, file)


def check_output(output: Output, expected: str, *, place: str) -> None:
    """Compare with standard output, or with the text on standard error before it if there are `...`."""
    if "..." not in expected:
        assert clean(output.printed) == clean(expected), place
        return
    texts = clean(output.printed), clean(output.errors + output.printed)
    pattern = as_pattern(clean(expected))
    assert any(re.fullmatch(pattern, text) for text in texts), f"{place}:\n{texts[1]}"


def clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def as_pattern(expected: str) -> str:
    lines = [
        r"(?s:.*)" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") for line in expected.splitlines()
    ]
    return "\n".join(lines)
