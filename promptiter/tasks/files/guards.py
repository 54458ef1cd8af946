"""Guards: checks of the artifacts themselves against what fools a scorer, such as length and repeated keywords.

Each guard is a figure with a bound, so that a candidate that breaks it is discarded whatever it scored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from promptiter.tasks.files.task import FileTask, TaskConstraint, TaskGuards
from promptiter.wording import join_names

CHARACTERS, GROWTH = "guard_characters", "guard_growth"
KEYWORD_SHARE, REPEATED_SHARE = "guard_keyword_share", "guard_repeated_share"
MISSING, FORBIDDEN = "guard_missing_parts", "guard_forbidden_texts"

TAMPERED = "tampered_files"
"""The figure that counts protected files which the commands of a candidate changed."""

FEWEST_WORDS = 40
"""Shorter texts have no shares: a word that occurs twice says nothing there."""
GROWTH_FREE = 500
"""Growth by this many characters is never too much."""

_WORD = re.compile(r"[^\W\d_]{4,}")
_COMMON = frozenset(
    [
        "about",
        "after",
        "also",
        "because",
        "been",
        "before",
        "being",
        "both",
        "does",
        "each",
        "from",
        "have",
        "here",
        "into",
        "just",
        "like",
        "make",
        "more",
        "most",
        "must",
        "only",
        "other",
        "over",
        "same",
        "should",
        "some",
        "such",
        "than",
        "that",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "under",
        "until",
        "used",
        "using",
        "very",
        "what",
        "when",
        "where",
        "which",
        "while",
        "will",
        "with",
        "without",
        "would",
        "your",
    ]
)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GuardReading:
    """The figure of a guard, and what was found, in words; empty if nothing was."""

    figure: str
    value: float
    reason: str = ""


def list_constraints(task: FileTask) -> tuple[TaskConstraint, ...]:
    """All bounds that a candidate must respect: those of the task, of its guards, and that it changes no scorer."""
    return (*task.constraints, *list_bounds(task.guards), TaskConstraint(metric=TAMPERED, op="<=", value=0))


def list_bounds(guards: TaskGuards) -> tuple[TaskConstraint, ...]:
    """The bounds of the guards that are given."""
    limits = {
        CHARACTERS: guards.max_characters,
        GROWTH: guards.max_growth,
        KEYWORD_SHARE: guards.max_keyword_share,
        REPEATED_SHARE: guards.max_repeated_share,
        MISSING: 0 if guards.required_sections or guards.required_texts else None,
        FORBIDDEN: 0 if guards.forbidden_texts else None,
    }
    return tuple(
        TaskConstraint(metric=name, op="<=", value=float(limit)) for name, limit in limits.items() if limit is not None
    )


def read_guards(guards: TaskGuards, texts: Mapping[str, str], baseline: Mapping[str, str]) -> tuple[GuardReading, ...]:
    """Measure the artifacts of a candidate, by path, with every guard that is given."""
    given = {each.metric: each.value for each in list_bounds(guards)}
    return tuple(each for each in _read_all(guards, texts, baseline, given) if each.figure in given)


def _read_all(
    guards: TaskGuards, texts: Mapping[str, str], baseline: Mapping[str, str], given: Mapping[str, float]
) -> Iterator[GuardReading]:
    length, before = (sum(map(len, each.values())) for each in (texts, baseline))
    yield _explain(CHARACTERS, length, given, f"the artifacts have {length:,} characters")
    growth = 1.0 if length - before <= GROWTH_FREE else length / max(1, before)
    yield _explain(GROWTH, growth, given, f"the artifacts grew from {before:,} to {length:,} characters")
    shares = [(*_find_keyword(text), path) for path, text in texts.items()] or [(0.0, "", "")]
    share, word, path = max(shares)
    yield _explain(KEYWORD_SHARE, share, given, f"{share:.0%} of the words of {path} are {word!r}")
    repeated, path = max(((_find_repetition(text), path) for path, text in texts.items()), default=(0.0, ""))
    yield _explain(REPEATED_SHARE, repeated, given, f"{repeated:.0%} of the phrases of {path} repeat earlier ones")
    missing = list(_find_missing(guards, texts))
    yield GuardReading(MISSING, len(missing), f"missing: {join_names(missing, limit=5)}" if missing else "")
    found = [each for each in guards.forbidden_texts if any(re.search(each, text) for text in texts.values())]
    quoted = join_names([repr(each) for each in found], limit=5)
    yield GuardReading(FORBIDDEN, len(found), f"the artifacts contain {quoted}" if found else "")


def _explain(figure: str, value: float, given: Mapping[str, float], reason: str) -> GuardReading:
    """A reading whose reason is only given if it is above its bound."""
    limit = given.get(figure)
    return GuardReading(figure, round(value, 6), reason if limit is not None and value > limit else "")


def _find_keyword(text: str) -> tuple[float, str]:
    """The word that a text repeats most, and its share of the words that carry meaning."""
    words = [each for each in map(str.lower, _WORD.findall(text)) if each not in _COMMON]
    if len(words) < FEWEST_WORDS:
        return 0.0, ""
    word, count = min(Counter(words).items(), key=lambda each: (-each[1], each[0]))
    return count / len(words), word


def _find_repetition(text: str) -> float:
    """The share of sequences of four words that occurred before in the text."""
    words = text.lower().split()
    if len(words) < FEWEST_WORDS:
        return 0.0
    phrases = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(phrases)) / len(phrases)


def _find_missing(guards: TaskGuards, texts: Mapping[str, str]) -> Iterator[str]:
    headings = {each.casefold() for text in texts.values() for each in _HEADING.findall(text)}
    for section in guards.required_sections:
        if section.lstrip("# ").casefold() not in headings:
            yield f"the section {section!r}"
    for wanted in guards.required_texts:
        if not any(wanted in text for text in texts.values()):
            yield f"the text {wanted!r}"
