"""HiddenCases: the validation and test cases of a run, which few-shot examples must not repeat.

Examples are made of train cases, so copying those is what they are for. An example that repeats a validation or test
case would let the agent look up the answer that it is judged by. A search cannot see these cases; its session asks
here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import orjson

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.health import make_shingles
from promptiter.evaluation.data.near_duplicates import NEAR
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces.model import Json

MIN_WORDS, MIN_CHARACTERS = 3, 12
"""A text with fewer words and characters counts as repeated only if it is a whole message."""

SIGNS_PER_WORD = 2
"""A word of Chinese or Japanese has about two signs."""

COMMON = 2
"""What this number of train cases say is not that of one case."""

REPEATED_INPUT = "has the input of a validation or test case"
NEARLY_REPEATED_INPUT = "has nearly the input of a validation or test case"
REPEATED_ANSWER = "has the answer of a validation or test case"


class HiddenCases:
    """Finds examples that repeat hidden cases. `known` are the train cases, which may be repeated.

    A part that several train cases have, an answer that a train case expects, and a short answer that several hidden
    cases expect belong to the task, and may be repeated, too.
    """

    def __init__(self, hidden: Iterable[EvalCase], known: Iterable[EvalCase] = ()) -> None:
        hidden, known = list(hidden), list(known)
        self._known_inputs = [_join_words(each) for case in known for each in _list_inputs(case)]
        inputs = dict.fromkeys(each for case in hidden for each in _list_inputs(case) if each.strip())
        self._inputs = frozenset(map(_join_words, inputs))
        self._parts = [each for each in sorted(self._inputs) if _is_long(each) and not self._is_common(each)]
        self._shingles = [make_shingles([each]) for each in inputs]
        expected = {_join_words(each) for case in known for each in _list_answers(case)}
        answers = Counter(text for case in hidden for text in {_join_words(each) for each in _list_answers(case)})
        self._answers = frozenset(
            text for text, count in answers.items() if text not in expected and (count == 1 or _is_long(text))
        )
        self._long_answers = [each for each in sorted(self._answers) if _is_long(each)]
        self._long_known_inputs = [each for each in dict.fromkeys(self._known_inputs) if _is_long(each)]
        self._problems: dict[tuple[str, str], str] = {}

    def find_repeat(self, examples: Json, *, own: Json = None) -> str:
        """Say which of some messages repeats a case, without naming the case; empty if none does.

        Messages that are the agent's `own`, those of the baseline, may.
        """
        kept = own if isinstance(own, list) else []
        for number, message in enumerate(examples if isinstance(examples, list) else [], 1):
            if message in kept or not isinstance(message, dict):
                continue
            key = str(message.get("content", "")), str(message.get("role", ""))
            if key not in self._problems:  # every round asks about the same train cases again
                self._problems[key] = self._find_problem(key[0], role=key[1])
            if problem := self._problems[key]:
                return f"message {number} of the examples {problem}"
        return ""

    def _is_common(self, text: str) -> bool:
        return sum(text in each for each in self._known_inputs) >= COMMON

    def _find_problem(self, content: str, *, role: str) -> str:
        text = _join_words(content)
        if text in self._inputs or _holds(text, self._parts):
            return REPEATED_INPUT
        if (role == "assistant" and text in self._answers) or _holds(text, self._long_answers):
            return REPEATED_ANSWER
        if role != "user" or not _is_long(text) or _holds(text, self._long_known_inputs):
            return ""
        shingles = make_shingles([content])
        return NEARLY_REPEATED_INPUT if any(_compare(shingles, each) >= NEAR for each in self._shingles) else ""

    def find_repeat_of_candidate(self, candidate: Profile, *, baseline: Profile, structure: StructureSnapshot) -> str:
        """Say why the new examples of a candidate cannot be judged; empty if they can."""
        for change in baseline.changes(candidate, structure):
            if structure.surface(change.surface_id).type != "examples":
                continue
            if problem := self.find_repeat(change.after, own=change.before):
                return f"{change.surface_id}: {problem}; it would be judged by an answer that it was shown"
        return ""


def _list_inputs(case: EvalCase) -> Iterator[str]:
    yield from (turn.user for turn in (*case.turns, *case.actual))
    if case.scenario is not None:
        yield case.scenario.starting_prompt


def _list_answers(case: EvalCase) -> Iterator[str]:
    """What a case expects: whole answers, and the texts in those that are JSON."""
    for turn in case.turns:
        if turn.expected and re.search(r"[^\W\d_]", turn.expected):  # a bare number is the answer to many questions
            yield turn.expected
            yield from _list_leaves(_parse(turn.expected))


def _parse(text: str) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _list_leaves(value: Json) -> Iterator[str]:
    """The texts of a JSON value that are long enough to be its own."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _list_leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _list_leaves(each)
    elif isinstance(value, str) and _is_long(_join_words(value)):
        yield value


def _holds(text: str, parts: Iterable[str]) -> bool:
    return any(each in text for each in parts)


def _is_long(text: str) -> bool:
    signs = len(_IDEOGRAPH.findall(text))
    words = text.count(" ") - 1 - signs + signs / SIGNS_PER_WORD
    return words >= MIN_WORDS or len(text) - 2 - 2 * signs >= MIN_CHARACTERS


def _compare(one: frozenset[int], other: frozenset[int]) -> float:
    """The Jaccard similarity."""
    return len(one & other) / len(one | other) if one and other else 0.0


def _join_words(text: str) -> str:
    """The words of a text, folded, with a space on each side, so that `art` is not found in `start`.

    In Chinese and Japanese, which have no spaces between words, each sign counts as a word.
    """
    return f" {' '.join(_WORD.findall(text.casefold()))} "


_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
