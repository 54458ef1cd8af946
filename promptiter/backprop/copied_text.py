"""Passages of a text that are copied from cases: runs of words, whole inputs, long answers and ids."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

from promptiter.backprop.case_terms import IGNORED_WORDS
from promptiter.backprop.case_values import WORD, CaseValue, collect_inputs, collect_texts, is_ideograph, split_words
from promptiter.evaluation.data.case import EvalCase

RUN_WORDS, RUN_CHARACTERS, RUN_TERMS = 6, 28, 2
"""Minimum length of a copied run, in words, in characters and in words that say something. (An ideograph counts as such
a word, of three characters.)"""

PIECE = 3
"""Number of words in the pieces by which runs are looked up. A run has at least twice as many."""

CASE_BITS = 32
"""Number of bits for the number of a case beside the hash of a piece."""

SHORTEST_LITERAL, SHORTEST_INPUT = 12, 4
"""Minimum number of characters of a copied input, answer, argument or number; minimum number of words of an input."""

RARE = 2
"""A passage counts as copied if at most this many cases contain it; otherwise it belongs to the task."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A span of characters in a text that cases are known by, and what it has to do with them."""

    start: int
    end: int
    case_ids: tuple[str, ...]
    relation: str = "gives away"

    def overlaps(self, other: Passage) -> bool:
        return self.start < other.end and other.start < self.end


class PassageIndex:
    """The texts of the cases, indexed by pieces, so that the cases with a run of words are found without a scan.

    Pieces are adjacent, not overlapping: wherever a run begins, it contains at least one of them. The index is a sorted
    array of hashes and numbers of cases, so that it takes less memory than the texts.
    """

    def __init__(self, cases: Sequence[EvalCase], values: Sequence[Sequence[CaseValue]]) -> None:
        self._ids = [case.id for case in cases]
        self._case_texts: list[str] = []
        pieces = array("Q")
        literals: set[str] = set()
        for number, case in enumerate(cases):
            texts = list(dict.fromkeys(collect_texts(case)))
            word_lists = [split_words(text) for text in texts]
            self._case_texts.append("\n".join(map(_join_words, word_lists)))
            for words in word_lists:
                starts = range(0, len(words) - PIECE + 1, PIECE)
                pieces.extend(_hash_piece(words, start) | number for start in starts)
            found = [split_words(text) for text in _collect_odd_tokens(texts)]
            own = [value.words.split() for value in values[number] if not value.is_label and not value.is_plain]
            if own:  # an answer that has only labels shows the form of all answers
                own += (split_words(turn.expected) for turn in case.turns if turn.expected)
            inputs = (words for text in collect_inputs(case) if len(words := split_words(text)) >= SHORTEST_INPUT)
            short = (words for words in (*found, *own, *inputs) if _measure_run(words) is None)  # others are runs
            literals.update(text for words in short if len(text := " ".join(words)) >= SHORTEST_LITERAL)
        self._pieces = array("Q", sorted(pieces))
        self._literals = frozenset(literals)
        self._literal_lengths = sorted({text.count(" ") + 1 for text in self._literals})

    def find_passages(self, text: str, current: str) -> list[Passage]:
        """The passages of a text that come from cases and are not in the current text; overlapping ones are merged."""
        places = list(WORD.finditer(text))
        words = [place[0].casefold() for place in places]
        known = _join_words(split_words(current))
        found: list[Passage] = []
        for first, after in self._find_candidates(words):
            case_ids = self._find_owners(words[first:after])
            if not case_ids or _join_words(words[first:after]) in known:
                continue
            start, end = places[first].start(), places[after - 1].end()
            if found and start < found[-1].end:
                last = found.pop()
                start, end, case_ids = last.start, max(end, last.end), last.case_ids
            found.append(Passage(start, end, case_ids, "is copied from"))
        return found

    def _find_candidates(self, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Spans of words that may come from a case: a run from each word on, and literals of the cases."""
        for first in range(len(words)):
            for count in self._literal_lengths:
                if first + count <= len(words) and " ".join(words[first : first + count]) in self._literals:
                    yield first, first + count
            if (length := _measure_run(words, first)) is not None:
                yield first, first + length

    def _find_owners(self, words: Sequence[str]) -> tuple[str, ...]:
        """The cases that contain these words in a row; empty if more than RARE do."""
        run = _join_words(words)
        found: set[int] = set()
        for number in self._find_possible_cases(words):
            if number not in found and run in self._case_texts[number]:
                found.add(number)
                if len(found) > RARE:
                    return ()
        return tuple(self._ids[number] for number in sorted(found))

    def _find_possible_cases(self, words: Sequence[str]) -> Iterable[int]:
        if len(words) < 2 * PIECE - 1:
            return range(len(self._case_texts))
        return chain.from_iterable(self._find_piece(_hash_piece(words, start)) for start in range(PIECE))

    def _find_piece(self, piece: int) -> Iterator[int]:
        """The cases that have a piece, or another one with the same hash."""
        for at in range(bisect_left(self._pieces, piece), len(self._pieces)):
            number = self._pieces[at] - piece
            if number >> CASE_BITS:
                return
            yield number


def _hash_piece(words: Sequence[str], start: int) -> int:
    """The hash of a piece, above the bits for the number of a case."""
    return crc32(" ".join(words[start : start + PIECE]).encode("utf-8", "surrogatepass")) << CASE_BITS


def _measure_run(words: Sequence[str], first: int = 0) -> int | None:
    """The number of words from `first` on that make a run, None if the text ends before."""
    characters, terms = -1, 0
    for count, word in enumerate(words[first : first + RUN_CHARACTERS], start=1):
        characters += len(word) + (3 if is_ideograph(word) else 1)
        terms += word not in IGNORED_WORDS
        if count >= RUN_WORDS and characters >= RUN_CHARACTERS and terms >= RUN_TERMS:
            return count
    return None


def _collect_odd_tokens(texts: Iterable[str]) -> Iterator[str]:
    """Long tokens with a digit or an `@`."""
    for text in texts:
        yield from (token for token in _TOKEN.findall(text) if len(token) >= SHORTEST_LITERAL and _ODD.search(token))


def _join_words(words: Sequence[str]) -> str:
    """Join words for searching, with a space on each side, so that `art` is not found in `start`."""
    return f" {' '.join(words)} "


_TOKEN = re.compile(r"""[^\s"'`<>(){}\[\],;]+""")
_ODD = re.compile(r"[\d@]")
