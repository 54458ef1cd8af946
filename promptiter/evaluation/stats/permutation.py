"""Exact tests of whether the repeats of one arm are better than those of the other.

Two questions, two tests, one machinery. *These cases*: if both arms behave alike, the repeats of a case could have come
up in either arm, so each way to deal them out is as likely as the one that was seen. *New cases*: if a change helps as
often as it hurts, the sign of each case's change is a coin flip; that is the same deal with one repeat in each arm.

The statistic is the mean over cases of (mean after - mean before). Its distribution is found by convolution over the
cases, in integers, so that ties are ties; an outcome as good as the observed one counts against the claim. A score is
read as the simplest fraction it stands for (three thirds make one), or else to nine digits. That is a fixed function of
the pooled repeats, so the test keeps its error exactly: rounding can cost power, never honesty.

Scores of many digits have too many sums to list. Then the deals are sampled, with a fixed seed, and the observed one
counts among them: (1 + as good) / (1 + samples) keeps the error level too (Phipson and Smyth 2010), only the p-value
scatters, by `error`. A coarser grid would be exact again, but too coarse to be of use: with 100 cases and 6 repeats,
steps of 0.05 already take longer than the samples.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import TypeAlias

from promptiter.errors import SetupError

MOST_STEPS = 4_000_000
"""So many products the convolution may take, about a second; beyond, deals are sampled."""

MOST_SUMS = 100_000
"""So many different sums are held in memory, of one case or of all; beyond, deals are sampled."""

SAMPLES = 9_999
"""Sampled deals: near an error of 0.01 the p-value scatters by 0.001."""

_LARGEST_DENOMINATOR, _NEAR, _DIGITS = 1_000, Fraction(1, 10**9), 10**9

_Sums: TypeAlias = tuple[tuple[int, int], ...]
"""The sums that the after arm of one case can get, each with the number of deals that give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """The scores of one case under two profiles, higher is better, in the order of the repeats."""

    case_id: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.before or not self.after:
            raise SetupError(f"case {self.case_id!r} has no repeat in one of its arms; count a failed run as the worst")
        if wrong := [score for score in (*self.before, *self.after) if not math.isfinite(score)]:
            raise SetupError(f"case {self.case_id!r} has the score {wrong[0]!r}; give finite numbers")

    @property
    def gain(self) -> float:
        return math.fsum(self.after) / len(self.after) - math.fsum(self.before) / len(self.before)

    @property
    def repeats(self) -> int:
        """How many repeats both arms have."""
        return min(len(self.before), len(self.after))

    def first(self, repeats: int) -> PairedScores:
        return PairedScores(case_id=self.case_id, before=self.before[:repeats], after=self.after[:repeats])


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationTest:
    """How likely such a gain or more is by chance; `error` is the standard error of the p-value, 0 if it is exact."""

    gain: float
    p_value: float
    error: float = 0.0


def within_case_permutation(cases: Iterable[PairedScores], *, seed: int = 0) -> PermutationTest:
    """One-sided: is the after arm better on these cases, beyond what run noise makes of equal arms?

    Exact if the repeats are independent. With common repeats (one seed for both arms of a repeat) arms that behave
    alike come out closer to each other than a deal does, so it errs less often still.
    """
    return _run_test(sorted(cases, key=lambda case: case.case_id), seed)


def sign_flip(deltas: Sequence[float], *, seed: int = 0) -> PermutationTest:
    """One-sided: is the mean of these changes, one a case, above what coin flips for their signs would give?

    Exact if a change that helps nobody is as likely to lift a case by some amount as to lower it by as much.
    """
    return _run_test([PairedScores(case_id="", before=(0.0,), after=(delta,)) for delta in sorted(deltas)], seed)


def has_run_noise(cases: Iterable[PairedScores]) -> bool:
    """Whether some case differs from itself: two repeats of it, in the same arm, with different scores."""
    return any(len(set(arm)) > 1 for case in cases for arm in (case.before, case.after))


def mean_gain(cases: Sequence[PairedScores]) -> float:
    """The mean over cases of the gain of each; rounded to 12 digits, so that 0.7 after 0.2 is 0.5."""
    if not cases:
        raise SetupError("there are no cases to compare; give at least one")
    return round(math.fsum(case.gain for case in cases) / len(cases), 12) + 0.0  # no -0.0


def _run_test(cases: Sequence[PairedScores], seed: int) -> PermutationTest:
    gain = mean_gain(cases)
    deals = [
        deal for deal in _make_deals(cases) if len(set(deal.pooled)) > 1
    ]  # equal repeats can be dealt in one way only
    tables = [deal.sums for deal in deals]
    observed = sum(deal.observed for deal in deals)
    known = [table for table in tables if table is not None]
    total = _convolve(known) if len(known) == len(tables) else None
    if total is None:
        p_value = _sample_p_value(deals, observed, Random(seed))
        return PermutationTest(gain=gain, p_value=p_value, error=math.sqrt(p_value * (1 - p_value) / SAMPLES))
    as_good = sum(ways for outcome, ways in total.items() if outcome >= observed)
    p_value = float(Fraction(as_good, sum(total.values())))
    return PermutationTest(gain=gain, p_value=max(p_value, sys.float_info.min))


@dataclass(frozen=True, slots=True)
class _Deal:
    """The repeats of one case as integers, weighted so that the sums of all after arms together order the gains."""

    pooled: tuple[int, ...]
    after: int
    observed: int

    @property
    def sums(self) -> _Sums | None:
        return _count_sums(self.pooled, self.after)

    def samples(self, random: Random) -> list[int]:
        if (sums := self.sums) is not None:
            return random.choices([value for value, _ in sums], [ways for _, ways in sums], k=SAMPLES)
        return [sum(random.sample(self.pooled, self.after)) for _ in range(SAMPLES)]


def _make_deals(cases: Sequence[PairedScores]) -> list[_Deal]:
    integers = _scale_to_integers({score for case in cases for score in (*case.before, *case.after)})
    # Given the pooled repeats, a case's gain is (1/after + 1/before) times the sum of its after arm, less a constant.
    weights = [Fraction(1, len(case.after)) + Fraction(1, len(case.before)) for case in cases]
    unit = math.lcm(*(weight.denominator for weight in weights))
    shared = math.gcd(*(int(weight * unit) for weight in weights))
    deals = []
    for case, weight in zip(cases, weights, strict=True):
        factor = int(weight * unit) // shared
        after = [integers[score] * factor for score in case.after]
        pooled = sorted(after + [integers[score] * factor for score in case.before])
        deals.append(_Deal(tuple(pooled), len(after), sum(after)))
    return deals


def _scale_to_integers(scores: Iterable[float]) -> dict[float, int]:
    """Scores as multiples of their common unit, or of 1e-9 if they have no simple one."""
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
        if sum(map(len, ways)) > MOST_SUMS:
            return None
    return tuple(ways[after].items())


def _convolve(tables: Iterable[_Sums]) -> dict[int, int] | None:
    """In how many ways each total comes up; None if that takes too long."""
    total, steps = {0: 1}, 0
    for table in sorted(tables, key=len):
        steps += len(total) * len(table)
        if steps > MOST_STEPS:
            return None
        grown: defaultdict[int, int] = defaultdict(int)
        for reached, ways in total.items():
            for value, count in table:
                grown[reached + value] += ways * count
            if len(grown) > MOST_SUMS:
                return None
        total = grown
    return total


def _sample_p_value(deals: Iterable[_Deal], observed: int, random: Random) -> float:
    totals = map(sum, zip(*(deal.samples(random) for deal in deals), strict=True))
    return (1 + sum(total >= observed for total in totals)) / (1 + SAMPLES)
