"""Linter: finds problems of a patch before any case is run with it.

A patch that breaks a limit, drops a placeholder, changes nothing, repeats a rejected value, empties or bloats a text,
or copies a case goes back to the optimizer with the reason. A Linter indexes the cases of a run once, so linting a
patch takes milliseconds for any number of cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.backprop.case_values import read_values
from promptiter.backprop.copied_text import PassageIndex
from promptiter.backprop.leaks import LeakIndex
from promptiter.errors import SetupError, SurfaceValueError
from promptiter.evaluation.data.case import EvalCase
from promptiter.profile import SurfacePatch
from promptiter.stages.optimizer import Rejection
from promptiter.structure import TEXT_TYPES, Surface
from promptiter.wording import shorten
from traces.model import Json

LintRule: TypeAlias = Literal["limits", "placeholder", "no_op", "repeat", "empty", "growth", "copied"]

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
        values = read_values(cases)
        self._passages, self._leaks = PassageIndex(cases, values), LeakIndex(cases, values)

    def find_problems(
        self, patch: SurfacePatch, *, surface: Surface, rejected: Sequence[Rejection] = ()
    ) -> tuple[LintProblem, ...]:
        """Return the problems of a patch in the order of the rules; none if it is worth a try.

        `surface` has the current value. Rejections of other surfaces are ignored.
        """
        if patch.surface_id != surface.id:
            raise SetupError(f"the patch is for {patch.surface_id!r}, but the surface given is {surface.id!r}")
        draft = _Draft(patch.value, surface, tuple(rejected), self._passages, self._leaks)
        return tuple(LintProblem(rule, message) for rule, check in _RULES.items() for message in check(draft))


@dataclass(frozen=True, slots=True)
class _Draft:
    """A proposed value, and everything that the rules compare it with."""

    value: Json
    surface: Surface
    rejected: tuple[Rejection, ...]
    passages: PassageIndex
    leaks: LeakIndex

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
    """Passages that give cases away. Few-shot examples may: they are made of cases."""
    if draft.texts is None:
        return
    before, after = draft.texts
    copied = draft.passages.find_passages(after, before)
    leaks = [each for each in draft.leaks.find_leaks(after, before) if not any(map(each.overlaps, copied))]
    for passage in [*copied, *leaks][:MOST_PASSAGES]:
        cases = " and ".join(map(repr, passage.case_ids))
        text = shorten(after[passage.start : passage.end].strip())
        yield f"{text} {passage.relation} case {cases}; say the rule behind it, not what a case says"


_RULES: Mapping[LintRule, Callable[[_Draft], Iterator[str]]] = {
    "limits": _check_limits,
    "placeholder": _check_placeholders,
    "no_op": _check_no_op,
    "repeat": _check_repeat,
    "empty": _check_empty,
    "growth": _check_growth,
    "copied": _check_copied,
}


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
