"""The outward shape of an answer: sentences and lists, lengths, letter case, and what stands around the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from promptiter.offline.model.instruction_rules import RuleBook

_PLACEHOLDERS = ("name", "date", "address", "company", "phone", "place", "title", "reference")


@dataclass(slots=True, kw_only=True)
class Prose:
    """The parts of a prose answer. To be shorter, it loses the sentences around the core first, the details last."""

    before: list[str]
    core: str
    after: list[str]
    details: Mapping[str, str]
    documents: list[str]
    bare: str

    def mention(self, word: str) -> None:
        """Work a word in, unless it is there already."""
        if word.lower() not in self.core.lower():
            self.core = _before_the_stop(self.core, f" – {word}")

    def pairs(self) -> list[str]:
        return [f"{name}: {' '.join(value.split())}" for name, value in self.details.items()]

    def text(self) -> str:
        """All parts as running text; many or awkward details go on lines of their own."""
        pairs = self.pairs()
        sentences = [part for part in (*self.before, self.core, *self.after) if part]
        on_lines = len(pairs) > 4 or bool(self.documents) or any(re.search(r"[;()]", pair) for pair in pairs)
        if on_lines:
            return "\n".join((*([" ".join(sentences)] if sentences else []), *pairs, *self.documents))
        if pairs and sentences:
            sentences[-1] = _before_the_stop(sentences[-1], f" ({'; '.join(pairs)})")
        elif pairs:
            sentences = ["; ".join(pairs)]
        return " ".join(sentences)

    def written(self, book: RuleBook, *, filler: str) -> str:
        """The text in the length that the book asks for."""
        if "key_value" in book:
            return "\n".join((f"answer: {self.bare}", *self.pairs(), *self.documents))
        self._count_sentences(book, filler)
        self._limit_words(book)
        text = self.text()
        paragraphs = book.number("exact_paragraphs") or book.number("min_paragraphs")
        if paragraphs:
            text = "\n\n".join([text, *[f"{filler}."] * (paragraphs - 1)])
        return _of_length(text, book, filler)

    def _count_sentences(self, book: RuleBook, filler: str) -> None:
        exact = book.number("exact_sentences")
        most = exact or book.number("max_sentences")
        least = exact or book.number("min_sentences") or 0
        while most and 1 + len(self.before) + len(self.after) > most and (self.before or self.after):
            (self.after or self.before).pop()
        if most == 1 and len(re.findall(r"[.!?](?=\s|$)", self.core)) > 1:
            self.core = re.split(r"(?<=[.!?])\s", self.core)[0]
        if least and self.core[-1:] not in (".", "!", "?"):
            self.core += "."
        while 1 + len(self.before) + len(self.after) < least:
            self.after.append(f"{filler}.")

    def _limit_words(self, book: RuleBook) -> None:
        limits = [book.number(name) for name in ("exact_words", "max_words")]
        around = " ".join(book.word(name) or "" for name in ("prefix", "suffix", "signature"))
        most = min((limit for limit in limits if limit is not None), default=None)
        if most is None:
            return
        most = max(most - len(around.split()), 1)
        if len(self.text().split()) <= most:
            return
        if most <= 3:
            self.core = self.bare
        while len(self.text().split()) > most and (self.after or self.before):
            (self.after or self.before).pop()
        stop = self.core[-1:] if self.core[-1:] in ".!?" else ""
        kept = self.core.split()
        while len(self.text().split()) > most and len(kept) > (1 if not self.details else 0):
            kept.pop()
            self.core = " ".join(kept).rstrip(",;:.") + (stop if kept else "")


def listed(prose: Prose, book: RuleBook, *, filler: str) -> str:
    """The same parts as a list: sections, bullets, numbers, or values between commas."""
    sentences = [part.rstrip(".") for part in (*prose.before, prose.core, *prose.after)]
    if "comma_separated" in book:
        return ", ".join(part.replace(",", "") for part in (prose.bare, *prose.details.values()))
    if "sections" in book:
        return _sections(prose, book.items("sections"), filler)
    entries = [*sentences, *prose.pairs(), *prose.documents]
    exact = book.number("exact_bullets") or book.number("exact_items")
    least = exact or book.number("min_bullets") or book.number("min_items") or 0
    most = exact or book.number("max_bullets") or book.number("max_items")
    entries += [filler] * (least - len(entries))
    if most and len(entries) > most:
        entries = [*entries[: most - 1], "; ".join(entries[most - 1 :])]
    if "numbered" in book:
        return "\n".join(f"{number}. {entry}" for number, entry in enumerate(entries, 1))
    return "\n".join(f"- {entry}" for entry in entries)


def in_case(text: str, book: RuleBook) -> str:
    if "upper_case" in book:
        return text.upper()
    if "lower_case" in book:
        return text.lower()
    if "title_case" in book:
        return re.sub(r"\b[^\W\d_][\w']*", lambda found: found[0][:1].upper() + found[0][1:], text)
    return text


def decorated(text: str, book: RuleBook, *, title: str) -> str:
    """The text with what the book wants changed in it and around it. Words that were dictated stay as they are."""
    is_json = "json" in book or "json_only" in book
    if not is_json:
        text = in_case(_cleaned(text, book), book)
    missing = (book.number("exact_placeholders") or book.number("min_placeholders") or 0) - text.count("[")
    if missing > 0:
        text = " ".join((text, *(f"[{_PLACEHOLDERS[index % len(_PLACEHOLDERS)]}]" for index in range(missing))))
    if "highlight" in book and not is_json:
        text = f"**{text}**"
    if "wrap_quotes" in book:
        mark = book.word("wrap_quotes")
        text = f"{mark}{text}{mark}"
    if "wrap_tag" in book:
        tag = book.word("wrap_tag")
        text = f"<{tag}>{text}</{tag}>"
    if "code_fence" in book and not text.startswith("```"):
        text = f"```\n{text}\n```"
    if "title" in book:
        text = f"<<{title}>>\n{text}"
    prefix = book.word("prefix")
    if prefix and not text.startswith(prefix):
        text = f"{prefix} {text}"
    return "".join((text, *_endings(book, "\n" if "\n" in text else " ")))


def _endings(book: RuleBook, separator: str) -> Iterator[str]:
    if "signature" in book:
        yield f"\n{book.word('signature')}"
    if "postscript" in book:
        yield "\nP.S. Write again at any time."
    if "suffix" in book:
        yield f"{separator}{book.word('suffix')}"


def _sections(prose: Prose, names: tuple[str, ...], filler: str) -> str:
    rest = "; ".join((*prose.pairs(), *prose.documents, *prose.after)) or filler
    lines: list[str] = []
    for number, name in enumerate(names):
        content = prose.core if number == 0 else (rest if number == 1 else filler)
        lines.append(f"{name}: {content}")
    return "\n".join(lines)


def _cleaned(text: str, book: RuleBook) -> str:
    for word in book.items("avoid"):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "", text, flags=re.IGNORECASE)
    if "no_commas" in book:
        text = re.sub(r"[,，]", "", text)
    return re.sub(r"[ \t]{2,}", " ", text).replace(" .", ".").strip()


def _of_length(text: str, book: RuleBook, filler: str) -> str:
    exact = book.number("exact_words")
    least = exact or book.number("min_words") or 0
    while len(text.split()) < least:
        text = f"{text} {filler}."
    most = book.number("max_words")
    if exact and len(text.split()) > exact:
        text = " ".join(text.split()[:exact])
    elif most and least and len(text.split()) > most:
        text = " ".join(text.split()[:most])
    shortest = book.number("exact_characters") or book.number("min_characters") or 0
    while len(text) < shortest:
        text = f"{text} {filler}."
    longest = book.number("exact_characters") or book.number("max_characters")
    around = sum(len(book.word(name) or "") + 1 for name in ("prefix", "suffix", "signature") if name in book)
    return text[: max(longest - around, 1)].strip() if longest else text


def _before_the_stop(sentence: str, addition: str) -> str:
    stop = sentence[-1:] if sentence[-1:] in (".", "!", "?", "？") else ""
    return f"{sentence[: len(sentence) - len(stop)]}{addition}{stop}"
