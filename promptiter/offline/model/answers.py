"""How the simulated model words its answer: as prose or as JSON, in the form and length that its rules ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.offline.model.content import AnswerCore, find_answer
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.style import DEFAULT_DATE_FORMAT, PHRASES, Phrases, ValueStyle, plain_text
from promptiter.offline.model.task import Task, split_words
from traces.model import Json

TOPIC_WORDS = 16
"""How many words of its task the model repeats without being asked for more."""

FENCE_RATE = 0.25
"""How often JSON comes inside a code fence if no rule says that there should be nothing else."""

SOURCE_KEYS = frozenset(("source", "citation", "reference"))
REASON_KEYS = frozenset(("reason", "reasoning", "explanation", "rationale", "step", "thought", "evidence", "quote"))
_ANSWER_KEYS = frozenset(
    ("answer", "result", "output", "reply", "response", "text", "summary", "value", "label", "category", "decision")
)
_BARE = frozenset(("value_only", "concise"))
_TOPIC_NAMES = frozenset(("question", "request", "task", "query", "topic"))
_DOCUMENT_NAMES = frozenset(("document", "evidence", "passage", "context", "snippet"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Everything that goes into an answer: the finding, the fields that it carries, and the style."""

    task: Task
    book: RuleBook
    finding: AnswerCore
    details: Mapping[str, Json]
    style: ValueStyle
    phrases: Phrases

    @property
    def bare(self) -> str:
        """The answer alone, without a sentence around it."""
        if self.finding.kind == "topic":
            return self.style.rewrite_dates(_shorten(self.finding.value, 8))
        return self.style.text("answer", self.finding.value)

    @property
    def sentence(self) -> str:
        """The answer as a sentence; a label or a bare answer has no sentence around it."""
        finding = self.finding
        if finding.kind == "label" or not _BARE.isdisjoint(self.book):
            return self.bare
        if (self.book.word("prefix") or "").endswith(":") and finding.kind not in ("topic", "vague"):
            return self.bare
        if finding.kind == "topic":
            return f"{self.phrases.topic.format(self.style.rewrite_dates(_shorten(finding.value, TOPIC_WORDS)))}."
        if finding.kind == "vague":
            return f"{self.bare}."
        if finding.sentence and self.phrases is PHRASES["en"]:
            return f"{self.style.rewrite_dates(finding.sentence).rstrip('.')}."
        frame = self.phrases.guess if finding.kind == "guess" else self.phrases.answer
        return f"{frame.format(self.bare)}."

    @property
    def source(self) -> str:
        """The id of the source to cite; empty without a source."""
        known = (document.id for document in (*self.task.documents, *self.task.results))
        return self.finding.source or next(known, "")


def write_answer(task: Task, book: RuleBook, *, knowledge: Mapping[str, str], rng: Random) -> str:
    """The text of an answer to the task that follows the rules of the book."""
    draft = draft_answer(task, book, knowledge=knowledge, rng=rng)
    if "json" in book or "json_only" in book:
        text = json.dumps(_build_record(draft), ensure_ascii=False)
        if "json_only" not in book and "no_code_fence" not in book and rng.random() < FENCE_RATE:
            text = f"```json\n{text}\n```"
    else:
        text = re.sub(r"[ \t]{2,}", " ", _write_prose(draft)).replace(" .", ".").strip()
        text = _apply_case(text, book)
    return _decorate(text, book)


def draft_answer(task: Task, book: RuleBook, *, knowledge: Mapping[str, str], rng: Random) -> Draft:
    phrases = PHRASES[book.word("language") or "en"]
    style = ValueStyle(
        date_format=book.word("date_format") or DEFAULT_DATE_FORMAT,
        decimals=book.number("decimals"),
        verbatim="verbatim" in book,
    )
    return Draft(
        task=task,
        book=book,
        finding=find_answer(task, book, knowledge=knowledge, phrases=phrases, rng=rng),
        details=_collect_details(task, book),
        style=style,
        phrases=phrases,
    )


def _collect_details(task: Task, book: RuleBook) -> dict[str, Json]:
    """The fields that go into the answer: only those that rules ask for."""
    details: dict[str, Json] = {}
    if "carry_all" in book:
        if task.topic and task.topic not in map(plain_text, task.fields.values()):
            details["request"] = task.topic
        details |= task.fields
    for phrase in (*book.items("include"), *book.items("keyword")):
        details |= {name: task.fields[name] for name in task.find(phrase)}
    asked = {word for phrase in book.items("include") if not task.find(phrase) for word in split_words(phrase)}
    if task.topic and asked & _TOPIC_NAMES:
        details["request"] = task.topic
    if task.documents and ("carry_all" in book or asked & _DOCUMENT_NAMES):
        details["documents"] = [f"[{document.id}] {document.text}" for document in task.documents]
    return details


def _write_prose(draft: Draft) -> str:
    book, core = draft.book, draft.sentence
    if "polite" in book:
        start = core[:1] if draft.finding.kind == "label" else core[:1].lower()
        core = f"{draft.phrases.thanks} {start}{core[1:]}"
    if "cite" in book and draft.source:
        core = f"{core.rstrip('.')} [{draft.source}]{'.' if core.endswith('.') else ''}"
    details = {
        _spell_out(name): draft.style.text(name, value) for name, value in draft.details.items() if name != "documents"
    }
    prose = _Prose(
        before=[draft.task.topic] if "repeat_request" in book else [],
        core=core,
        after=[],
        details=details,
        documents=[plain_text(line) for line in draft.details.get("documents", ())],
    )
    for keyword in book.items("keyword"):
        if not draft.task.find(keyword):
            prose.mention(keyword)
    return prose.fit(book, filler=draft.phrases.filler)


def _build_record(draft: Draft) -> dict[str, Json]:
    """The JSON object: the keys that rules ask for, then the fields that they ask for in other ways."""
    keys = draft.book.items("json") or ("answer",)
    record = {key: _fill_key(key, draft) for key in keys}
    named = [set(split_words(key)) for key in record]
    for name, value in draft.details.items():
        if set(split_words(name)) not in named:
            record[name] = draft.style.json(name, value)
    if "cite" in draft.book and draft.source and not any(words & SOURCE_KEYS for words in named):
        record["source"] = f"[{draft.source}]"
    return {key: _apply_case(value, draft.book) if isinstance(value, str) else value for key, value in record.items()}


def _fill_key(key: str, draft: Draft) -> Json:
    words = set(split_words(key))
    if words & _ANSWER_KEYS:
        plain = draft.bare if draft.finding.kind != "topic" else draft.sentence
        limit = draft.book.number("max_words")
        missing = [word for word in draft.book.items("keyword") if word not in plain and not draft.task.find(word)]
        return " ".join([_shorten(plain, limit) if limit else plain, *missing])
    names = draft.task.find(key)
    if names:
        return draft.style.json(names[0], draft.task.fields[names[0]])
    if words & SOURCE_KEYS:
        return draft.source or None
    return draft.finding.sentence or draft.sentence if words & REASON_KEYS else None


def _spell_out(name: str) -> str:
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).split()).lower()


@dataclass(slots=True, kw_only=True)
class _Prose:
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


def _shorten(text: str, limit: int) -> str:
    """The first words of a text."""
    words = text.split()
    return text.strip().rstrip(".") if len(words) <= limit else " ".join(words[:limit]).rstrip(",;:")


def _apply_case(text: str, book: RuleBook) -> str:
    return text.upper() if "upper_case" in book else text


def _decorate(text: str, book: RuleBook) -> str:
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
