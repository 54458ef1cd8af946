"""What the simulated model has to say about its task, before any thought of form.

It answers from tool results, then from the documents of the task, from its fields, from the knowledge it was built
with, and by arithmetic. Where all of these are silent it says so only if it was told to; otherwise it makes things up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from promptiter.offline.model.arithmetic import find_sum
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.stock_phrases import Phrases
from promptiter.offline.model.task import Document, Task, words
from promptiter.offline.model.values import plain_number, plain_text
from traces.model import Json

FindingKind: TypeAlias = Literal["question", "label", "fact", "sum", "unknown", "guess", "vague", "topic"]

SLIP_RATE = 0.5
"""How often a sum is wrong when nobody asked for a calculation."""

_INVENTED = ("the second option", "about 40", "Springfield", "the standard one", "roughly in 1970", "as usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The heart of an answer. `value` is it alone, `sentence` where it was read, `source` the document's id."""

    kind: FindingKind
    value: str
    sentence: str = ""
    source: str = ""
    steps: str = ""
    unit: str = ""


def find_answer(task: Task, book: RuleBook, *, knowledge: Mapping[str, str], phrases: Phrases, rng: Random) -> Finding:
    """What the model would say, given the rules it follows."""
    question = _missing_field(task, book, phrases)
    if question:
        return question
    wanted = [name for phrase in book.items("value_only") for name in task.find(phrase)]
    if wanted:
        return Finding(kind="fact", value=", ".join(plain_text(task.all_fields[name]) for name in wanted))
    labels = book.items("choose")
    if labels:
        return Finding(kind="label", value=_label(task, book, labels=labels, knowledge=knowledge, rng=rng))
    found = _fact(task, knowledge) or _sum(task, book, rng)
    if "yes_no" in book:
        return _yes_or_no(found, phrases, rng)
    if found:
        return found
    if not task.is_question:
        return Finding(kind="topic", value=task.topic)
    if "unknown" in book:
        return Finding(kind="unknown", value=book.word("unknown") or "unknown")
    if "clarify" in book and not book.items("clarify"):
        return Finding(kind="question", value=phrases.ask.format("context"))
    if rng.random() < 0.5:
        return Finding(kind="vague", value=phrases.vague)
    return Finding(kind="guess", value=rng.choice(_INVENTED))


def _missing_field(task: Task, book: RuleBook, phrases: Phrases) -> Finding | None:
    if "clarify" not in book:
        return None
    wanted = book.items("clarify") or book.items("include")
    missing = [phrase for phrase in wanted if not task.find(phrase)]
    return Finding(kind="question", value=phrases.ask.format(missing[0])) if missing else None


def _label(task: Task, book: RuleBook, *, labels: tuple[str, ...], knowledge: Mapping[str, str], rng: Random) -> str:
    """The label that the task names or whose condition it meets best; without any hint, a guess."""
    text = _whole_text(task)
    seen = set(words(text))
    hints = {
        label: 2 * _named(label, seen)
        + sum(
            len(seen & set(words(reason))) for name, reason in book.all("label_when") if name.lower() == label.lower()
        )
        for label in labels
    }
    best = max(labels, key=lambda label: hints[label])
    if hints[best]:
        return best
    known = _known(text, knowledge)
    return next((label for label in labels if known and label.lower() == known.lower()), None) or rng.choice(labels)


def _named(label: str, seen: set[str]) -> bool:
    return bool(words(label)) and set(words(label)) <= seen


def _fact(task: Task, knowledge: Mapping[str, str]) -> Finding | None:
    asked = set(words(task.topic))
    for result in reversed(task.results):
        record = _record(result.text)
        if record:
            name = next((key for key in record if set(words(key)) & asked), next(iter(record)))
            return Finding(kind="fact", value=plain_text(record[name]), source=result.id)
    if task.results:
        return _evidence(task.results, asked, needed=0)
    if not task.is_question:
        return None
    return (
        _evidence(task.documents, asked, needed=max(1, len(asked) // 2))
        or _field(task, asked)
        or _recalled(task, knowledge)
    )


def _evidence(documents: tuple[Document, ...], asked: set[str], *, needed: int) -> Finding | None:
    """The sentence that shares most words with the question, the earliest of several."""
    best: tuple[int, str, str] | None = None
    for document in documents:
        for sentence in split_sentences(document.text):
            shared = len(asked & set(words(sentence)))
            if shared >= needed and (best is None or shared > best[0]):
                best = (shared, sentence, document.id)
    if best is None:
        return None
    _, sentence, source = best
    return Finding(kind="fact", value=_value_in(sentence, asked), sentence=sentence, source=source)


def split_sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+|\n+|(?<=[。！？])", text):
        if sentence.strip():
            yield sentence.strip()


def _value_in(sentence: str, asked: set[str]) -> str:
    """The part of a sentence that answers: what it says something is, or the name or number that is new in it."""
    said = re.search(
        r"\b(?:is|are|was|were|costs?|equals|takes?|lasts?)\s+(?:about |called )?(.+?)[.!?]?$|[:=：]\s*(.+?)[.!?]?$",
        sentence,
    )
    candidate = next((group for group in said.groups() if group), "") if said else ""
    if candidate and not set(words(candidate)) <= asked:
        return re.sub(r"^(?:the|an?)\s+|^\w+(?:ed|en|lt|nd)\s+(?:by|in|on|at)\s+", "", candidate)
    names = (name for name in re.findall(r"[A-Z][\w-]+(?:\s+[A-Z][\w-]+)*|\d[\d.,]*\d|\d", sentence))
    return next((name for name in names if not set(words(name)) <= asked), sentence.rstrip(".!"))


def _field(task: Task, asked: set[str]) -> Finding | None:
    """A field that the question names and does not tell."""
    for name, value in task.fields.items():
        text = plain_text(value)
        if set(words(name)) <= asked and words(name) and text.lower() not in task.topic.lower():
            return Finding(kind="fact", value=text)
    return None


def _recalled(task: Task, knowledge: Mapping[str, str]) -> Finding | None:
    known = _known(_whole_text(task), knowledge)
    return Finding(kind="fact", value=known) if known else None


def _known(text: str, knowledge: Mapping[str, str]) -> str | None:
    """What the model knows about the longest phrase of its knowledge that the text holds."""
    lowered = " ".join(text.lower().split())
    phrase = max((phrase for phrase in sorted(knowledge) if phrase in lowered), key=len, default=None)
    return None if phrase is None else knowledge[phrase]


def _sum(task: Task, book: RuleBook, rng: Random) -> Finding | None:
    found = find_sum(task.topic)
    if found is None:
        return None
    slips = rng.random() < SLIP_RATE
    value = found.value
    if slips and "calculate" not in book and "show_steps" not in book:
        value += rng.choice((-2, -1, 1, 2, 10))
    text = plain_number(value)
    return Finding(kind="sum", value=text, steps=f"{found.expression} = {text}", unit=found.unit)


def _yes_or_no(found: Finding | None, phrases: Phrases, rng: Random) -> Finding:
    if found is None:
        return Finding(kind="label", value=rng.choice((phrases.yes, phrases.no)))
    spoken = f"{found.sentence} {found.value}"
    denies = re.search(r"\b(?:no|not|never|none|cannot|isn't|aren't|doesn't|don't)\b", spoken, re.IGNORECASE)
    answer = phrases.no if denies else phrases.yes
    return Finding(kind="label", value=answer, sentence=found.sentence, source=found.source)


def _record(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _whole_text(task: Task) -> str:
    return " ".join((task.topic, *(plain_text(value) for value in task.fields.values())))
