"""What a text is about: its terms, ids and names."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from promptiter.backprop.case_values import IDEOGRAPHS, is_ideograph
from promptiter.small_words import SMALL_WORDS, SMALL_WORDS_BY_LANGUAGE

IGNORED_WORDS = SMALL_WORDS.union(*SMALL_WORDS_BY_LANGUAGE.values())
"""Words that say nothing about a text."""

SHORTEST_ID = 4
"""Minimum number of characters of an id."""

MAX_CAPITALIZED = 0.5
"""Above this share of capitalized words inside of sentences, a capital letter does not make a name."""


def list_terms(text: str) -> frozenset[str]:
    """The words of a text that may say what it is about, without their endings; pairs of ideographs."""
    found = set()
    for run in _RUN.findall(text):
        if is_ideograph(run):
            found |= {run[at : at + 2] for at in range(max(1, len(run) - 1))}
        elif len(word := run.casefold()) >= (1 if _DIGIT.search(run) else 3) and word not in IGNORED_WORDS:
            found.add(_stem(word))
    return frozenset(found)


def find_ids(text: str) -> Iterator[tuple[str, int, int]]:
    """Tokens with a digit and their places, without marks and in lower case; the parts of a token, too."""
    for token in _TOKEN.finditer(text):
        if _DIGIT.search(token[0]) is None:
            continue
        parts = list(_PART.finditer(text, *token.span()))
        whole = "".join(part[0] for part in parts).casefold()
        found = {whole: token.span(), **{part[0].casefold(): part.span() for part in parts}}
        yield from ((each, *span) for each, span in found.items() if len(each) >= SHORTEST_ID and _DIGIT.search(each))


def is_plain_number(text: str) -> bool:
    """Whether a number is a year or a round one, which any text may have."""
    return _PLAIN_NUMBER.fullmatch(text) is not None


class Spellings:
    """How the words of many texts are spelled, to tell names from other words."""

    def __init__(self) -> None:
        self._capitalized: set[str] = set()
        self._inside: set[str] = set()
        self._lower: set[str] = set()
        self._counts: Counter[bool] = Counter()
        self._small_words: Counter[str] = Counter()

    def add(self, text: str) -> None:
        for word, is_inside, is_part in _list_spellings(text):
            key = word.casefold()
            if not word[0].isupper():
                self._lower.add(key)
            elif not word.isupper():
                self._capitalized.add(key)
                if is_inside and not is_part:
                    self._inside.add(key)
            if is_inside:
                self._counts[word[0].isupper()] += 1
            self._small_words.update(name for name, words in SMALL_WORDS_BY_LANGUAGE.items() if key in words)

    def find_names(self, text: str) -> set[str]:
        """The terms of another text that are names in these: capitalized inside of a sentence, and never in lower case.

        Abbreviations, days and months are not names, and no word is known to be one in German, which capitalizes all
        nouns.
        """
        is_german = self._small_words["German"] > self._small_words["English"]
        if is_german or self._counts[True] > MAX_CAPITALIZED * self._counts.total():
            return set()
        return {
            _stem(key)
            for word, is_inside, _ in _list_spellings(text)
            if word[0].isupper() and not word.isupper()
            if (key := word.casefold()) not in self._lower and key not in _CALENDAR
            if key in (self._capitalized if is_inside else self._inside)
        }


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    """A word without its ending, or a double letter before it: `ship` for `shipping`, `shipped` and `ships`."""
    for ending in ("ing", "ed", "es", "s", "en", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            stem = word.removesuffix(ending)
            break
    else:
        stem = word.removesuffix("s") if len(word) > 3 else word
    return stem[:-1] if stem[-2:-1] == stem[-1:] and not stem[-1:].isdigit() else stem


def _list_spellings(text: str) -> Iterator[tuple[str, bool, bool]]:
    """The words of a text, whether each is inside of a sentence, and whether it continues a name, as `Parking` does in
    `Skyline Parking`."""
    is_inside, end_of_name = False, -1
    for match in _LETTERS_OR_END.finditer(text):
        word = match["word"]
        if word:
            yield word, is_inside, end_of_name == match.start() - 1 and text[end_of_name] == " "
        is_inside = bool(word)
        end_of_name = match.end() if word and word[0].isupper() else -1


_CALENDAR = frozenset(name.casefold() for name in (*calendar.month_name, *calendar.day_name) if name)
_TOKEN = re.compile(rf"[^\W_{IDEOGRAPHS}]+(?:[-./:_#,][^\W_{IDEOGRAPHS}]+)*")
_PART = re.compile(r"[^\W_]+")
_RUN = re.compile(rf"[{IDEOGRAPHS}]+|[^\W_{IDEOGRAPHS}]+")
_LETTERS_OR_END = re.compile(rf"(?P<word>[^\W\d_{IDEOGRAPHS}]+)|[.!?:\n|>]")
_DIGIT = re.compile(r"\d")
_PLAIN_NUMBER = re.compile(r"(?:19|20)\d\d|[1-9]0+")
