"""Feedback points: what the gradients of a surface say, each thing once, with the cases and gradients behind it.

Equal and near-equal texts are one point. Texts that differ in a literal (a number, a quoted word, an identifier) or
have one word in the place of another ask for different things: `follow rule R03` is not `follow rule R07`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from zlib import crc32

from promptiter.evaluation.data.health import normalize_text
from promptiter.evaluation.data.near_duplicates import NEAR
from promptiter.grouping import group_by
from promptiter.stages.contracts import SignalPoint, SurfaceGradient
from promptiter.stages.losses import Category, Severity
from traces.model import escape_surrogates
from traces.text import cut

MARKS, MOST_COMPARED = 4, 4
"""Number of features that mark a text, and the maximum number of texts it is compared with per mark."""

MOST_REASON = 160
"""Maximum number of characters of a reason."""

SHORTEST_STEM = 4
"""Words that share at least this many first letters, and all but the last three, are forms of the same word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackPoint:
    """One point that gradients of a surface make: how many of them make it, and for which cases.

    `reason` is why one of the cases failed, in the words of a metric.
    """

    text: str
    count: int
    case_ids: frozenset[str]
    severity: Severity
    categories: tuple[Category, ...]
    gradient_ids: tuple[str, ...] = ()
    reason: str = ""

    def as_line(self, number: int = 1) -> str:
        """Render the point as one numbered line, whatever its text, so that it cannot pose as two points."""
        cases = f"{len(self.case_ids)} case{'s' if len(self.case_ids) > 1 else ''}"
        labels = [*([f"×{self.count}"] if self.count > 1 else []), cases, self.severity, *self.categories]
        return f"{number}. {', '.join(labels)}: {' '.join(self.text.split())}"

    def as_signal_point(self) -> SignalPoint:
        return SignalPoint(text=self.text, case_ids=tuple(sorted(self.case_ids)), gradient_ids=self.gradient_ids)


def list_lines(points: Iterable[FeedbackPoint]) -> str:
    """The points as numbered lines."""
    return "\n".join(point.as_line(number) for number, point in enumerate(points, 1))


def list_reasons(points: Iterable[FeedbackPoint]) -> str:
    """Why a case behind each point failed, each distinct reason once, with the numbers of the points."""
    numbers: dict[str, list[str]] = {}
    for number, point in enumerate(points, 1):
        if point.reason:
            numbers.setdefault(cut(" ".join(point.reason.split()), MOST_REASON), []).append(str(number))
    return "\n".join(f"{', '.join(named)}. {reason}" for reason, named in numbers.items())


def collect_points(gradients: Iterable[SurfaceGradient]) -> list[FeedbackPoint]:
    """Merge equal and near-equal gradients into points, the most severe and most frequent first."""
    by_words = group_by(gradients, lambda gradient: normalize_text(escape_surrogates(gradient.text)))
    equal = {words: _build_point(by_words[words]) for words in sorted(by_words)}
    return sorted(_cluster_points(equal), key=lambda point: (point.severity, -len(point.case_ids), point.text))


def join_points(points: Sequence[FeedbackPoint], *, text: str) -> FeedbackPoint:
    """One point with this text and the evidence of several."""
    return FeedbackPoint(
        text=text,
        count=sum(point.count for point in points),
        case_ids=frozenset().union(*(point.case_ids for point in points)),
        severity=min(point.severity for point in points),
        categories=tuple(sorted({category for point in points for category in point.categories})),
        gradient_ids=tuple(dict.fromkeys(each for point in points for each in point.gradient_ids)),
        reason=next((point.reason for point in points if point.reason), ""),
    )


def _build_point(gradients: Sequence[SurfaceGradient]) -> FeedbackPoint:
    spellings = Counter(escape_surrogates(gradient.text).strip() for gradient in gradients)
    return FeedbackPoint(
        text=min(spellings, key=lambda text: (-spellings[text], text)),
        count=len(gradients),
        case_ids=frozenset(gradient.case_id for gradient in gradients),
        severity=min(gradient.severity for gradient in gradients),
        categories=tuple(sorted({gradient.category for gradient in gradients})),
        gradient_ids=tuple(sorted(gradient.id for gradient in gradients if gradient.id)),
        reason=min((reason for gradient in gradients for reason in gradient.reasons), default=""),
    )


@dataclass(frozen=True, slots=True)
class _Wording:
    """What two texts are compared by: words and pairs of adjacent words, and the literals, which must be equal."""

    words: frozenset[str]
    features: frozenset[str]
    literals: frozenset[str]

    @classmethod
    def of(cls, normalized: str, text: str) -> _Wording:
        words = _WORD.findall(normalized.replace("’", "'"))
        features = frozenset((*words, *map(" ".join, pairwise(words)))) or frozenset((normalized,))
        return cls(frozenset(words), features, frozenset(_find_literals(text)))

    @property
    def exact(self) -> tuple[frozenset[str], frozenset[str]]:
        """What is equal in texts that may be merged."""
        return self.words & _NEGATIONS, self.literals

    def is_near(self, other: _Wording) -> bool:
        one, two = self.features, other.features
        if min(len(one), len(two)) < NEAR * max(len(one), len(two)):
            return False
        shared = len(one & two)
        return shared >= NEAR * (len(one) + len(two) - shared) and not self._has_other_words(other)

    def _has_other_words(self, other: _Wording) -> bool:
        """Whether a word of the other text is in the place of one of this text, and not just a form of it."""
        mine, theirs = self.words - other.words, other.words - self.words
        return bool(mine and theirs) and not all(any(_is_same_stem(one, two) for two in theirs) for one in mine)


def _cluster_points(equal: Mapping[str, FeedbackPoint]) -> Iterator[FeedbackPoint]:
    """Merge near-equal points into one with the most frequent wording.

    A text is compared only with texts that lead a cluster and share one of its first marks, so the time is linear. Of
    near-equal pairs, all but one in six hundred share one of four marks.
    """
    clusters: list[tuple[_Wording, list[FeedbackPoint]]] = []
    leaders: dict[tuple[object, int], list[int]] = {}
    for words in sorted(equal, key=lambda words: (-equal[words].count, words)):
        wording = _Wording.of(words, equal[words].text)
        marks = [(wording.exact, mark) for mark in sorted(map(crc32, map(str.encode, wording.features)))[:MARKS]]
        candidates = dict.fromkeys(number for mark in marks for number in leaders.get(mark, ())[:MOST_COMPARED])
        home = next((number for number in candidates if wording.is_near(clusters[number][0])), None)
        if home is not None:
            clusters[home][1].append(equal[words])
            continue
        clusters.append((wording, [equal[words]]))
        for mark in marks:
            leaders.setdefault(mark, []).append(len(clusters) - 1)
    for _, same in clusters:
        yield join_points(same, text=same[0].text)


def _find_literals(text: str) -> Iterator[str]:
    """Numbers, quoted words and identifiers of a text. A quoted sentence is not a literal."""
    for found in _QUOTED.findall(text):
        yield next(part for part in found if part).strip().casefold()
    for word in _TOKEN.findall(text):
        if any(character.isdigit() for character in word) or _IDENTIFIER.search(word):
            yield word


def _is_same_stem(one: str, two: str) -> bool:
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))
    return shared >= max(SHORTEST_STEM, max(len(one), len(two)) - 3)


_QUOTED = re.compile(r"`([^`]{1,60})`|\"([^\"]{1,60})\"|“([^”]{1,60})”|(?<!\w)'([^'\n]{1,60})'(?!\w)")
_TOKEN = re.compile(r"[\w$]+(?:[._/:-][\w$]+)*")
_IDENTIFIER = re.compile(r"\w_\w|[a-z][A-Z]|[A-Za-z]\.[A-Za-z]")
"""`order_id`, `orderId` or `order.id`."""

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:['’]\w+)?")
_NEGATIONS = frozenset(
    re.findall(
        r"\S+",
        "no not never none nor without cannot don't doesn't isn't aren't can't shouldn't won't "
        "nicht kein keine nie ohne ne pas sans sin nunca 不 没 沒 无 無 非 勿 别 別",
    )
)
"""Texts that differ in these words are never merged: `use dates` and `never use dates` are almost the same words."""
