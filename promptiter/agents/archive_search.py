"""ArchiveSearch: a tool that searches documents, without a service: rare words (BM25) and similar spelling (trigrams).

It replaces a vector store where none is needed: both rankings are computed in this process, and the settings that
are tuned at query time (`top_k`, `semantic_weight`, `keyword_weight`, `min_score`) mean the same. Trigrams find other
forms of a word, but no synonyms; for embeddings, write the tool as a function.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptiter.errors import SetupError

SUFFIXES = (".md", ".txt", ".jsonl")
_WORD = re.compile(r"\w+")
_FREQUENCY, _LENGTH = 1.2, 0.75
"""The usual parameters of BM25: how fast repeated words stop counting, and how much long documents are discounted."""


@dataclass(frozen=True)
class ArchiveSearch:
    """A search in the sections of text files: paragraphs, or parts under a heading."""

    documents: tuple[str, ...]

    @staticmethod
    def read(source: Path) -> ArchiveSearch:
        """The documents of a file, or of all text files in a folder. SetupError if there are none."""
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        known = [file for file in files if file.suffix in SUFFIXES and file.is_file()]
        if not known:
            raise SetupError(
                f"{str(source)!r} has no text files ({', '.join(SUFFIXES)}); name some, or write the tool as a function"
            )
        texts = [part for file in known for part in _split(file.read_text(encoding="utf-8"), file.suffix)]
        return ArchiveSearch(tuple(texts))

    def __call__(
        self,
        query: str,
        *,
        top_k: int = 5,
        semantic_weight: float = 0.5,
        keyword_weight: float | None = None,
        min_score: float = 0.0,
    ) -> list[str]:
        """The best documents for a query, best first."""
        keyword_weight = 1.0 - semantic_weight if keyword_weight is None else keyword_weight
        by_words, by_spelling = _normalize(self._rank_by_words(query)), _normalize(self._rank_by_spelling(query))
        scores = [
            keyword_weight * words + semantic_weight * spelling
            for words, spelling in zip(by_words, by_spelling, strict=True)
        ]
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
        return [self.documents[at] for at in order[:top_k] if scores[at] > 0 and scores[at] >= min_score]

    @cached_property
    def _words(self) -> tuple[Counter[str], ...]:
        return tuple(Counter(_list_words(text)) for text in self.documents)

    @cached_property
    def _trigrams(self) -> tuple[Counter[str], ...]:
        return tuple(Counter(_list_trigrams(text)) for text in self.documents)

    def _rank_by_words(self, query: str) -> list[float]:
        wanted, mean = set(_list_words(query)), sum(map(Counter.total, self._words)) / len(self._words)
        found = {word: sum(word in each for each in self._words) for word in wanted}
        rarity = {word: math.log(1 + (len(self._words) - n + 0.5) / (n + 0.5)) for word, n in found.items()}
        return [
            math.fsum(
                rarity[word]
                * each[word]
                * (_FREQUENCY + 1)
                / (each[word] + _FREQUENCY * (1 - _LENGTH + _LENGTH * each.total() / mean))
                for word in sorted(wanted)
            )
            for each in self._words
        ]

    def _rank_by_spelling(self, query: str) -> list[float]:
        wanted = Counter(_list_trigrams(query))
        return [_compare(wanted, each) for each in self._trigrams]


def _split(text: str, suffix: str) -> list[str]:
    if suffix == ".jsonl":
        parts = text.splitlines()
    elif suffix == ".md" and re.search(r"^#+ ", text, re.MULTILINE):
        parts = re.split(r"(?m)^(?=#+ )", text)
    else:
        parts = re.split(r"\n\s*\n", text)
    return [part.strip() for part in parts if part.strip()]


def _list_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _list_trigrams(text: str) -> list[str]:
    return [f" {word} "[at : at + 3] for word in _list_words(text) for at in range(len(word))]


def _compare(one: Counter[str], other: Counter[str]) -> float:
    """The cosine of two counts."""
    size = math.sqrt(sum(n * n for n in one.values()) * sum(n * n for n in other.values()))
    return math.fsum(n * other[part] for part, n in sorted(one.items())) / size if size else 0.0


def _normalize(scores: Sequence[float]) -> list[float]:
    best = max(scores, default=0.0)
    return [score / best if best > 0 else 0.0 for score in scores]
