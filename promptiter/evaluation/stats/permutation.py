"""Exact permutation tests: are the repeats of one arm better than those of the other?

Two questions use the same algorithm. *These cases*: if both arms behave alike, each repeat of a case could have come
from either arm, so every assignment of the repeats to the arms is equally likely. *New cases*: if a change helps as
often as it hurts, the sign of each case's change is a coin flip, which is the same with one repeat in each arm.

The statistic is the mean over cases of (mean after - mean before). Its distribution is computed by convolution over the
cases, in integers, so that ties are exact; outcomes equal to the observed one count towards the p-value. A score is
read as the simplest fraction near it (three thirds make one), or else to nine digits. This is a fixed function of the
pooled repeats, so the false-positive rate is exact: rounding can cost power, but not validity.

Scores of many digits have too many sums to list. Then assignments are sampled with a fixed seed, and the observed one
is counted among them: (1 + as good) / (1 + samples) keeps the false-positive rate, too (Phipson and Smyth 2010). Only
the p-value varies, by `std_error`. A coarser grid would be exact again, but too coarse to be useful: with 100 cases and
6 repeats, steps of 0.05 already take longer than sampling.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from operator import add
from random import Random
from typing import TypeAlias

from promptiter.errors import SetupError

MAX_STEPS = 4_000_000
"""The most products in the convolution, about a second; beyond that, assignments are sampled."""

MAX_SUMS = 100_000
"""The most distinct sums held in memory, of one case or of all; beyond that, assignments are sampled."""

SAMPLES = 9_999
"""The number of sampled assignments. Near 0.01 the p-value has a standard error of 0.001."""

_LARGEST_DENOMINATOR, _NEAR, _DIGITS = 1_000, Fraction(1, 10**9), 10**9

_Sums: TypeAlias = tuple[tuple[int, int], ...]
"""The possible sums of the after arm of one case, each with the number of assignments that give it."""


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
    """The probability of this gain or more by chance. `std_error` is that of the p-value, 0 if it is exact."""

    gain: float
    p_value: float
    std_error: float = 0.0


def within_case_permutation(
    cases: Iterable[PairedScores], *, seed: int = 0, samples: int | None = None
) -> PermutationTest:
    """One-sided: is the after arm better on these cases than run noise alone would explain?

    Exact if the repeats are independent. If both arms of a repeat share a seed, arms that behave alike differ less than
    random assignments do, so false positives are rarer still. With a number of `samples`, assignments are always
    sampled, which is faster for scores of many digits.
    """
    return _run_test(tuple(sorted(cases, key=lambda case: case.case_id)), seed, samples)


def sign_flip(deltas: Sequence[float], *, seed: int = 0) -> PermutationTest:
    """One-sided: is the mean of these changes, one per case, above what coin flips for their signs would give?

    Exact if a change without effect is as likely to raise a case by some amount as to lower it by the same amount.
    """
    cases = tuple(PairedScores(case_id="", before=(0.0,), after=(delta,)) for delta in sorted(deltas))
    return _run_test(cases, seed, None)


def has_run_noise(cases: Iterable[PairedScores]) -> bool:
    """Whether some case has different scores in two repeats of the same arm."""
    return any(len(set(arm)) > 1 for case in cases for arm in (case.before, case.after))


def mean_gain(cases: Sequence[PairedScores]) -> float:
    """The mean gain over cases, rounded to 12 digits, so that 0.7 after 0.2 is 0.5."""
    if not cases:
        raise SetupError("there are no cases to compare; give at least one")
    return round(math.fsum(case.gain for case in cases) / len(cases), 12) + 0.0  # no -0.0


@lru_cache(maxsize=16)  # the looks of a final test are repeated after each block
def _run_test(cases: tuple[PairedScores, ...], seed: int, samples: int | None) -> PermutationTest:
    gain = mean_gain(cases)
    pools = [pool for pool in _pool_repeats(cases) if len(set(pool.pooled)) > 1]  # equal repeats have one assignment
    observed = sum(pool.observed for pool in pools)
    total = _list_totals(pools) if samples is None else None
    if total is None:
        count = samples or SAMPLES
        p_value = _sample_p_value(pools, observed, Random(seed), count)
        return PermutationTest(gain=gain, p_value=p_value, std_error=math.sqrt(p_value * (1 - p_value) / count))
    as_good = sum(ways for outcome, ways in total.items() if outcome >= observed)
    p_value = float(Fraction(as_good, sum(total.values())))
    return PermutationTest(gain=gain, p_value=max(p_value, sys.float_info.min))


@dataclass(frozen=True, slots=True)
class _PooledCase:
    """The repeats of one case as integers, weighted so that the sum over all after arms orders the gains."""

    pooled: tuple[int, ...]
    after: int
    observed: int

    @property
    def sums(self) -> _Sums | None:
        return _count_sums(self.pooled, self.after)

    def sample(self, random: Random, samples: int) -> list[int]:
        if (sums := self.sums) is not None:
            return random.choices([value for value, _ in sums], [ways for _, ways in sums], k=samples)
        return [sum(random.sample(self.pooled, self.after)) for _ in range(samples)]


def _pool_repeats(cases: Sequence[PairedScores]) -> list[_PooledCase]:
    integers = _scale_to_integers({score for case in cases for score in (*case.before, *case.after)})
    # Given the pooled repeats, a case's gain is (1/after + 1/before) times the sum of its after arm, minus a constant.
    weights = [Fraction(1, len(case.after)) + Fraction(1, len(case.before)) for case in cases]
    unit = math.lcm(*(weight.denominator for weight in weights))
    shared = math.gcd(*(int(weight * unit) for weight in weights))
    pools = []
    for case, weight in zip(cases, weights, strict=True):
        factor = int(weight * unit) // shared
        after = [integers[score] * factor for score in case.after]
        pooled = sorted(after + [integers[score] * factor for score in case.before])
        pools.append(_PooledCase(tuple(pooled), len(after), sum(after)))
    return pools


def _scale_to_integers(scores: Iterable[float]) -> dict[float, int]:
    """Scores as multiples of a common unit, or of 1e-9 if there is no simple one."""
    exact = {score: Fraction(score) for score in scores}
    simple = {score: value.limit_denominator(_LARGEST_DENOMINATOR) for score, value in exact.items()}
    if all(abs(simple[score] - value) <= _NEAR for score, value in exact.items()):
        unit = math.lcm(*(value.denominator for value in simple.values()))
        return {score: int(value * unit) for score, value in simple.items()}
    return {score: round(value * _DIGITS) for score, value in exact.items()}


@lru_cache(maxsize=4_096)
def _count_sums(pooled: tuple[int, ...], after: int) -> _Sums | None:
    """All sums of `after` of the pooled repeats; None if there are too many to list."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(after))]
    for value in pooled:
        for chosen in range(after, 0, -1):
            grown = ways[chosen]
            for reached, count in ways[chosen - 1].items():
                grown[reached + value] = grown.get(reached + value, 0) + count
        if sum(map(len, ways)) > MAX_SUMS:
            return None
    return tuple(ways[after].items())


def _list_totals(pools: Iterable[_PooledCase]) -> dict[int, int] | None:
    tables = [pool.sums for pool in pools]
    known = [table for table in tables if table is not None]
    return _convolve(known) if len(known) == len(tables) else None


def _convolve(tables: Iterable[_Sums]) -> dict[int, int] | None:
    """The number of ways to get each total; None if that takes too long."""
    total, steps = {0: 1}, 0
    for table in sorted(tables, key=len):
        steps += len(total) * len(table)
        if steps > MAX_STEPS:
            return None
        grown: defaultdict[int, int] = defaultdict(int)
        for reached, ways in total.items():
            for value, count in table:
                grown[reached + value] += ways * count
            if len(grown) > MAX_SUMS:
                return None
        total = grown
    return total


def _sample_p_value(pools: Iterable[_PooledCase], observed: int, random: Random, samples: int) -> float:
    totals = [0] * samples
    for pool in pools:  # one at a time, because there may be thousands
        totals = list(map(add, totals, pool.sample(random, samples)))
    return (1 + sum(total >= observed for total in totals)) / (1 + samples)
