"""HiddenCases: the validation and test cases of a run, which few-shot examples must not repeat.

Examples are made of train cases, so copying those is what they are for. An example that repeats a validation or test
case would let the agent look up the answer that it is judged by. A search cannot see these cases; its session asks
here.

Texts are compared word by word, whatever their case, punctuation, layout and JSON escapes. A translation, a paraphrase
or an encoding such as base64 is not recognized.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.health import make_shingles
from promptiter.evaluation.data.near_duplicates import NEAR
from promptiter.profile import Profile
from promptiter.small_words import SMALL_WORDS
from promptiter.structure import StructureSnapshot
from traces.model import Json

MIN_WORDS, MIN_CHARACTERS = 3, 12
"""A text with fewer words and characters counts as repeated only if it is a whole message, or says which case it is."""

SIGNS_PER_WORD = 2
"""A word of Chinese or Japanese has about two signs."""

COMMON = 2
"""What this number of train cases say is not that of one case."""

MIN_ID = 3
"""A word with a digit and this length that no train case has, such as an order number, says which case it is."""

MIN_TELLING = 2
"""So does this number of words that no train case has, if they are half of those that the hidden case has."""

SHORT_MESSAGE = 8
"""In an answer of this number of words, a short answer of a hidden case is what it says."""

INPUT = "the input of a validation or test case"
NEAR_INPUT = "nearly the input of a validation or test case"
ANSWER = "the answer of a validation or test case"


class HiddenCases:
    """Finds examples that repeat hidden cases. `known` are the train cases, which may be repeated.

    A part that several train cases have, an answer that a train case expects, and a short answer that several hidden
    cases expect belong to the task, and may be repeated, too, unless the example says which hidden case it is about.
    """

    def __init__(self, hidden: Iterable[EvalCase], known: Iterable[EvalCase] = ()) -> None:
        self._hidden, known = list(hidden), list(known)
        self._known_inputs = [_join_words(each) for case in known for each in _list_inputs(case)]
        self._long_known_inputs = PhraseIndex(each for each in self._known_inputs if _is_long(each))
        self._expected = {_join_words(each) for case in known for each in _list_answers(case)}
        self._raw_inputs = dict.fromkeys(each for case in self._hidden for each in _list_inputs(case) if each.strip())
        self._inputs = frozenset(map(_join_words, self._raw_inputs))
        self._parts = PhraseIndex(self._list_parts())
        counts = Counter(text for case in self._hidden for text in {_join_words(each) for each in _list_answers(case)})
        self._answers = frozenset(
            text for text, count in counts.items() if text not in self._expected and (count == 1 or _is_long(text))
        )
        self._long_answers = PhraseIndex(each for each in self._answers if _is_long(each))
        said = " ".join((*self._known_inputs, *(_join_words(each) for case in known for each in _list_expected(case))))
        self._known_words = frozenset(said.split())
        self._short_answers = PhraseIndex(filter(self._is_telling_answer, self._answers))
        self._problems: dict[tuple[str, str], str] = {}

    def find_repeat(self, examples: Json, *, own: Json = None) -> str:
        """Say which of some messages repeats a case, without naming the case; empty if none does.

        Messages that are the agent's `own`, those of the baseline, may.
        """
        kept = own if isinstance(own, list) else []
        new = [
            _NewMessage(number, str(message.get("role", "")), str(message.get("content", "")))
            for number, message in enumerate(examples if isinstance(examples, list) else [], 1)
            if isinstance(message, dict) and message not in kept
        ]
        for each in new:
            if problem := self._find_problem(each):
                return f"message {each.number} of the examples has {problem}"
        for group in _group_exchanges(new):
            if self._tells_answer([_join_words(each.content) for each in group]):
                return f"{_name_messages(group)} {ANSWER}"
        together = _join_words("\n".join(each.content for each in new)) if len(new) > 1 else ""
        if problem := self._find_part(together):
            return f"{_name_messages(new)} {problem}"
        return ""

    def find_repeat_of_candidate(self, candidate: Profile, *, baseline: Profile, structure: StructureSnapshot) -> str:
        """Say why the new examples of a candidate cannot be judged; empty if they can."""
        for change in baseline.changes(candidate, structure):
            if structure.surface(change.surface_id).type != "examples":
                continue
            if problem := self.find_repeat(change.after, own=change.before):
                return f"{change.surface_id}: {problem}; it would be judged by an answer that it was shown"
        return ""

    def _list_parts(self) -> list[str]:
        """Long inputs of hidden cases, and long texts in those that are JSON, that do not belong to the task."""
        leaves = {_join_words(leaf) for each in self._raw_inputs for leaf in _list_leaves(_parse(each))} - self._inputs
        index = PhraseIndex(each for each in (*self._inputs, *leaves) if _is_long(each))
        counts = Counter(part for each in self._known_inputs for part in index.find_all(each))
        return [each for each in index.phrases if counts[each] < (1 if each in leaves else COMMON)]

    def _is_telling_answer(self, answer: str) -> bool:
        """Whether a short answer is not a word such as `yes`, or one that train cases have."""
        words = set(answer.split())
        return not _is_long(answer) and any(len(word) > MIN_ID for word in words) and not words <= self._known_words

    def _find_problem(self, message: _NewMessage) -> str:
        key = message.content, message.role
        if key not in self._problems:  # every round asks about the same train cases again
            self._problems[key] = self._look_for_problem(*key)
        return self._problems[key]

    def _look_for_problem(self, content: str, role: str) -> str:
        text = _join_words(content)
        if text in self._inputs:
            return INPUT
        if found := self._find_part(text):
            return found
        if role == "assistant" and (text in self._answers or self._says_short_answer(text)):
            return ANSWER
        if role != "user" or not _is_long(text) or self._long_known_inputs.is_in(text):
            return ""
        return NEAR_INPUT if self._shingles.has_near(make_shingles([content])) else ""

    def _find_part(self, text: str) -> str:
        if self._parts.is_in(text):
            return INPUT
        return ANSWER if self._long_answers.is_in(text) else ""

    def _says_short_answer(self, text: str) -> bool:
        """Whether a short message gives an answer in a few words, such as `It is Rome.`"""
        return len(text.split()) <= SHORT_MESSAGE and self._short_answers.is_in(text)

    def _tells_answer(self, texts: Sequence[str]) -> bool:
        """Whether an exchange says which hidden case it is about, in words that no train case has, and its answer."""
        words = {word for text in texts for word in text.split()}
        numbers = {number for word in words & self._telling.keys() for number in self._telling[word]}
        return any(self._cases[number].is_told(words, texts) for number in numbers)

    @cached_property
    def _cases(self) -> list[_HiddenCase]:
        return [_HiddenCase.of(case, self._known_words) for case in self._hidden]

    @cached_property
    def _telling(self) -> dict[str, list[int]]:
        """The hidden cases that have a word which no train case has."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for number, case in enumerate(self._cases):
            for word in case.telling:
                found[word].append(number)
        return dict(found)

    @cached_property
    def _shingles(self) -> ShingleIndex:
        return ShingleIndex([make_shingles([each]) for each in self._raw_inputs])


@dataclass(frozen=True, slots=True)
class _NewMessage:
    number: int
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class _HiddenCase:
    """The words of a hidden case that no train case has, and its answers, also those that its input has."""

    telling: frozenset[str]
    answers: frozenset[str]
    own: frozenset[str]

    @staticmethod
    def of(case: EvalCase, known_words: frozenset[str]) -> _HiddenCase:
        text = "".join(map(_join_words, _list_inputs(case)))
        answers = frozenset(map(_join_words, _list_expected(case)))
        mine = {word for word in set(text.split()) - known_words - SMALL_WORDS if f" {word} " not in answers}
        return _HiddenCase(frozenset(mine), answers, frozenset(each for each in answers if each in text))

    def is_told(self, words: set[str], texts: Sequence[str]) -> bool:
        shared = words & self.telling
        has_id = any(len(word) >= MIN_ID and not word.isalpha() for word in shared)
        signs = sum(bool(_IDEOGRAPH.match(word)) for word in shared)
        is_clear = len(shared) - signs + signs / SIGNS_PER_WORD >= MIN_TELLING and 2 * len(shared) >= len(self.telling)
        if not has_id and not is_clear:
            return False
        return any(each in text for each in self.answers for text in (texts[-1:] if each in self.own else texts))


class PhraseIndex:
    """Phrases, as `_join_words` gives them, that are found in a text without looking for each of them."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = sorted({each for each in phrases if each.strip()})
        self._by_start: defaultdict[str, list[str]] = defaultdict(list)
        for each in self.phrases:
            self._by_start[" ".join(each.split()[:MIN_WORDS])].append(each)
        self._sizes = sorted({1 + start.count(" ") for start in self._by_start})

    def find_all(self, text: str) -> set[str]:
        """The phrases that a text has."""
        words = text.split()
        starts = {" ".join(words[at : at + size]) for size in self._sizes for at in range(len(words) - size + 1)}
        found = (each for start in starts & self._by_start.keys() for each in self._by_start[start])
        return {each for each in found if each in text}

    def is_in(self, text: str) -> bool:
        return bool(self.find_all(text))


class ShingleIndex:
    """Sets of shingles, by shingle."""

    def __init__(self, sets: Sequence[frozenset[int]]) -> None:
        self._sizes = [len(each) for each in sets]
        self._holders: defaultdict[int, list[int]] = defaultdict(list)
        for number, each in enumerate(sets):
            for shingle in each:
                self._holders[shingle].append(number)

    def has_near(self, shingles: frozenset[int]) -> bool:
        """Whether the Jaccard similarity with one of the sets is at least NEAR."""
        shared = Counter(number for each in shingles for number in self._holders.get(each, ()))
        return any(count / (len(shingles) + self._sizes[at] - count) >= NEAR for at, count in shared.items())


def _group_exchanges(messages: Sequence[_NewMessage]) -> list[list[_NewMessage]]:
    """Messages by user with the answers that follow."""
    groups: list[list[_NewMessage]] = []
    for each in messages:
        if each.role == "user" or not groups:
            groups.append([])
        groups[-1].append(each)
    return groups


def _name_messages(messages: Sequence[_NewMessage]) -> str:
    first, last = messages[0].number, messages[-1].number
    if first == last:
        return f"message {first} of the examples has"
    return f"messages {first} to {last} of the examples together have"


def _list_inputs(case: EvalCase) -> Iterator[str]:
    yield from (turn.user for turn in (*case.turns, *case.actual))
    if case.scenario is not None:
        yield case.scenario.starting_prompt


def _list_expected(case: EvalCase) -> Iterator[str]:
    yield from (turn.expected for turn in case.turns if turn.expected and turn.expected.strip())


def _list_answers(case: EvalCase) -> Iterator[str]:
    """What a case expects: whole answers, and the texts in those that are JSON."""
    for expected in _list_expected(case):
        if re.search(r"[^\W\d_]", expected):  # a bare number is the answer to many questions
            yield expected
            yield from _list_leaves(_parse(expected))


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


def _is_long(text: str) -> bool:
    signs = len(_IDEOGRAPH.findall(text))
    words = text.count(" ") - 1 - signs + signs / SIGNS_PER_WORD
    return words >= MIN_WORDS or len(text) - 2 - 2 * signs >= MIN_CHARACTERS


def _join_words(text: str) -> str:
    """The words of a text, folded, with a space on each side, so that `art` is not found in `start`.

    In Chinese and Japanese, which have no spaces between words, each sign counts as a word. JSON escapes are resolved.
    """
    if "\\" in text:
        text = _ESCAPE.sub(_unescape, text)
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
    return f" {' '.join(_WORD.findall(plain))} "


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else " "


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
