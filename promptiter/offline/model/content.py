"""What the simulated model answers, before any question of form.

It answers from tool results, then from the documents of the task, from its fields, and from the knowledge it was built
with. If none of these has an answer, it is vague or invents one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from promptiter.offline.model.clauses import OTHERWISE
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.style import Phrases, plain_text
from promptiter.offline.model.task import Document, Task, split_words
from traces.model import Json

AnswerKind: TypeAlias = Literal["label", "fact", "guess", "vague", "topic"]

_CUE = re.compile(
    r"^.*?\b(?:mentions?|contains?|includes?|names?|says?|asks? (?:about|for)|is about)\b(?=.*\w)",
    re.IGNORECASE | re.DOTALL,
)
_ABSENT = re.compile(r"\b(?:not|no|never|without)\b|n't\b", re.IGNORECASE)

_INVENTED = ("the second option", "about 40", "Springfield", "the standard one", "roughly in 1970", "as usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCore:
    """The core of an answer: its bare `value`, the `sentence` that states it, and the id of its `source`."""

    kind: AnswerKind
    value: str
    sentence: str = ""
    source: str = ""


def find_answer(
    task: Task, book: RuleBook, *, knowledge: Mapping[str, str], phrases: Phrases, rng: Random
) -> AnswerCore:
    """The model's answer under the rules that it follows."""
    wanted = [name for phrase in book.items("value_only") for name in task.find(phrase)]
    if wanted:
        return AnswerCore(kind="fact", value=", ".join(plain_text(task.fields[name]) for name in wanted))
    labels = _list_labels(book)
    if labels:
        return AnswerCore(kind="label", value=choose_label(task, book, labels=labels, knowledge=knowledge, rng=rng))
    fact = _find_fact(task, knowledge)
    if fact:
        return fact
    if not task.is_question:
        return AnswerCore(kind="topic", value=task.topic)
    if rng.random() < 0.5:
        return AnswerCore(kind="vague", value=phrases.vague)
    return AnswerCore(kind="guess", value=rng.choice(_INVENTED))


def choose_label(
    task: Task, book: RuleBook, *, labels: tuple[str, ...], knowledge: Mapping[str, str], rng: Random
) -> str:
    """The label that the task names or whose condition it meets best; without any hint, a guess.

    If a rule says which label to choose otherwise, only conditions count. If the conditions of all labels but one are
    known and none is met, it is that one.
    """
    text = _join_texts(task)
    seen = set(split_words(text))
    mentioned = seen.union(*map(split_words, task.fields))
    conditions = [(name.lower(), reason) for name, reason in book.all("label_when")]
    fallback = next((label for label in labels if (label.lower(), OTHERWISE) in conditions), None)

    def count_hints(label: str) -> int:
        named = set(split_words(label))
        hints = 2 * (fallback is None and bool(named) and named <= seen)
        return hints + sum(_count_cues(reason, mentioned) for name, reason in conditions if name == label.lower())

    best = max(labels, key=count_hints)
    if count_hints(best):
        return best
    if fallback is not None:
        return fallback
    known = _recall(text, knowledge)
    recalled = next((label for label in labels if known and label.lower() == known.lower()), None)
    open_labels = [label for label in labels if label.lower() not in dict(conditions)]
    return recalled or (open_labels[0] if len(open_labels) == 1 else rng.choice(labels))


def _list_labels(book: RuleBook) -> tuple[str, ...]:
    """The labels to choose from: those of an enumeration, or else those that at least two rules give conditions for."""
    conditional = tuple(dict.fromkeys(name for name, _ in book.all("label_when")))
    return book.items("choose") or (conditional if len(conditional) > 1 else ())


def _count_cues(condition: str, seen: set[str]) -> int:
    """How many words of a condition the task has; of `the input mentions an invoice` only `invoice` counts."""
    if condition == OTHERWISE:
        return 0
    shared = len(seen & set(split_words(_CUE.sub("", condition))))
    return shared if _ABSENT.search(condition) is None else int(not shared)


def _find_fact(task: Task, knowledge: Mapping[str, str]) -> AnswerCore | None:
    asked = set(split_words(task.topic))
    for result in reversed(task.results):
        record = _read_record(result.text)
        if record:
            name = next((key for key in record if set(split_words(key)) & asked), next(iter(record)))
            return AnswerCore(kind="fact", value=plain_text(record[name]), source=result.id)
    if task.results:
        return _find_evidence(task.results, asked, needed=0)
    if not task.is_question:
        return None
    evidence = _find_evidence(task.documents, asked, needed=max(1, len(asked) // 2))
    known = _find_field(task, asked) or _recall(_join_texts(task), knowledge)
    return evidence or (AnswerCore(kind="fact", value=known) if known else None)


def _find_evidence(documents: tuple[Document, ...], asked: set[str], *, needed: int) -> AnswerCore | None:
    """The sentence that shares most words with the question, the earliest of several."""
    best: tuple[int, str, str] | None = None
    for document in documents:
        for sentence in _split_sentences(document.text):
            shared = len(asked & set(split_words(sentence)))
            if shared >= needed and (best is None or shared > best[0]):
                best = (shared, sentence, document.id)
    if best is None:
        return None
    _, sentence, source = best
    return AnswerCore(kind="fact", value=_extract_value(sentence, asked), sentence=sentence, source=source)


def _split_sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        if sentence.strip():
            yield sentence.strip()


def _extract_value(sentence: str, asked: set[str]) -> str:
    """The words of a sentence that answer: what something is, or the name or number that the question lacks."""
    stated = re.search(
        r"\b(?:is|are|was|were|costs?|takes?|lasts?)\s+(?:about |called )?(.+?)[.!?]?$|[:=]\s*(.+?)[.!?]?$", sentence
    )
    candidate = next((group for group in stated.groups() if group), "") if stated else ""
    if candidate and not set(split_words(candidate)) <= asked:
        return re.sub(r"^(?:the|an?)\s+|^\w+(?:ed|en|lt|nd)\s+(?:by|in|on|at)\s+", "", candidate)
    names = (name for name in re.findall(r"[A-Z][\w-]+(?:\s+[A-Z][\w-]+)*|\d[\d.,]*\d|\d", sentence))
    return next((name for name in names if not set(split_words(name)) <= asked), sentence.rstrip(".!"))


def _find_field(task: Task, asked: set[str]) -> str | None:
    """The value of a field that the question names and whose value it lacks."""
    for name, value in task.fields.items():
        text = plain_text(value)
        if set(split_words(name)) <= asked and split_words(name) and text.lower() not in task.topic.lower():
            return text
    return None


def _recall(text: str, knowledge: Mapping[str, str]) -> str | None:
    """The answer to the longest phrase of the model's knowledge that the text contains."""
    lowered = " ".join(text.lower().split())
    phrase = max((phrase for phrase in sorted(knowledge) if phrase in lowered), key=len, default=None)
    return None if phrase is None else knowledge[phrase]


def _read_record(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _join_texts(task: Task) -> str:
    return " ".join((task.topic, *(plain_text(value) for value in task.fields.values())))
