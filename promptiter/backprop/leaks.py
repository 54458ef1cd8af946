"""Short signs that a text gives cases away, whatever its wording.

- An id or a number that one case has: `KX-4821`.
- A name that only one case expects, or two or more other values of that kind in a sentence: `45 or 60 days`.
- What a case is about beside what it expects: `kettles have 45 days`, `for Ines, the queue is defect`. The less the
  expected value says, the more of the case the sentence has to tell. A whole case is given away without its answer.
- A table from cases to labels.
- A value that cases expect, in a sentence in a language of neither the cases nor the current text: a translated case.

Words that many cases have, and what the current text says, give nothing away. Neither do labels: see `case_values`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest

from promptiter.backprop.case_terms import Spellings, find_ids, is_plain_number, list_terms
from promptiter.backprop.case_values import IDEOGRAPHS, CaseValue, collect_inputs, collect_texts, split_words
from promptiter.backprop.copied_text import RARE, Passage
from promptiter.evaluation.data.case import EvalCase
from promptiter.sentences import split_sentences
from promptiter.small_words import guess_language

FEWEST_TERMS, FEWEST_UNANSWERED = 2, 4
"""A sentence about a case has at least this many terms that only this case has; this many if it has no answer."""

TERMS_PER_PAGE = 40
"""A long case shares terms with any text: it takes one more term for each of this many in its inputs."""

TERMS_PER_OTHER = 2
"""A row of a table may have one term that its case lacks for this many that the case has."""

SHORTEST_NAME = 3
"""Minimum number of characters of a value that is a name. `P1` and `DE` may be labels."""

MAX_TERM_SHARE, MAX_TERM_CASES = 0.34, 100
"""Maximum share and number of the cases that have a term in their inputs; any term may be in RARE of them."""


class LeakIndex:
    """The ids, terms and values of the cases, and which cases have them."""

    def __init__(self, cases: Sequence[EvalCase], values: Sequence[Sequence[CaseValue]]) -> None:
        self._ids = [case.id for case in cases]
        self._tokens: defaultdict[str, set[int]] = defaultdict(set)
        self._values: defaultdict[str, set[int]] = defaultdict(set)
        self._spellings = Spellings()
        self._languages: set[str | None] = set()
        one_word = {value.words for value in chain.from_iterable(values) if " " not in value.words}
        words: defaultdict[str, set[int]] = defaultdict(set)
        terms: defaultdict[str, set[int]] = defaultdict(set)
        most = max(RARE, min(MAX_TERM_CASES, int(MAX_TERM_SHARE * len(cases))))
        for number, case in enumerate(cases):
            said = list_terms("\n".join(collect_inputs(case)))
            expected = list_terms(" ".join(value.text for value in values[number])) - said
            for text in collect_texts(case):
                _add(number, (token for token, _, _ in find_ids(text)), to=self._tokens, most=1)
                _add(number, one_word.intersection(split_words(text)), to=words, most=RARE)
                _add(number, list_terms(text) - expected, to=terms, most=most)
            for text in collect_inputs(case):
                self._spellings.add(text)
                self._languages.add(_find_language(text))
            _add(number, (value.words for value in values[number]), to=self._values, most=len(cases))
        self._terms = {term: numbers for term, numbers in terms.items() if len(numbers) <= most}
        self._term_counts = Counter(number for numbers in self._terms.values() for number in numbers)
        self._value_lengths = sorted({words.count(" ") + 1 for words in self._values})
        self._field_terms = list_terms(" ".join({key for value in chain.from_iterable(values) for key in value.field}))
        self._own = {
            value.words: value.text
            for value in chain.from_iterable(values)
            if not value.is_label and len(self._values[value.words]) == 1 and len(words.get(value.words, ())) <= RARE
        }

    def find_leaks(self, text: str, current: str) -> list[Passage]:
        """The ids, sentences and rows of a text that give cases away and are not in the current text."""
        known = _KnownText(current)
        spans = [(each.start, each.end) for each in split_sentences(text) if known.lacks(_join_words(each.text))]
        sentences = [self._read(text, start, end, known) for start, end in spans]
        clauses = [
            [self._read(text, *clause, known) for clause in _list_clauses(text, start, end)] for start, end in spans
        ]
        found = [
            *self._find_tokens(text, known),
            *self._find_told(sentences),
            *self._find_translated(sentences, self._languages | {_find_language(current)}),
            *self._find_table([clause for each in clauses if _has_answers(each) for clause in each]),
        ]
        return list(_drop_overlaps(sorted(found, key=lambda passage: (passage.start, -passage.end))))

    def _read(self, text: str, start: int, end: int, known: _KnownText) -> _Reading:
        """The values and terms of cases in a part of a text."""
        part = text[start:end]
        words = split_words(_TIME.sub(" ", part))
        runs = (words[at : at + count] for count in self._value_lengths for at in range(len(words) - count + 1))
        values = {run: self._values[run] for run in map(" ".join, runs) if run in self._values}
        single = {run for run in values if run in self._own and known.lacks(run)}
        own = {run for run in single if _is_specific(self._own[run], part)}
        content = list_terms(part) - known.terms - self._field_terms
        terms: defaultdict[int, set[str]] = defaultdict(set)
        for term in content:
            for number in self._terms.get(term, ()):
                terms[number].add(term)
        return _Reading(start, end, part, values, single, own, terms, content)

    def _find_tokens(self, text: str, known: _KnownText) -> Iterator[Passage]:
        """Ids and numbers that one case alone has. A year or a round number has to be what the case expects."""
        for token, start, end in find_ids(text):
            numbers = self._tokens.get(token, set())
            is_plain = is_plain_number(token) and token not in self._values
            if len(numbers) == 1 and not is_plain and token not in known.tokens:
                yield Passage(start, end, self._name(numbers))

    def _find_told(self, sentences: Sequence[_Reading]) -> Iterator[Passage]:
        """Sentences that tell the values of cases, or cases with their answers. The answer may be in the next one."""
        for sentence, following in zip_longest(sentences, sentences[1:]):
            numbers: set[int] = set()
            if len(_drop_parts(sentence.own)) > 1 or any(map(_WITHOUT_DIGIT.fullmatch, sentence.own)):
                numbers.update(*(sentence.values[words] for words in sentence.own))
            names = self._spellings.find_names(sentence.text)
            for number in sentence.terms:
                said = sentence if following is None or sentence.list_answers(number) else following
                answers = (self._is_told(number, words, sentence, said, names) for words in said.list_answers(number))
                if self._is_told_in_full(number, sentence) or any(answers):
                    numbers.add(number)
            if numbers:
                yield Passage(sentence.start, sentence.end, self._name(numbers))

    def _is_told_in_full(self, number: int, sentence: _Reading) -> bool:
        """Whether a sentence is about a case and little else, so that it gives the case away without its answer."""
        terms = sentence.terms[number]
        is_case = self._count_terms(number, terms, of_cases=1) >= FEWEST_UNANSWERED
        return is_case and len(sentence.content - terms) <= len(terms) // TERMS_PER_OTHER

    def _is_told(self, number: int, answer: str, sentence: _Reading, said: _Reading, names: set[str]) -> bool:
        """Whether a sentence says what a case is about, if another one, or the same, says its answer.

        For any answer, a name is enough: one that several cases with this answer have belongs to the task, as that of
        a product does. A value of its own takes a term or two, any other value that no other case expects takes two of
        the case alone. Beside a label, the sentence may have fewer other terms than pairs of terms of the case: none
        beside two, two beside three, five beside four.
        """
        beside = sentence.list_beside(number, answer)
        is_named = any(len(self._terms[name] & said.values[answer]) == 1 for name in names & beside)
        rare = self._count_terms(number, beside, of_cases=RARE)
        if is_named or (answer in said.own and rare >= (1 if said is sentence else 2)):
            return True
        others = sentence.content - beside - _list_answer_terms(answer)
        is_little = len(others) < math.comb(len(beside), 2)
        is_case = self._count_terms(number, beside, of_cases=1) >= FEWEST_TERMS
        return is_case and (is_little or answer in said.single)

    def _count_terms(self, number: int, terms: set[str], *, of_cases: int) -> int:
        """How many of the terms of a case at most this many cases have, without those that a long case has anyway."""
        count = sum(len(self._terms[term]) <= of_cases for term in terms)
        return count - self._term_counts[number] // TERMS_PER_PAGE

    def _find_translated(self, sentences: Sequence[_Reading], known: set[str | None]) -> Iterator[Passage]:
        """Sentences in another language that say, in words, what cases expect."""
        for sentence in sentences if any(known) else ():
            language = _find_language(sentence.text)
            values = [words for words in sentence.values if _LETTER.search(words)]
            if language is not None and language not in known and values:
                cases = self._name(set.union(*(sentence.values[words] for words in values)))[:RARE]
                yield Passage(sentence.start, sentence.end, cases, "says in another language what answers")

    def _find_table(self, clauses: Sequence[_Reading]) -> list[Passage]:
        """Clauses that have a case and its answer, or a value of its own, and little else: at least two cases."""
        rows = [(clause, number) for clause in clauses for number in clause.terms if self._is_row(number, clause)]
        rows += [
            (clause, number)
            for clause in clauses
            for words in clause.own
            if clause.content <= _list_answer_terms(words)
            for number in clause.values[words]
        ]
        if len({number for _, number in rows}) < 2:
            return []
        return [Passage(clause.start, clause.end, self._name([number])) for clause, number in rows]

    def _is_row(self, number: int, clause: _Reading) -> bool:
        for answer in clause.list_answers(number):
            beside = clause.list_beside(number, answer)
            is_own = any(len(self._terms[term]) == 1 for term in beside)
            others = clause.content - beside - _list_answer_terms(answer)
            if is_own and len(others) <= len(beside) // TERMS_PER_OTHER:
                return True
        return False

    def _name(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._ids[number] for number in sorted(numbers))


@dataclass(frozen=True, slots=True)
class _Reading:
    """A part of a text: the values of cases in it, those that a single case expects and those of them that are its own,
    the terms of each case, and all terms."""

    start: int
    end: int
    text: str
    values: Mapping[str, set[int]]
    single: set[str]
    own: set[str]
    terms: Mapping[int, set[str]]
    content: frozenset[str]

    def list_answers(self, number: int) -> list[str]:
        """The values that a case expects."""
        return [words for words, numbers in self.values.items() if number in numbers]

    def list_beside(self, number: int, answer: str) -> set[str]:
        """The terms of a case besides those of its answer."""
        return self.terms[number] - _list_answer_terms(answer)


class _KnownText:
    """What the current text says."""

    def __init__(self, text: str) -> None:
        self._words = f" {_join_words(text)} "
        self.terms = list_terms(text)
        self.tokens = frozenset(token for token, _, _ in find_ids(text))

    def lacks(self, words: str) -> bool:
        return f" {words} " not in self._words


def _drop_overlaps(passages: Iterable[Passage]) -> Iterator[Passage]:
    last: Passage | None = None
    for passage in passages:
        if last is None or not passage.overlaps(last):
            yield passage
            last = passage


def _has_answers(clauses: Sequence[_Reading]) -> bool:
    """Whether most clauses that say something new have an answer, as in a table; a list of examples has one for all."""
    return sum(1 if clause.values else -1 for clause in clauses if clause.values or clause.content) > 0


def _add(number: int, names: Iterable[str], *, to: defaultdict[str, set[int]], most: int) -> None:
    """Note that a case has these names. Of a name with more cases than `most`, only that is noted."""
    for name in names:
        if len(numbers := to[name]) <= most:
            numbers.add(number)


def _join_words(text: str) -> str:
    return " ".join(split_words(text))


def _list_clauses(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The clauses of a sentence, also without an introduction: `Known cases: kettle = defect, ...`."""
    for clause in _CLAUSE.finditer(text, start, end):
        yield clause.span()
        if (colon := text.find(": ", *clause.span())) >= 0:
            yield colon + 1, clause.end()


def _is_specific(value: str, text: str) -> bool:
    """Whether a value is more than a digit, a code or a common word. A text has to spell a name as the value does."""
    is_name = len(value) >= SHORTEST_NAME and value[0].isupper() and value in text
    return is_name or _SPECIFIC.search(value) is not None


def _drop_parts(values: set[str]) -> list[str]:
    """The values that are not parts of others."""
    return [words for words in values if not any(words != other and f" {words} " in f" {other} " for other in values)]


def _find_language(text: str) -> str | None:
    """The language of a text, or that it is written in ideographs; None if its words do not tell."""
    ideographs = len(_IDEOGRAPH.findall(text))
    return "ideographs" if ideographs > len(_LATIN_WORD.findall(text)) else guess_language(text)


_list_answer_terms = lru_cache(maxsize=4096)(list_terms)
_TIME = re.compile(r"(?<![\w.,])\d+(?::\d+)+(?!\w)")  # `18:30` has neither 18 nor 30
_SPECIFIC = re.compile(rf"\d\D?\d|\w\W+\w+\W+\w|[{IDEOGRAPHS}]{{2}}")
_WITHOUT_DIGIT = re.compile(r"\D+")
_LETTER = re.compile(r"[^\W\d_]")
_IDEOGRAPH = re.compile(rf"[{IDEOGRAPHS}]")
_LATIN_WORD = re.compile(rf"[^\W\d_{IDEOGRAPHS}]+")
_CLAUSE = re.compile(r"(?:[^\n;；,，。.!?]|[.!?](?!\s))+")
