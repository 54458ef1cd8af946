"""How the simulated model puts its answer into words: as prose, as a list or as JSON, in the form its rules ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.offline.model.answer_format import Prose, decorated, in_case, listed
from promptiter.offline.model.content import Finding, find_answer, split_sentences
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.stock_phrases import PHRASES, Phrases
from promptiter.offline.model.task import Task, words
from promptiter.offline.model.values import ValueStyle, plain_text
from traces.model import Json

TOPIC_WORDS = 16
"""How much of its task the model repeats when nobody asks for more."""

FENCE_RATE = 0.25
"""How often JSON comes inside a code fence when nobody said that there should be nothing else."""

_ANSWER_KEYS = frozenset(
    ("answer", "result", "output", "reply", "response", "text", "summary", "value", "label", "category", "decision")
)
_SOURCE_KEYS = frozenset(("source", "citation", "reference"))
_REASON_KEYS = frozenset(("reason", "reasoning", "explanation", "rationale", "step", "thought", "evidence", "quote"))
_BARE = frozenset(("value_only", "concise"))
_LISTS = frozenset(
    ("sections", "bullets", "numbered", "comma_separated", "exact_items", "min_items", "exact_bullets", "min_bullets")
)
_TOPIC_WORDS = frozenset(("question", "request", "task", "query", "topic"))
_DOCUMENT_WORDS = frozenset(("document", "evidence", "passage", "context", "snippet"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All that goes into an answer: the finding, the fields carried along, and the manner of writing."""

    task: Task
    book: RuleBook
    finding: Finding
    details: Mapping[str, Json]
    style: ValueStyle
    phrases: Phrases

    @property
    def bare(self) -> str:
        """The answer alone, without a sentence around it."""
        finding = self.finding
        if finding.kind == "topic":
            return self.style.rewrite_dates(_shortened(finding.value, 8))
        value = self.style.text("total" if finding.kind == "sum" else "answer", finding.value)
        if "unit" not in self.book or finding.kind not in ("sum", "fact"):
            return value
        unit = self.book.word("unit") or finding.unit or plain_text(self.task.all_fields.get("unit", ""))
        return value if not unit or value.endswith(unit) else f"{value} {unit}"

    @property
    def sentence(self) -> str:
        """The answer as a sentence of prose; a label, a refusal or a short answer stands alone."""
        finding = self.finding
        if finding.kind in ("label", "unknown", "question") or not _BARE.isdisjoint(self.book):
            return self.bare
        if (self.book.word("prefix") or "").endswith((":", "：")) and finding.kind not in ("topic", "vague"):
            return self.bare
        if finding.kind == "topic":
            if "summarise" in self.book:
                return f"{self.style.rewrite_dates(_shortened(next(split_sentences(finding.value), ''), 12))}."
            return f"{self.phrases.topic.format(self.style.rewrite_dates(_shortened(finding.value, TOPIC_WORDS)))}."
        if finding.kind == "vague":
            return f"{self.bare}."
        if finding.sentence and self.phrases is PHRASES["en"] and "unit" not in self.book:
            return f"{self.style.rewrite_dates(finding.sentence).rstrip('.')}."
        frame = self.phrases.guess if finding.kind == "guess" else self.phrases.answer
        return f"{frame.format(self.bare)}."

    @property
    def source(self) -> str:
        """The mark of the source, as it is to be cited; empty without a source."""
        known = [document.id for document in (*self.task.documents, *self.task.results)]
        source = self.finding.source or next(iter(known), "")
        if not source:
            return ""
        return str(known.index(source) + 1) if self.book.word("cite") == "number" else source


def write_answer(task: Task, book: RuleBook, *, knowledge: Mapping[str, str], rng: Random) -> str:
    """The text of an answer to the task, in obedience to the rules of the book."""
    draft = draft_answer(task, book, knowledge=knowledge, rng=rng)
    if "json" in book or "json_only" in book:
        text = json.dumps(_record(draft), ensure_ascii=False)
        if "json_only" not in book and "no_code_fence" not in book and rng.random() < FENCE_RATE:
            text = f"```json\n{text}\n```"
        return decorated(text, book, title="")
    return decorated(_prose(draft), book, title=_shortened(task.topic, 5))


def draft_answer(task: Task, book: RuleBook, *, knowledge: Mapping[str, str], rng: Random) -> Draft:
    phrases = PHRASES[book.word("language") or "en"]
    style = ValueStyle(
        dates=book.word("date_format") or "long",
        decimals=book.number("decimals"),
        thousands="thousands" in book,
        currency=book.word("currency"),
        verbatim="verbatim" in book,
    )
    return Draft(
        task=task,
        book=book,
        finding=find_answer(task, book, knowledge=knowledge, phrases=phrases, rng=rng),
        details=_details(task, book),
        style=style,
        phrases=phrases,
    )


def _details(task: Task, book: RuleBook) -> dict[str, Json]:
    """The fields that go into the answer: none unless a rule asks for them."""
    details: dict[str, Json] = {}
    known = task.all_fields
    if "carry_all" in book:
        if task.topic and task.topic not in map(plain_text, task.fields.values()):
            details["request"] = task.topic
        details |= task.fields
    for phrase in (*book.items("include"), *book.items("keyword")):
        details |= {name: known[name] for name in task.find(phrase)}
    asked = {word for phrase in book.items("include") if not task.find(phrase) for word in words(phrase)}
    if task.topic and asked & _TOPIC_WORDS:
        details["request"] = task.topic
    if task.documents and ("carry_all" in book or asked & _DOCUMENT_WORDS):
        details["documents"] = [f"[{document.id}] {document.text}" for document in task.documents]
    unwanted = {name for phrase in book.items("avoid") for name in task.find(phrase)}
    return {name: value for name, value in details.items() if name not in unwanted}


def _prose(draft: Draft) -> str:
    book = draft.book
    before: list[str] = []
    after: list[str] = []
    core = draft.sentence
    if "polite" in book:
        opener = draft.phrases.please if book.word("polite") == "please" else draft.phrases.thanks
        core = f"{opener} {core[:1].lower()}{core[1:]}" if draft.finding.kind != "label" else f"{opener} {core}"
    if "cite" in book and draft.source:
        core = f"{core.rstrip('.')} [{draft.source}]{'.' if core.endswith('.') else ''}"
    if "repeat_request" in book:
        before.append(draft.task.topic)
    if "show_steps" in book:
        before.append(f"{draft.finding.steps or draft.phrases.steps}.")
    if "quote" in book and draft.finding.sentence:
        after.append(f'"{draft.finding.sentence}"')
    details = {
        _spoken(name): draft.style.text(name, value) for name, value in draft.details.items() if name != "documents"
    }
    documents = [plain_text(line) for line in draft.details.get("documents", ())]
    prose = Prose(before=before, core=core, after=after, details=details, documents=documents, bare=draft.bare)
    for keyword in book.items("keyword"):
        if not draft.task.find(keyword):
            prose.mention(keyword)
    if not _LISTS.isdisjoint(book):
        return listed(prose, book, filler=draft.phrases.filler)
    return prose.written(book, filler=draft.phrases.filler)


def _record(draft: Draft) -> dict[str, Json]:
    """The JSON object: the keys that were asked for, then the fields that were asked for and are not among them."""
    keys = draft.book.items("json") or ("answer",)
    record = {key: _value_for(key, draft) for key in keys}
    named = [set(words(key)) for key in record]
    for name, value in draft.details.items():
        if set(words(name)) not in named:
            record[name] = draft.style.json(name, value)
    if "cite" in draft.book and draft.source and not any(bag & _SOURCE_KEYS for bag in named):
        record["source"] = f"[{draft.source}]"
    return {key: in_case(value, draft.book) if isinstance(value, str) else value for key, value in record.items()}


def _value_for(key: str, draft: Draft) -> Json:
    bag = set(words(key))
    if bag & _ANSWER_KEYS:
        plain = draft.bare if draft.finding.kind != "topic" else draft.sentence
        limit = draft.book.number("max_words")
        missing = [word for word in draft.book.items("keyword") if word not in plain and not draft.task.find(word)]
        return " ".join([_shortened(plain, limit) if limit else plain, *missing])
    names = draft.task.find(key)
    if names:
        return draft.style.json(names[0], draft.task.all_fields[names[0]])
    if bag & _SOURCE_KEYS:
        return draft.source or None
    if bag & _REASON_KEYS:
        return draft.finding.steps or draft.finding.sentence or draft.phrases.steps
    return None


def _shortened(text: str, limit: int) -> str:
    parts = text.split()
    return text.strip().rstrip(".") if len(parts) <= limit else " ".join(parts[:limit]).rstrip(",;:")


def _spoken(name: str) -> str:
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).split()).lower()
