"""Whose text a step read: texts are compared by hashes of their words, in time in proportion to their length."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

WINDOW = 8
"""A passage of this many words is the same text wherever it occurs; a shorter text only as a whole."""
STRIDE = 4
"""Of what a step read, every fourth passage is looked up: this finds 11 words in a row wherever they are."""
MIN_LENGTH = 12
"""A shorter text must be a whole message or line to count."""
MAX_PRODUCERS = 64
"""Of the steps that produced the same passage, the latest this many are remembered."""

_PUNCTUATION = re.compile(r"[^\w\x00-\x7f]")
_TO_WORDS = bytes(ord(chr(byte).lower()) if chr(byte).isalnum() or byte in b"_" else 32 for byte in range(128))
_TO_WORDS += bytes(range(128, 256))


class GivenTexts:
    """The texts that a run was given: whoever has a passage of them need not have it from a step."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = list(texts)
        self.lines = {line for text in texts for line in _list_lines(text)}
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
        self._passages: dict[int, tuple[int, ...]] = {}
        self._lines: dict[str, tuple[int, ...]] = {}
        self._has_long = False
        self._short: dict[bytes, set[int]] = {}  # the lengths of passages of short texts, by their longest words

    def add(self, place: int, texts: Iterable[str]) -> None:
        """Remember what a step produced. Steps are added in their order."""
        for text in texts:
            words = _split(text)
            length = min(len(words), WINDOW)
            if length and len(text) >= MIN_LENGTH:
                if len(words) < 2 * WINDOW:
                    for at in range(len(words) - length + 1):
                        self._short.setdefault(max(words[at : at + length], key=len), set()).add(length)
                else:
                    self._has_long = True
                passages = set(_hash_passages(words, length))
                _add_producer(self._passages, passages - self._given.list_passages(length), place)
            _add_producer(self._lines, set(_list_lines(text)) - self._given.lines, place)

    def find_producers(self, texts: Iterable[str]) -> set[tuple[int, ...]]:
        """For each passage of the texts that steps produced, the places of these steps."""
        found: set[tuple[int, ...]] = set()
        get_producers = self._passages.get
        for text in texts:
            words = _split(text)
            lengths: set[int] = set()
            if self._short:
                lengths = {length for word in self._short.keys() & words for length in self._short[word]}
            for length in lengths:
                found.update(filter(None, map(get_producers, _hash_passages(words, length))))
            if self._has_long and WINDOW not in lengths:
                found.update(filter(None, map(get_producers, _hash_passages(words, WINDOW, stride=STRIDE))))
                found.update(filter(None, map(get_producers, _hash_passages(words[-WINDOW:], WINDOW))))
            found.update(filter(None, map(self._lines.get, map(str.strip, text.splitlines()))))
        return found


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


def _hash_passages(words: Sequence[bytes], length: int, *, stride: int = 1) -> Iterator[int]:
    return map(hash, zip(*(words[at::stride] for at in range(length)), strict=False))


def _list_lines(text: str) -> set[str]:
    return {line for line in map(str.strip, text.splitlines()) if line}
