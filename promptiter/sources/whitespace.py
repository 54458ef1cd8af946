"""Whitespace that a program removes when it reads a text, as `Path("bot.md").read_text().strip()` does.

A place may hold more whitespace than the value that the agent sees. A new value is written with the same whitespace
around it, and only if the program will read exactly that value.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator

Reader = Callable[[str], str]


def strip_dedented(text: str) -> str:
    """Remove the common indentation, and the whitespace around the text."""
    return textwrap.dedent(text).strip()


READERS: tuple[Reader, ...] = (str.strip, str.rstrip, str.lstrip, textwrap.dedent, strip_dedented, inspect.cleandoc)
"""What programs do to a text that they read."""


def find_readers(stored: str, value: str) -> tuple[Reader, ...]:
    """The functions that read this value from the stored text. Empty if it holds another value, or exactly this one."""
    return () if stored == value else tuple(read for read in READERS if read(stored) == value)


def refit(stored: str, value: str, readers: Iterable[Reader]) -> str | None:
    """A text with the whitespace of the stored one, which all of these functions read as the value, if there is one."""
    readers = tuple(readers)
    return next((text for text in _list_texts(stored, value) if all(read(text) == value for read in readers)), None)


def _list_texts(stored: str, value: str) -> Iterator[str]:
    body = stored.strip()
    start = stored.find(body) if body else 0
    before, after = stored[:start], stored[start + len(body) :]
    margin = before.rpartition("\n")[2] or _find_margin(stored)
    lines = value.split("\n")
    indented = "\n".join([lines[0], *(f"{margin}{line}" if line.strip() else line for line in lines[1:])])
    filled = "\n".join([lines[0], *(f"{margin}{line}" for line in lines[1:])])
    for text in (indented, filled, value):
        yield f"{before}{text}{after}"
    yield value


def _find_margin(text: str) -> str:
    """The common indentation of all lines but the first."""
    rest = "\n".join(text.split("\n")[1:])
    for line in rest.split("\n"):
        if line.strip():
            whole, dedented = line, next(each for each in textwrap.dedent(rest).split("\n") if each.strip())
            return whole[: len(whole) - len(dedented)]
    return ""
