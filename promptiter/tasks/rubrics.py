"""Rubrics of judges, from Markdown: each item of its lists is one; without lists, the whole text is."""

from __future__ import annotations

import re
from pathlib import Path

from promptiter.errors import SetupError

_ITEM = re.compile(
    r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(\S.*(?:\n[ \t]{2,}(?![-*+]|\d+[.)])\S.*)*)", re.MULTILINE
)


def read_rubrics(file: Path) -> tuple[str, ...]:
    """The rubrics of a file. SetupError if it cannot be read, or is empty."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SetupError(
            f"the rubric {str(file)!r} cannot be read: {error.strerror or error}; write rubric.md beside task.yaml"
        ) from error
    except UnicodeDecodeError as error:
        raise SetupError(
            f"the rubric {str(file)!r} has invalid UTF-8 at byte {error.start}; save it as UTF-8"
        ) from error
    if not text.strip():
        raise SetupError(f"the rubric {str(file)!r} is empty; list what a good result fulfils")
    return list_rubrics(text)


def list_rubrics(text: str) -> tuple[str, ...]:
    """The items of the lists in a text, each on one line; without a list, the whole text."""
    found = tuple(" ".join(match[1].split()) for match in _ITEM.finditer(text))
    return found or (text.strip(),)
