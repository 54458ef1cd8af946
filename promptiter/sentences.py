"""Splits a prompt into sentences with their positions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LEAD = re.compile(r"\s*(?:[-*•]\s+|\d+[.)]\s+|#+\s+)?")
_GAP = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))\s+(?=[\"'(]?[A-Z{])|(?<=[。！？])\s*(?=[^\s」』”）])")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a prompt and its position, without a list marker."""

    text: str
    start: int
    end: int


def split_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a prompt. A line break ends a sentence; list and heading markers are left out."""
    found = []
    for line in re.finditer(r"[^\n]+", text):
        lead = _LEAD.match(line[0])
        start = line.start() + (lead.end() if lead else 0)
        for gap in _GAP.finditer(text, start, line.end()):
            found.append(Sentence(text[start : gap.start()], start, gap.start()))
            start = gap.end()
        rest = text[start : line.end()].rstrip()
        if rest:
            found.append(Sentence(rest, start, start + len(rest)))
    return found
