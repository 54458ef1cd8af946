"""Whose text a step read: texts are compared by hashes of their words, in time in proportion to their length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

WINDOW = 8
"""A passage of this many words is the same text wherever it occurs; a shorter text only as a whole."""
MIN_LENGTH = 12
"""A shorter text must be a whole message or line to count."""

_WORD = re.compile(r"\w+")


class TextIndex:
    """The texts that steps produced, in the order of their steps."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known: set[int] = set()
        self._producers: dict[int, list[int]] = {}
        self._lengths: set[int] = set()
        self._lines: dict[str, list[int]] = {}
        self._known_lines = {line for text in known for line in _list_lines(text)}
        self._known_texts = list(known)

    def add(self, place: int, texts: Iterable[str]) -> None:
        """Remember what a step produced. Steps are added in their order."""
        for text in texts:
            words = [word.lower() for word in _WORD.findall(text)]
            length = min(len(words), WINDOW)
            if length and len(text) >= MIN_LENGTH:
                self._lengths.add(length)
                for passage in set(_list_passages(words, length)):
                    self._producers.setdefault(passage, []).append(place)
            for line in _list_lines(text):
                self._lines.setdefault(line, []).append(place)

    def finish(self) -> None:
        """Forget passages that the run was given: whoever has them need not have them from a step."""
        for text in self._known_texts:
            words = [word.lower() for word in _WORD.findall(text)]
            for length in self._lengths:
                for passage in _list_passages(words, length):
                    self._producers.pop(passage, None)
        for line in self._known_lines:
            self._lines.pop(line, None)

    def find_producers(self, texts: Sequence[str]) -> list[list[int]]:
        """For each passage of the texts that steps produced, the places of these steps."""
        found: dict[tuple[int, ...], None] = {}
        for text in texts:
            words = [word.lower() for word in _WORD.findall(text)]
            for length in self._lengths:
                for passage in _list_passages(words, length):
                    if (producers := self._producers.get(passage)) is not None:
                        found[tuple(producers)] = None
            for line in _list_lines(text):
                if (producers := self._lines.get(line)) is not None:
                    found[tuple(producers)] = None
        return [list(each) for each in found]


def _list_passages(words: Sequence[str], length: int) -> Iterable[int]:
    return (hash(tuple(words[at : at + length])) for at in range(len(words) - length + 1))


def _list_lines(text: str) -> Iterable[str]:
    stripped = (line.strip() for line in text.splitlines())
    return (line for line in stripped if line)
