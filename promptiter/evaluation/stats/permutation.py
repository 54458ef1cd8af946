"""Exact permutation tests: are the repeats of one arm better than those of the other?

Two questions use the same algorithm. *These cases*: if both arms behave alike, each repeat of a case could have come
from either arm, so every assignment of the repeats to the arms is equally likely. *New cases*: if a change helps as
often as it hurts, the sign of each case's change is a coin flip, which is the same with one repeat in each arm.

The statistic is the mean over cases of (mean after - mean before). Its distribution is computed by adding up the cases,
in integers, so that ties are exact; outcomes equal to the observed one count towards the p-value. A score is read as
the simplest fraction near it (three thirds make one), or else to nine digits, or to a coarser grid if the sums would be
too many: one that is fine beside the noise of the whole sum. All this is a fixed function of the pooled repeats, so the
false-positive rate is exact: rounding can cost power, but not validity.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from promptiter.errors import SetupError
from promptiter.evaluation.stats.sum_distribution import SumDistribution, compute_tail

_LARGEST_DENOMINATOR, _NEAR, _DIGITS = 1_000, Fraction(1, 10**9), 10**9

_MOST_LISTED = 20_000
"""Up to this number of assignments, each is listed, and no score is rounded to a grid."""

_MOST_STEPS, _MOST_SUMS = 100, 10_000
"""Beyond these, a grid is used: the steps in a standard deviation of the sum, and all sums. With a thousand cases
of six repeats, it adds 2% to the variance of a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """The scores of one case under two profiles, in the order of the repeats. Higher is better.

    `numbers` are the repeats that the scores are from, counted from 0, if others of the case were lost in both arms.
    """

    case_id: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.before or not self.after:
            raise SetupError(
                f"case {self.case_id!r} has no repeat in one of its arms; give a failed run the worst score"
            )
        if wrong := [score for score in (*self.before, *self.after) if not math.isfinite(score)]:
            raise SetupError(f"case {self.case_id!r} has the score {wrong[0]!r}; give finite numbers")
        if self.numbers and not len(self.numbers) == len(self.before) == len(self.after):
            raise SetupError(f"case {self.case_id!r} has numbers of other repeats than its scores; give one for each")

    @property
    def gain(self) -> float:
        return math.fsum(self.after) / len(self.after) - math.fsum(self.before) / len(self.before)

    @property
    def repeats(self) -> int:
        """The number of repeats that both arms have."""
        return min(len(self.before), len(self.after))

    @property
    def repeats_made(self) -> int:
        """The number of repeats up to the last that both arms have, including those that were lost before it."""
        return self.numbers[-1] + 1 if self.numbers else self.repeats

    def first(self, repeats: int) -> PairedScores:
        """These scores up to this number of repeats, of which the case must have one."""
        count = bisect_left(self.numbers, repeats) if self.numbers else repeats
        return replace(self, before=self.before[:count], after=self.after[:count], numbers=self.numbers[:count])


def select_first(cases: Iterable[PairedScores], repeats: int) -> list[PairedScores]:
    """The cases with their scores up to this number of repeats, without those that lost all of these repeats."""
    return [case.first(repeats) for case in cases if not case.numbers or case.numbers[0] < repeats]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationTest:
    """The probability of this gain or more by chance."""

    gain: float
    p_value: float


def within_case_permutation(cases: Iterable[PairedScores]) -> PermutationTest:
    """One-sided: is the after arm better on these cases than run noise alone would explain?

    Exact if the repeats are independent. If both arms of a repeat share a seed, arms that behave alike differ less than
    random assignments do, so false positives are rarer still.
    """
    return _run_test(tuple(sorted(cases, key=lambda case: case.case_id)))


def sign_flip(deltas: Sequence[float]) -> PermutationTest:
    """One-sided: is the mean of these changes, one per case, above what coin flips for their signs would give?

    Exact if a change without effect is as likely to raise a case by some amount as to lower it by the same amount.
    """
    return _run_test(tuple(PairedScores(case_id="", before=(0.0,), after=(delta,)) for delta in sorted(deltas)))


def has_run_noise(cases: Iterable[PairedScores]) -> bool:
    """Whether some case has different scores in two repeats of the same arm."""
    return any(len(set(arm)) > 1 for case in cases for arm in (case.before, case.after))


def mean_gain(cases: Sequence[PairedScores]) -> float:
    """The mean gain over cases, rounded to 12 digits, so that 0.7 after 0.2 is 0.5."""
    if not cases:
        raise SetupError("there are no cases to compare; give at least one")
    return round(math.fsum(case.gain for case in cases) / len(cases), 12) + 0.0  # no -0.0


@lru_cache(maxsize=16)  # the looks of a final test are repeated after each block
def _run_test(cases: tuple[PairedScores, ...]) -> PermutationTest:
    pools = _drop_constant(_pool_repeats(cases))
    are_few = math.prod(pool.ways for pool in pools) <= _MOST_LISTED
    p_value = _list_assignments(pools) if are_few else _add_up_assignments(_round_to_grid(pools))
    return PermutationTest(gain=mean_gain(cases), p_value=max(p_value, sys.float_info.min))


def _list_assignments(pools: Sequence[_PooledCase]) -> float:
    totals = [0]
    for pool in pools:
        sums = [sum(chosen) for chosen in combinations(pool.repeats, pool.after)]
        totals = [total + each for total in totals for each in sums]
    observed = sum(pool.observed for pool in pools)
    return sum(total >= observed for total in totals) / len(totals)


def _add_up_assignments(pools: Sequence[_PooledCase]) -> float:
    parts = [_sum_up(tuple(sorted(pool.repeats)), pool.after) for pool in pools]
    return compute_tail(parts, at_least=sum(pool.observed for pool in pools))


@dataclass(frozen=True, slots=True)
class _PooledCase:
    """The repeats of one case as integers, weighted so that the sum over all after arms orders the gains.

    The first of them, `after` in number, are those of the after arm.
    """

    repeats: tuple[int, ...]
    after: int

    @property
    def observed(self) -> int:
        return sum(self.repeats[: self.after])

    @property
    def ways(self) -> int:
        """The number of assignments of the repeats to the arms."""
        return math.comb(len(self.repeats), self.after)

    @property
    def variance(self) -> float:
        """The variance of the sum of the after arm, over all assignments."""
        count = len(self.repeats)
        squares = count * sum(value**2 for value in self.repeats) - sum(self.repeats) ** 2
        return self.after * (count - self.after) * squares / (count**2 * (count - 1))

    @property
    def range(self) -> int:
        """The distance of the largest possible sum of the after arm from the smallest one, or a little more."""
        fewer = min(self.after, len(self.repeats) - self.after)
        return fewer * (max(self.repeats) - min(self.repeats))


def _pool_repeats(cases: Sequence[PairedScores]) -> list[_PooledCase]:
    integers = _scale_to_integers({score for case in cases for score in (*case.before, *case.after)})
    # Given the pooled repeats, a case's gain is (1/after + 1/before) times the sum of its after arm, minus a constant.
    sizes = [(len(case.after), len(case.before)) for case in cases]
    weights = {(after, before): Fraction(1, after) + Fraction(1, before) for after, before in set(sizes)}
    unit = math.lcm(*(weight.denominator for weight in weights.values()))
    shared = math.gcd(*(int(weight * unit) for weight in weights.values()))
    factors = {size: int(weight * unit) // shared for size, weight in weights.items()}
    return [
        _PooledCase(tuple(integers[score] * factors[size] for score in (*case.after, *case.before)), size[0])
        for case, size in zip(cases, sizes, strict=True)
    ]


def _scale_to_integers(scores: Collection[float]) -> dict[float, int]:
    """Scores as multiples of a common unit, or of 1e-9 if there is no simple one."""
    simple = {}
    for score in scores:
        exact = Fraction(score)
        simple[score] = exact.limit_denominator(_LARGEST_DENOMINATOR)
        if abs(simple[score] - exact) > _NEAR:
            return {score: round(score * _DIGITS) for score in scores}
    unit = math.lcm(*(value.denominator for value in simple.values()))
    return {score: int(value * unit) for score, value in simple.items()}


def _round_to_grid(pools: Sequence[_PooledCase]) -> Sequence[_PooledCase]:
    spread = math.sqrt(math.fsum(pool.variance for pool in pools))
    step = int(min(spread / _MOST_STEPS, sum(pool.range for pool in pools) / _MOST_SUMS))
    if step <= 1:
        return pools
    half = step // 2
    rounded = (tuple((value + half) // step for value in pool.repeats) for pool in pools)
    return [replace(pool, repeats=repeats) for pool, repeats in zip(pools, rounded, strict=True)]


def _drop_constant(pools: Iterable[_PooledCase]) -> list[_PooledCase]:
    """Without the cases whose repeats are all equal: every assignment of theirs gives the same sum."""
    return [pool for pool in pools if len(set(pool.repeats)) > 1]


@lru_cache(maxsize=4_096)
def _sum_up(repeats: tuple[int, ...], after: int) -> SumDistribution:
    return SumDistribution.of_choices(repeats, after)
