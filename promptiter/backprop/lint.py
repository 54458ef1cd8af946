"""Linter: finds problems of a patch before any case is run with it.

A patch that breaks a limit, drops a placeholder, changes nothing, repeats a rejected value, empties or bloats a text,
or copies a case goes back to the optimizer with the reason. A Linter indexes the cases of a run once, so linting a
patch takes milliseconds for any number of cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from promptiter.backprop.step_text import json_leaves
from promptiter.errors import SetupError, SurfaceValueError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import Rejection
from promptiter.structure import TEXT_TYPES, Surface
from promptiter.wording import shorten
from traces.model import Json

LintRule: TypeAlias = Literal["limits", "placeholder", "no_op", "repeat", "empty", "growth", "copied"]

RUN_WORDS, RUN_CHARACTERS = 8, 30
"""Minimum length of a copied run, in words and in characters. (A Chinese character counts as a word.)"""

PIECE = 4
"""Number of words in the pieces by which runs are looked up. A run has at least twice as many."""

SHORTEST_LITERAL = 12
"""Minimum number of characters of a copied reference answer, argument or number."""

RARE = 2
"""A passage counts as copied if at most this many cases contain it; otherwise it belongs to the task."""

MOST_GROWTH, FREE_GROWTH = 4, 2_000
"""A new text may have this many times the characters of the current one, plus this many."""

MOST_PASSAGES = 3
"""Maximum number of copied passages that are reported."""


@dataclass(frozen=True, slots=True)
class LintProblem:
    """A problem of a patch, with a message for the optimizer."""

    rule: LintRule
    message: str


class Linter:
    """Lints the patches of a run against its cases."""

    def __init__(self, cases: Sequence[EvalCase] = ()) -> None:
        self._index = _CaseIndex(cases)

    def find_problems(
        self, patch: SurfacePatch, *, surface: Surface, rejected: Sequence[Rejection] = ()
    ) -> tuple[LintProblem, ...]:
        """Return the problems of a patch in the order of the rules; none if it is worth a try.

        `surface` has the current value. Rejections of other surfaces are ignored.
        """
        if patch.surface_id != surface.id:
            raise SetupError(f"the patch is for {patch.surface_id!r}, but the surface given is {surface.id!r}")
        draft = _Draft(patch.value, surface, tuple(rejected), self._index)
        return tuple(LintProblem(rule, message) for rule, check in _RULES.items() for message in check(draft))


@dataclass(frozen=True, slots=True)
class _Draft:
    """A proposed value, and everything that the rules compare it with."""

    value: Json
    surface: Surface
    rejected: tuple[Rejection, ...]
    index: _CaseIndex

    @property
    def texts(self) -> tuple[str, str] | None:
        """The current and the new text, if the surface holds text."""
        before, after = self.surface.value, self.value
        is_text = self.surface.type in TEXT_TYPES and isinstance(before, str) and isinstance(after, str)
        return (before, after) if is_text else None


def _check_limits(draft: _Draft) -> Iterator[str]:
    try:
        draft.surface.check(draft.value)
    except SurfaceValueError as error:
        yield f"the surface cannot take this value: {error.problem}"


def _check_placeholders(draft: _Draft) -> Iterator[str]:
    if draft.texts is None or draft.surface.type == "file":  # the braces of a file may be code
        return
    before, after = map(_find_placeholders, draft.texts)
    known = {*before, *(f"{{{name}}}" for name in draft.surface.limits.placeholders)}
    yield from (f"the placeholder {name} is gone; keep it" for name in before if name not in after)
    yield from (
        f"the placeholder {name} is new and nothing fills it; write it without braces"
        for name in after
        if name not in known
    )


def _check_no_op(draft: _Draft) -> Iterator[str]:
    if draft.value == draft.surface.value:
        yield "this is the current value; change something"
    elif _collapse_whitespace(draft.value) == _collapse_whitespace(draft.surface.value):
        yield "only white space differs from the current value; change something"


def _check_repeat(draft: _Draft) -> Iterator[str]:
    value = _collapse_whitespace(draft.value, fold=True)
    for rejection in reversed(draft.rejected):
        if rejection.kind == "repeated":  # an earlier one has the original reason
            continue
        if rejection.surface_id == draft.surface.id and _collapse_whitespace(rejection.value, fold=True) == value:
            yield f"this value was rejected before ({rejection.reason}); try another"
            return


def _check_empty(draft: _Draft) -> Iterator[str]:
    if draft.texts is not None and draft.texts[0].strip() and not draft.texts[1].strip():
        yield "the text is empty; write the complete new text"


def _check_growth(draft: _Draft) -> Iterator[str]:
    if draft.texts is None:
        return
    before, after = map(len, draft.texts)
    most = MOST_GROWTH * before + FREE_GROWTH
    if after > most:
        yield (
            f"the text grows from {before:,} to {after:,} characters, at most {most:,} are sensible; "
            "sharpen what is there before you add to it"
        )


def _check_copied(draft: _Draft) -> Iterator[str]:
    """Passages that only one or two cases contain. Few-shot examples may contain them: they are made of cases."""
    if draft.texts is None:
        return
    before, after = draft.texts
    for passage in _find_passages(after, before, draft.index)[:MOST_PASSAGES]:
        cases = " and ".join(map(repr, passage.case_ids))
        text = shorten(after[passage.start : passage.end])
        yield f"{text} is copied from case {cases}; say the rule behind it, not what a case says"


_RULES: Mapping[LintRule, Callable[[_Draft], Iterator[str]]] = {
    "limits": _check_limits,
    "placeholder": _check_placeholders,
    "no_op": _check_no_op,
    "repeat": _check_repeat,
    "empty": _check_empty,
    "growth": _check_growth,
    "copied": _check_copied,
}


@dataclass(frozen=True, slots=True)
class _Passage:
    """A span of characters in a text that is copied from cases."""

    start: int
    end: int
    case_ids: tuple[str, ...]


def _find_passages(text: str, current: str, index: _CaseIndex) -> list[_Passage]:
    """The passages of a text that come from cases and are not in the current text; overlapping ones are merged."""
    places = list(_WORD.finditer(text))
    words = [place[0].casefold() for place in places]
    known = _join_words(_split_words(current))
    found: list[_Passage] = []
    for first, after in _find_candidates(words, index):
        case_ids = index.find_owners(words[first:after])
        if not case_ids or _join_words(words[first:after]) in known:
            continue
        start, end = places[first].start(), places[after - 1].end()
        if found and start < found[-1].end:
            last = found.pop()
            start, end, case_ids = last.start, max(end, last.end), last.case_ids
        found.append(_Passage(start, end, case_ids))
    return found


def _find_candidates(words: Sequence[str], index: _CaseIndex) -> Iterator[tuple[int, int]]:
    """Spans of words that may come from a case: a run from each word on, and literals of the cases."""
    for first in range(len(words)):
        for count in index.literal_lengths:
            if first + count <= len(words) and " ".join(words[first : first + count]) in index.literals:
                yield first, first + count
        if (length := _measure_run(words, first)) is not None:
            yield first, first + length


def _measure_run(words: Sequence[str], first: int = 0) -> int | None:
    """The number of words from `first` on that make a run, None if the text ends before."""
    characters = -1
    for count, word in enumerate(words[first : first + RUN_CHARACTERS], start=1):
        characters += len(word) + 1
        if count >= RUN_WORDS and characters >= RUN_CHARACTERS:
            return count
    return None


class _CaseIndex:
    """The texts of the cases, indexed by pieces, so that the cases with a run of words are found without a scan.

    Pieces are adjacent, not overlapping: wherever a run begins, it contains at least one of them.
    """

    def __init__(self, cases: Sequence[EvalCase]) -> None:
        self._ids = [case.id for case in cases]
        self._case_texts: list[str] = []
        self._cases_with: dict[str, list[int]] = {}
        literals: set[tuple[str, ...]] = set()
        for number, case in enumerate(cases):
            texts = list(_collect_texts(case))
            word_lists = [_split_words(text) for text in texts]
            self._case_texts.append("\n".join(map(_join_words, word_lists)))
            for words in word_lists:
                for at in range(0, len(words) - PIECE + 1, PIECE):
                    self._cases_with.setdefault(" ".join(words[at : at + PIECE]), []).append(number)
            literals.update(tuple(_split_words(text)) for text in _collect_literals(case, texts))
        short = (" ".join(words) for words in literals if _measure_run(words) is None)  # longer ones are found as runs
        self.literals = frozenset(text for text in short if len(text) >= SHORTEST_LITERAL)
        self.literal_lengths = sorted({text.count(" ") + 1 for text in self.literals})

    def find_owners(self, words: Sequence[str]) -> tuple[str, ...]:
        """The cases that contain these words in a row; empty if more than RARE do."""
        run = _join_words(words)
        found: set[int] = set()
        for number in self._find_possible_cases(words):
            if number not in found and run in self._case_texts[number]:
                found.add(number)
                if len(found) > RARE:
                    return ()
        return tuple(self._ids[number] for number in sorted(found))

    def _find_possible_cases(self, words: Sequence[str]) -> Iterable[int]:
        if len(words) < 2 * PIECE - 1:
            return range(len(self._case_texts))
        pieces = (" ".join(words[at : at + PIECE]) for at in range(PIECE))
        return chain.from_iterable(self._cases_with.get(piece, ()) for piece in pieces)


def _collect_texts(case: EvalCase) -> Iterator[str]:
    """All inputs and expected outputs of a case."""
    for turn in (*case.turns, *case.actual):
        yield turn.user
        yield turn.expected or ""
    if case.scenario is not None:
        yield case.scenario.starting_prompt
        yield case.scenario.plan
    yield from (message.content for message in case.context)
    yield from _collect_arguments(case)


def _collect_arguments(case: EvalCase) -> Iterator[str]:
    for turn in case.turns:
        for call in turn.expected_tool_calls or ():
            yield from _iterate_texts(call.arguments)


def _collect_literals(case: EvalCase, texts: Sequence[str]) -> Iterator[str]:
    """Specific values: reference answers, the values inside them, arguments, and tokens with digits."""
    for turn in case.turns:
        expected = (turn.expected or "").strip()
        yield expected
        if expected.startswith(("{", "[", "```")):
            try:
                yield from _iterate_texts(parse_json(expected))
            except NotJsonError:
                continue
    yield from _collect_arguments(case)
    for text in texts:
        yield from (token for token in _TOKEN.findall(text) if len(token) >= SHORTEST_LITERAL and _ODD.search(token))


def _iterate_texts(value: Json) -> Iterator[str]:
    yield from (leaf for _, leaf in json_leaves(value) if isinstance(leaf, str))


_IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
_TOKEN = re.compile(r"""[^\s"'`<>(){}\[\],;]+""")
_ODD = re.compile(r"[\d@]")


def _split_words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _join_words(words: Sequence[str]) -> str:
    """Join words for searching, with a space on each side, so that `art` is not found in `start`."""
    return f" {' '.join(words)} "


def _find_placeholders(text: str) -> list[str]:
    """The placeholders of a text, `{name}` or `{{name}}`, in order, without the braces of JSON, LaTeX and patterns."""
    found = [match for match in _BRACES.finditer(text) if match.lastgroup]
    return list(dict.fromkeys(f"{{{match['one']}}}" if match["one"] else f"{{{{{match['two']}}}}}" for match in found))


_NAME = r"[^\W\d]\w*(?:[.-]\w+|\[\w+\])*"
_BRACES = re.compile(
    r"\\(?:[A-Za-z]{2,}|[dDwWsS])(?:\{[^{}]*\})+"  # \frac{a}{b}, \d{n}
    rf"|\{{\{{\s*(?P<two>{_NAME})\s*\}}\}}"
    rf"|\{{(?P<one>{_NAME})(?:![rsa])?(?::(?:[<>=^+\-#,_.%]|0\d)[^{{}}\"']*)?\}}"
)


def _collapse_whitespace(value: Json, *, fold: bool = False) -> Json:
    """Normalize the white space of a value and, if `fold`, its case."""
    if isinstance(value, str):
        text = " ".join(value.split())
        return text.casefold() if fold else text
    if isinstance(value, Mapping):
        return {key: _collapse_whitespace(item, fold=fold) for key, item in value.items()}
    return [_collapse_whitespace(item, fold=fold) for item in value] if isinstance(value, list | tuple) else value
