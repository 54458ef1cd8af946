"""Prose of the simulated model: sentences with the fields they carry, in the length that rules ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from promptiter.offline.model.instruction_rules import RuleBook


@dataclass(slots=True, kw_only=True)
class Prose:
    """A prose answer: its core, the sentences around it, and the fields and documents that it carries."""

    before: list[str]
    core: str
    after: list[str]
    details: Mapping[str, str]
    documents: list[str]

    def mention(self, word: str) -> None:
        """Add a word unless it is there already."""
        if word.lower() not in self.core.lower():
            self.core = _insert_before_stop(self.core, f" – {word}")

    def text(self) -> str:
        """Everything as running text; many or awkward details go on lines of their own."""
        pairs = [f"{name}: {' '.join(value.split())}" for name, value in self.details.items()]
        sentences = [sentence for sentence in (*self.before, self.core, *self.after) if sentence]
        on_lines = len(pairs) > 4 or bool(self.documents) or any(re.search(r"[;()]", pair) for pair in pairs)
        if on_lines:
            return "\n".join((*([" ".join(sentences)] if sentences else []), *pairs, *self.documents))
        if pairs and sentences:
            sentences[-1] = _insert_before_stop(sentences[-1], f" ({'; '.join(pairs)})")
        elif pairs:
            sentences = ["; ".join(pairs)]
        return " ".join(sentences)

    def fit(self, book: RuleBook, *, filler: str) -> str:
        """The text in the length that the rules ask for."""
        self._fit_sentences(book, filler)
        return _fit_text(self.text(), book, filler)

    def _fit_sentences(self, book: RuleBook, filler: str) -> None:
        least, most = _read_limits(book, "sentences")
        while most and 1 + len(self.before) + len(self.after) > most and (self.before or self.after):
            (self.after or self.before).pop()
        if most == 1 and len(re.findall(r"[.!?](?=\s|$)", self.core)) > 1:
            self.core = re.split(r"(?<=[.!?])\s", self.core)[0]
        if least and self.core[-1:] not in (".", "!", "?"):
            self.core += "."
        while 1 + len(self.before) + len(self.after) < least:
            self.after.append(f"{filler}.")


def shorten(text: str, limit: int) -> str:
    """The first words of a text."""
    words = text.split()
    return text.strip().rstrip(".") if len(words) <= limit else " ".join(words[:limit]).rstrip(",;:")


def apply_case(text: str, book: RuleBook) -> str:
    return text.upper() if "upper_case" in book else text


def decorate(text: str, book: RuleBook) -> str:
    """The text with the prefix and suffix that rules ask for."""
    prefix, suffix = book.word("prefix"), book.word("suffix")
    if prefix and not text.startswith(prefix):
        text = f"{prefix} {text}"
    if suffix is None:
        return text
    return f"{text}\n{suffix}" if "\n" in text else f"{text} {suffix}"


def _read_limits(book: RuleBook, unit: str) -> tuple[int, int | None]:
    """The least and the most that rules ask for in a unit."""
    exact = book.number(f"exact_{unit}")
    return exact or book.number(f"min_{unit}") or 0, exact or book.number(f"max_{unit}")


def _fit_text(text: str, book: RuleBook, filler: str) -> str:
    least, most = _read_limits(book, "words")
    while len(text.split()) < least:
        text = f"{text} {filler}."
    if most and len(text.split()) > most:
        text = " ".join(text.split()[:most])
    least, most = _read_limits(book, "characters")
    while len(text) < least:
        text = f"{text} {filler}."
    around = sum(len(book.word(name) or "") + 1 for name in ("prefix", "suffix") if name in book)
    return text[: max(most - around, 1)].strip() if most else text


def _insert_before_stop(sentence: str, addition: str) -> str:
    stop = sentence[-1:] if sentence[-1:] in (".", "!", "?") else ""
    return f"{sentence[: len(sentence) - len(stop)]}{addition}{stop}"
