"""Sign flips: are paired differences more than chance, in any of several figures?

Two searches are run with the same seeds, and each seed gives a difference in every figure: score, calls, dollars. If
the searches are alike, the two runs of a seed could be swapped, which flips the signs of all differences of that seed
at once. Every pattern of flips is then equally likely, whatever the distribution of the figures and however they depend
on each other.

`adjust_for_flips` compares each figure with the largest among all figures under each pattern (max-T of Westfall and
Young, step-down), so that the chance of any false claim about the figures together is at most alpha.
`estimate_center` gives the interval of a mean: the true means that the same flips would not reject. It has exact
coverage if the values are symmetric about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress
from operator import mul, truediv
from random import Random

MOST_LISTED = 13
"""Up to this number of pairs, all patterns of flips are listed; beyond it, they are sampled."""

SAMPLED = 8_191
_TOLERANCE = 1e-9
"""Patterns that are sampled, besides the observed one; and the rounding error within which two sums are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CenterInterval:
    """The mean of some values, and the true means that they agree with. Without ends, there are too few values."""

    mean: float
    low: float | None = None
    high: float | None = None


def adjust_for_flips(figures: Sequence[Sequence[float]]) -> list[float]:
    """The two-sided p-value of each figure, adjusted for all figures.

    A figure has one difference per pair, in the order of the pairs. A difference of 0 is a tie, or is missing: it is
    the same under all flips.
    """
    scales = [math.sqrt(math.fsum(each * each for each in figure)) for figure in figures]
    scaled = [
        [each / scale for each in figure] if scale else [0.0] * len(figure)
        for figure, scale in zip(figures, scales, strict=True)
    ]
    observed = [abs(math.fsum(figure)) for figure in scaled]
    order = sorted(range(len(figures)), key=lambda at: -observed[at])
    flipped = [[abs(total) for total in _list_flipped_sums(figure)] for figure in scaled]
    largest = [0.0] * len(flipped[0]) if flipped else []
    reached = [0.0] * len(figures)
    for at in reversed(order):  # the largest of this figure and of those with less evidence
        largest = list(map(max, largest, flipped[at]))
        reached[at] = sum(each >= observed[at] - _TOLERANCE for each in largest) / len(largest)
    in_order = accumulate((reached[at] for at in order), max)
    p_values = dict(zip(order, in_order, strict=True))
    return [p_values[at] if scales[at] else 1.0 for at in range(len(figures))]


def estimate_center(values: Sequence[float], *, level: float = 0.95) -> CenterInterval:
    """The mean of the values with its interval: Hartigan's typical values.

    The means of all subsets of n values split the line into 2^n parts that are equally likely to hold the true center.
    """
    mean = math.fsum(values) / len(values)
    means = sorted(_list_subset_means(values))
    outside = int((1 - level) / 2 * (len(means) + 1) + _TOLERANCE)
    if not outside:
        return CenterInterval(mean=mean)
    return CenterInterval(mean=mean, low=means[outside - 1], high=means[-outside])


def count_needed_pairs(alpha: float, *, comparisons: int = 1) -> int:
    """The fewest pairs that can show a difference: the smallest p-value of n pairs is 2 / 2^n."""
    pairs = 1
    while comparisons * 2 / 2**pairs > alpha:
        pairs += 1
    return pairs


def _list_flipped_sums(figure: Sequence[float]) -> list[float]:
    """The sum of a figure under each pattern. One sign stays: flipping all of them changes no absolute sum."""
    if len(figure) > MOST_LISTED:
        return [math.fsum(figure), *(sum(map(mul, signs, figure)) for signs in _sample_signs(len(figure)))]
    sums = [figure[0]] if figure else [0.0]
    for each in figure[1:]:
        sums = [total + each for total in sums] + [total - each for total in sums]
    return sums


def _list_subset_means(values: Sequence[float]) -> list[float]:
    """The mean of each subset that is not empty, or of a sample of them."""
    if len(values) > MOST_LISTED:
        chosen = ([sign > 0 for sign in signs] for signs in _sample_signs(len(values)))
        return [sum(compress(values, each)) / sum(each) for each in chosen if any(each)]
    sums, counts = [0.0], [0]
    for value in values:
        sums += [total + value for total in sums]
        counts += [count + 1 for count in counts]
    return list(map(truediv, sums[1:], counts[1:]))


@lru_cache(maxsize=4)
def _sample_signs(pairs: int) -> tuple[tuple[float, ...], ...]:
    """Patterns of signs, the same in every process."""
    rng = Random(pairs)
    return tuple(tuple(rng.choices((1.0, -1.0), k=pairs)) for _ in range(SAMPLED))
