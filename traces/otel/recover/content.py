"""Whose text a step read: texts are compared by hashes of their words, in time in proportion to their length."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

WINDOW = 8
"""A passage of this many words is the same text wherever it occurs; a shorter text only as a whole."""
MIN_LENGTH = 12
"""A shorter text must be a whole message or line to count."""
MAX_PRODUCERS = 64
"""Of the steps that produced the same passage, the latest this many are remembered."""

_PUNCTUATION = re.compile(r"[^\w\x00-\x7f]")
_TO_WORDS = bytes(ord(chr(byte).lower()) if chr(byte).isalnum() or byte in b"_" else 32 for byte in range(128))
_TO_WORDS += bytes(range(128, 256))
_GAP = b""
"""Not a word, so no passage contains it."""


class GivenTexts:
    """The texts that a run was given: whoever has a passage of them need not have it from a step."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = list(texts)
        self.lines = {line for text in texts for line in _list_lines(text)}
        self.wholes = self.lines.union(map(str.strip, texts))
        self._words = [_split(text) for text in texts]
        self._passages: dict[int, set[int]] = {}

    def list_passages(self, length: int) -> set[int]:
        """The hashes of all passages of so many words."""
        if length not in self._passages:
            self._passages[length] = {passage for words in self._words for passage in _hash_passages(words, length)}
        return self._passages[length]


class TextIndex:
    """The texts that steps produced, without what the run was given. Steps are known by their places."""

    def __init__(self, given: GivenTexts) -> None:
        self._given = given
        self._wholes: dict[str, tuple[int, ...]] = {}
        self._lines: dict[str, tuple[int, ...]] = {}
        self._passages: dict[int, tuple[int, ...]] = {}
        self._short: dict[bytes, set[int]] = {}  # the lengths of texts shorter than a passage, by their longest words

    def add(self, place: int, texts: Iterable[str]) -> None:
        """Remember what a step produced. Steps are added in their order."""
        for text in texts:
            words = _split(text)
            length = min(len(words), WINDOW)
            if length and len(text) >= MIN_LENGTH:
                if length < WINDOW:
                    self._short.setdefault(max(words, key=len), set()).add(length)
                passages = set(_hash_passages(words, length))
                _add_producer(self._passages, passages - self._given.list_passages(length), place)
            _add_producer(self._lines, set(_list_lines(text)) - self._given.lines, place)
            _add_producer(self._wholes, {text.strip()} - self._given.wholes, place)

    def find_whole(self, text: str) -> tuple[int, ...]:
        """The places of the steps that produced exactly this text."""
        return self._wholes.get(text.strip(), ())

    def find_passages(self, text: str) -> set[tuple[int, ...]]:
        """For each line and passage of a text that steps produced, the places of these steps."""
        lines = _list_lines(text)
        found = {self._lines[line] for line in lines if line in self._lines}
        words = self._list_unexplained(lines) if found or not self._given.lines.isdisjoint(lines) else _split(text)
        lengths = {WINDOW}
        if self._short:
            lengths |= {length for word in self._short.keys() & words for length in self._short[word]}
        for length in lengths:
            found.update(filter(None, map(self._passages.get, _hash_passages(words, length))))
        return found

    def _list_unexplained(self, lines: Iterable[str]) -> list[bytes]:
        """The words of these lines, without the inside of a long line whose origin is known."""
        words: list[bytes] = []
        for line in lines:
            of_line = _split(line)
            if len(of_line) > 2 * WINDOW and (line in self._lines or line in self._given.lines):
                of_line[WINDOW - 1 : 1 - WINDOW] = [_GAP]
            words += of_line
        return words


def _add_producer(producers: dict[K, tuple[int, ...]], new: set[K], place: int) -> None:
    known = producers.keys() & new
    for each in known:
        if producers[each][-1] != place:
            producers[each] = (*producers[each][1 - MAX_PRODUCERS :], place)
    producers.update(dict.fromkeys(new - known if known else new, (place,)))


def _split(text: str) -> list[bytes]:
    """The words of a text in lower case. Bytes are five times as fast as a regular expression."""
    if not text.isascii():
        text = _PUNCTUATION.sub(" ", text.lower())
    return text.encode(errors="surrogatepass").translate(_TO_WORDS).split()


def _hash_passages(words: Sequence[bytes], length: int) -> Iterator[int]:
    return map(hash, zip(*(words[at:] for at in range(length)), strict=False))


def _list_lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]
