"""Agreement of a judge with people: chance-corrected, with intervals over the labelled answers.

For verdicts of 0 and 1 the agreement is Cohen's kappa. For graded scores it is the quadratically weighted kappa, which
for continuous values is Lin's concordance correlation; for 0 and 1 both are Cohen's. Intervals are percentiles of a
bootstrap that resamples answers, so several judgements of one answer do not count as several answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean
from typing import TypeAlias, TypeVar

T = TypeVar("T")

RESAMPLES = 2_000
LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The label that people gave an answer, and the values of each judgement of it."""

    label: float
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def error(self) -> float:
        """How much more the judge gives than people."""
        return self.mean - self.label


def estimate_kappa(answers: Sequence[JudgedAnswer], *, seed: int = 0) -> IntervalEstimate | None:
    """Kappa of single judgements with the labels; None if it is undefined, because all values are the same.

    With few answers or without a disagreement, a bootstrap is too sure of 0-or-1 verdicts. So their interval also
    holds what Wilson's interval of the observed agreement allows.
    """
    moments = [_compute_moments(answer) for answer in answers]
    value = _compute_kappa(moments)
    if value is None:
        return None
    found = _bootstrap(moments, _compute_kappa, value, seed=seed)
    if not all(each in (0, 1) for answer in answers for each in (answer.label, *answer.values)):
        return found
    agreed = 1 - fmean(_mean_square_error(answer) for answer in answers)
    label, judged = fmean(answer.label for answer in answers), fmean(answer.mean for answer in answers)
    chance = label * judged + (1 - label) * (1 - judged)
    low, high = ((bound - chance) / (1 - chance) for bound in _wilson(agreed, len(answers)))
    return IntervalEstimate(value, max(-1.0, min(found.low, low)), max(found.high, high))


def estimate_mean(values: Sequence[float], *, seed: int = 0) -> IntervalEstimate:
    """The mean of one value per answer."""
    return _bootstrap(values, fmean, fmean(values), seed=seed)


def estimate_rank_correlation(pairs: Sequence[tuple[float, float]], *, seed: int = 0) -> IntervalEstimate | None:
    """Spearman's rank correlation; None if one side is the same everywhere."""
    value = _compute_rank_correlation(pairs)
    return None if value is None else _bootstrap(pairs, _compute_rank_correlation, value, seed=seed)


def _compute_rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties."""
    first, second = (_rank([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) + 1) / 2
    squares = [math.fsum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    if not all(squares):
        return None
    product = math.fsum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return product / math.sqrt(squares[0] * squares[1])


_Moments: TypeAlias = tuple[float, float, float, float, float]
"""Of one answer: label, its square, mean value, mean square of the values, mean squared difference."""


def _compute_moments(answer: JudgedAnswer) -> _Moments:
    squares = fmean(value**2 for value in answer.values)
    return answer.label, answer.label**2, answer.mean, squares, _mean_square_error(answer)


def _compute_kappa(moments: Sequence[_Moments]) -> float | None:
    """1 - observed over expected squared difference, with every answer counted alike; None if it is undefined."""
    count = len(moments)
    label, label_square, judged, judged_square, error = (sum(column) / count for column in zip(*moments, strict=True))
    expected = label_square - label**2 + judged_square - judged**2 + (label - judged) ** 2
    return 1 - error / expected if expected > 1e-12 else None


def _mean_square_error(answer: JudgedAnswer) -> float:
    return fmean((value - answer.label) ** 2 for value in answer.values)


def _wilson(share: float, count: int) -> tuple[float, float]:
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _bootstrap(
    items: Sequence[T], compute: Callable[[Sequence[T]], float | None], value: float, *, seed: int
) -> IntervalEstimate:
    random = Random(seed)
    samples = (compute(random.choices(items, k=len(items))) for _ in range(RESAMPLES))
    found = sorted(sample for sample in samples if sample is not None)
    if not found:
        return IntervalEstimate(value, value, value)
    tail = (1 - LEVEL) / 2
    low, high = (found[round(share * (len(found) - 1))] for share in (tail, 1 - tail))
    return IntervalEstimate(value, min(low, value), max(high, value))


def _rank(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1 on; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in order[start : end + 1]:
            ranks[position] = (start + end) / 2 + 1
        start = end + 1
    return ranks
