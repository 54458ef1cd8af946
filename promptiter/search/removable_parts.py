"""Pieces: the sentences, list items, blocks and examples of a surface that PromptShortening can remove one by one.

The text still reads well without some of them: a line that loses all its sentences disappears with its list marker,
and a line that loses some keeps it. A bracketed or fenced block that spans several lines is one piece.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from promptiter.sentences import split_sentences
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json


@dataclass(frozen=True, slots=True)
class Pieces:
    """A value split into pieces. `lines` are the spans of its lines, `inside` the spans of the pieces in each line."""

    value: Json
    lines: tuple[tuple[int, int], ...]
    inside: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def of(surface: Surface) -> Pieces:
        """Split a surface's value: a text into sentences, examples into questions with their answers."""
        value = surface.value
        if surface.type in TEXT_TYPES and isinstance(value, str):
            lines = _split_lines(value)
            return Pieces(value, tuple(lines), tuple(_split_sentences(value, start, end) for start, end in lines))
        if surface.type == "examples" and isinstance(value, list):
            starts = [at for at, message in enumerate(value) if at == 0 or message["role"] == "user"]
            spans = tuple(pairwise((*starts, len(value))))
            return Pieces(value, spans, tuple((span,) for span in spans))
        return Pieces(value, (), ())

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return tuple(span for spans in self.inside for span in spans)

    def __len__(self) -> int:
        return len(self.spans)

    def text(self, number: int) -> str:
        """A piece as text, to estimate its tokens."""
        start, end = self.spans[number]
        found = self.value[start:end]
        return found if isinstance(found, str) else "\n".join(message["content"] for message in found)

    def drop(self, numbers: Collection[int]) -> Json:
        """The value without the pieces of these numbers."""
        gone = {self.spans[number] for number in numbers}
        if not isinstance(self.value, str):
            return [message for span in self.spans if span not in gone for message in self.value[slice(*span)]]
        if not gone:
            return self.value
        kept = "".join(self._render_line(*each, gone) for each in zip(self.lines, self.inside, strict=True))
        kept = re.sub(r"\n{3,}", "\n\n", kept).lstrip("\n")
        return kept if self.value.endswith("\n") else kept.rstrip()

    def _render_line(
        self, line: tuple[int, int], inside: tuple[tuple[int, int], ...], gone: set[tuple[int, int]]
    ) -> str:
        if not any(span in gone for span in inside):
            return str(self.value[slice(*line)])
        left = [at for at, span in enumerate(inside) if span not in gone]
        if not left:
            return ""
        parts = [self.value[line[0] : inside[0][0]]]  # the list marker
        for at in left:
            gap = self.value[inside[at - 1][1] : inside[at][0]] if at > 0 and len(parts) > 1 else ""
            parts += [gap, self.value[slice(*inside[at])]]
        return "".join((*parts, self.value[inside[-1][1] : line[1]]))


def _split_lines(text: str) -> list[tuple[int, int]]:
    """Spans that cover the text: lines with their line ends; a block that spans several lines is one span."""
    found: list[tuple[int, int]] = []
    start, depth, is_fenced = 0, 0, False
    for line in re.finditer(r"[^\n]*\n|[^\n]+", text):
        is_fenced ^= line[0].lstrip().startswith(("```", "~~~"))
        depth = max(0, depth + len(re.findall(r"[{\[]", line[0])) - len(re.findall(r"[}\]]", line[0])))
        if not is_fenced and depth == 0:
            found.append((start, line.end()))
            start = line.end()
    if start < len(text):
        found.append((start, len(text)))
    return found


def _split_sentences(text: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    whole = text[start:end]
    if "\n" in whole.rstrip("\n"):
        return ((start, start + len(whole.rstrip())),)
    return tuple((start + each.start, start + each.end) for each in split_sentences(whole))
