"""What a case says: its texts, the words in them, and the values that a good answer has.

A field whose values repeat from case to case holds labels: a text that lists them says what the task is, and gives no
case away. The values of other fields belong to their cases.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from traces.model import Json

MAX_NEW_LABELS = 0.5
"""Below this share of values that only one case has, the values of a field are labels: a new case is likely to have a
known one (the estimate of Good and Turing)."""

MAX_WORDS = 12
"""Maximum number of words of a value. Longer answers are texts."""

Field: TypeAlias = tuple[str, ...]
"""The tool and the keys that lead to a value; empty for an answer that is not JSON."""

IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")


@dataclass(frozen=True, slots=True)
class CaseValue:
    """A value that a case expects, its words in lower case, and where the answer or the tool call has it."""

    text: str
    words: str
    field: Field
    is_label: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is one or two words in lower case, which any text may have."""
        return self.text.replace(" ", "", 1).isalpha() and self.text.islower()


def split_words(text: str) -> list[str]:
    """The words of a text in lower case. An ideograph is a word."""
    return [word.casefold() for word in WORD.findall(text)]


def is_ideograph(word: str) -> bool:
    return _IDEOGRAPH.match(word) is not None


def collect_inputs(case: EvalCase) -> Iterator[str]:
    """What the user says, and the conversation before it."""
    yield from (turn.user for turn in (*case.turns, *case.actual))
    if case.scenario is not None:
        yield case.scenario.starting_prompt
        yield case.scenario.plan
    yield from (message.content for message in case.context)


def collect_texts(case: EvalCase) -> Iterator[str]:
    """All inputs and expected outputs of a case."""
    yield from collect_inputs(case)
    yield from (turn.expected for turn in (*case.turns, *case.actual) if turn.expected)
    yield from (str(leaf) for _, leaf in _collect_arguments(case))


def read_values(cases: Sequence[EvalCase]) -> list[list[CaseValue]]:
    """The expected values of each case: those of JSON answers and tool calls, short answers, numbers in answers."""
    shared = _find_shared_words(cases)
    found = [
        [(field, text, words) for field, text in _collect_values(case, shared) if (words := _join(text))]
        for case in cases
    ]
    counts: defaultdict[Field, Counter[str]] = defaultdict(Counter)
    for values in found:
        for field, words in {(field, words) for field, _, words in values}:
            counts[field][words] += 1
    labels = {field for field, each in counts.items() if _are_labels(each)}
    return [
        [
            CaseValue(text, words, field, is_label=field in labels or _IDENTIFIER.fullmatch(text) is not None)
            for field, text, words in values
        ]
        for values in found
    ]


def _are_labels(counts: Counter[str]) -> bool:
    alone = sum(count == 1 for count in counts.values())
    return alone < MAX_NEW_LABELS * counts.total()


def _collect_values(case: EvalCase, shared: frozenset[str]) -> Iterator[tuple[Field, str]]:
    for turn in case.turns:
        expected = (turn.expected or "").strip()
        document = _read_document(expected)
        if document is None:
            yield from _read_answer(expected, shared)
        else:
            yield from ((field, _write(leaf)) for field, leaf in json_leaves(document))
    yield from ((field, _write(leaf)) for field, leaf in _collect_arguments(case))


def _collect_arguments(case: EvalCase) -> Iterator[tuple[Field, Json]]:
    for turn in case.turns:
        for call in turn.expected_tool_calls or ():
            yield from (((call.name, *keys), leaf) for keys, leaf in json_leaves(call.arguments))


def _read_document(text: str) -> Json:
    if text.startswith(("{", "[", "```")):
        try:
            return parse_json(text)
        except NotJsonError:
            return None
    return None


def _read_answer(text: str, shared: frozenset[str]) -> Iterator[tuple[Field, str]]:
    """A short answer without the words around it that most answers have, and the numbers of any answer."""
    words = list(WORD.finditer(text))
    own = [number for number, word in enumerate(words) if word[0].casefold() not in shared]
    if own and own[-1] - own[0] < MAX_WORDS:
        yield (), text[words[own[0]].start() : words[own[-1]].end()]
    yield from ((("number",), number) for number in _NUMBER.findall(text))


def _find_shared_words(cases: Sequence[EvalCase]) -> frozenset[str]:
    """The words that more than half of the answers have; none if most answers are the same, as labels are."""
    counts: Counter[str] = Counter()
    different: set[int] = set()
    answers = 0
    for text in (turn.expected for case in cases for turn in case.turns if turn.expected):
        words = frozenset(split_words(text))
        counts.update(words)
        different.add(hash(words))
        answers += 1
    if len(different) <= answers / 2:
        return frozenset()
    return frozenset(word for word, count in counts.items() if count > max(1, answers / 2))


def _write(leaf: Json) -> str:
    """A value as a text has it; empty for what says nothing of its own."""
    if isinstance(leaf, float) and leaf.is_integer():
        return str(int(leaf))
    return "" if leaf is None or isinstance(leaf, bool) else str(leaf)


def _join(text: str) -> str:
    words = split_words(text)
    return " ".join(words) if len(words) <= MAX_WORDS else ""


_IDENTIFIER = re.compile(r"[a-z]+(?:_[a-z]+)+|[A-Z]+(?:_[A-Z]+)+")  # the name of a label, even if one case has it
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?![\w-])")
_IDEOGRAPH = re.compile(rf"[{IDEOGRAPHS}]")
