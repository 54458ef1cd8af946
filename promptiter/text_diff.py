"""Hunks: the sentences and lines in which two texts differ. A prompt is often one long line, so lines do not do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """A passage that differs: the old and the new text, and which sentences of each text it replaces."""

    before: str
    after: str
    old: range
    new: range


def find_hunks(before: str, after: str) -> list[Hunk]:
    """The passages of two texts that differ; passages that differ only in white space are left out."""
    old, new = split_passages(before), split_passages(after)
    matcher = SequenceMatcher(a=list(map(normalize_space, old)), b=list(map(normalize_space, new)), autojunk=False)
    hunks = [
        Hunk(
            before="".join(old[first:last]).strip(),
            after="".join(new[start:end]).strip(),
            old=range(first, last),
            new=range(start, end),
        )
        for kind, first, last, start, end in matcher.get_opcodes()
        if kind != "equal"
    ]
    return [hunk for hunk in hunks if hunk.before or hunk.after]


def split_passages(text: str) -> list[str]:
    """The sentences and lines of a text, which joined give the text."""
    return [part for part in re.split(r"(?<=[.!?。！？])(?=\s)|(?<=\n)", text) if part]


def normalize_space(text: str) -> str:
    return " ".join(text.split())


def is_same_passage(one: str, other: str) -> bool:
    """Whether one of two passages holds the other, whatever the white space; an empty one is in none."""
    first, second = normalize_space(one), normalize_space(other)
    return bool(first and second) and (first in second or second in first)
