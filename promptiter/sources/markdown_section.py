"""Markdown sections: the text below a heading, up to the next heading of the same or a higher level.

The blank lines around the text belong to the file, not to the value. What a heading is, says CommonMark: `#` in a code
block is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from promptiter.errors import SetupError, nearest
from promptiter.wording import shorten
from traces.model import Json

_LINE_END = re.compile(r"\r\n?|\n")
_BODY = re.compile(r"\A((?:[ \t\r]*\n)*)(.*?)((?:\r?\n[ \t\r]*)*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. Its line starts at `start`; its section starts at `body` and reaches to `end`."""

    level: int
    text: str
    start: int
    body: int
    end: int = 0


@dataclass(frozen=True, slots=True)
class MarkdownSection:
    """The section of a heading; of several with the same text, `Support > Planner` is the one below `Support`."""

    heading: str

    @property
    def name(self) -> str:
        return f"#{self.heading}"

    def read(self, text: str) -> Json:
        return _split(text, self._find(text))[1]

    def replace(self, text: str, value: Json) -> str:
        if not isinstance(value, str):
            raise SetupError(
                f"a section holds text, and the value is {shorten(value)}; use a YAML or JSON field for it"
            )
        section = self._find(text)
        before, old, after = _split(text, section)
        if value and not old:
            before, after = "\n", "\n" if section.end == len(text) else "\n\n"
            before = before if text[: section.body].endswith("\n") else "\n\n"
        changed = text[: section.body] + before + value + after + text[section.end :]
        if self._read_again(changed) != value:
            raise SetupError(
                "the section cannot hold this value: it starts or ends with an empty line, or has a heading of the "
                "same or a higher level; keep the text in a file of its own"
            )
        if _list_others(changed, self._find(changed)) != _list_others(text, section):
            raise SetupError(
                "this value would change the sections that follow, as an open code block does; keep the text in a file "
                "of its own"
            )
        return changed

    def _read_again(self, text: str) -> Json:
        try:
            return self.read(text)
        except SetupError:  # the value holds a heading with the same text
            return None

    def _find(self, text: str) -> Heading:
        found = list(list_headings(text))
        known = found
        for name in self.heading.split(" > "):
            inside = [each for each in found if each.text == name.strip()]
            inside = inside or [each for each in found if _slug(each.text) == name.strip()]
            if not inside:
                raise SetupError(
                    f"there is no heading {name.strip()!r}{nearest(name.strip(), [each.text for each in known])}"
                )
            found = [each for each in known if any(one.body <= each.start < one.end for one in inside)]
        if len(inside) > 1:
            raise SetupError(
                f"{len(inside)} headings are called {self.heading!r}; name the one above it as well: Support > Planner"
            )
        return inside[0]


def list_headings(text: str) -> Iterator[Heading]:
    """All headings of a Markdown text, with their sections."""
    found = list(_scan(text))
    for number, each in enumerate(found):
        following = (later.start for later in found[number + 1 :] if later.level <= each.level)
        yield Heading(each.level, each.text, each.start, each.body, next(following, len(text)))


def list_sections(text: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of every section whose heading is there once."""
    headings = list(list_headings(text))
    names = [each.text for each in headings]
    for each in headings:
        if each.text and " > " not in each.text and names.count(each.text) == 1:
            yield each.text, _split(text, each)[1]


def _scan(text: str) -> Iterator[Heading]:
    """The headings of the page, not those in lists and quotes. Their sections still have no end."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    first = _skip_front_matter(text)
    starts = [first, *(each.end() for each in _LINE_END.finditer(text, first)), len(text)]
    for token, content in pairwise(parser.parse(text[first:])):
        if token.type == "heading_open" and token.level == 0 and token.map is not None:
            start, body = (starts[line] for line in token.map)
            yield Heading(int(token.tag[1]), re.sub(r"\s*\n\s*", " ", content.content), start, body)


def _skip_front_matter(text: str) -> int:
    found = re.match(r"---[ \t]*\r?\n.*?\n(?:---|\.\.\.)[ \t]*\r?(?:\n|\Z)", text, re.DOTALL)
    return found.end() if found else 0


def _split(text: str, section: Heading) -> tuple[str, str, str]:
    """The blank lines before the text of a section, the text, and the blank lines after it."""
    found = _BODY.match(text[section.body : section.end])
    return ("", "", "") if found is None else (found[1], found[2], found[3])


def _list_others(text: str, section: Heading) -> list[tuple[int, str, str]]:
    """The headings outside of a section, each with the text up to it."""
    return [
        (each.level, each.text, text[: each.start] if each.start < section.body else text[each.start :])
        for each in list_headings(text)
        if not section.body <= each.start < section.end
    ]


def _slug(text: str) -> str:
    """The name of a heading in a link."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
