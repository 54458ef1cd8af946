"""Rubrics of judges, from a Markdown file: each item of its lists is one; without lists, the whole text is."""

from __future__ import annotations

import re
from pathlib import Path

from promptiter.errors import SetupError

ALL_JUDGES = "judges"
"""The figure that is the mean of all judges."""

_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(.+?)\s*$", re.MULTILINE)


def read_rubrics(file: Path) -> tuple[str, ...]:
    """The rubrics of a file: the items of its lists, or its whole text."""
    try:
        text = file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"the rubric {str(file)!r} cannot be read: {error}; write rubric.md beside task.yaml"
        ) from error
    found: list[str] = _ITEM.findall(text) or ([text] if text else [])
    if not found:
        raise SetupError(f"the rubric {str(file)!r} is empty; list what a good result fulfils")
    return tuple(found)
