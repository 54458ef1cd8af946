"""The interval of a gain on these cases: which true gains the runs of the final test agree with.

Its noise is that between the repeats of a case. That alone would be too narrow, because scores are bounded: a profile
that fails one run in twenty often shows no failure in 24 runs, and then its mean looks better than it is. So the
interval allows for rare runs that were not seen. Its low end allows for total failures of the candidate, and for total
successes of the baseline, where the scores of that arm vary more than those of the other; its high end for the
opposite. Without any run noise, this is as if five more runs of the candidate had the worst score.

In simulations, the interval misses the true gain in about 5% of final tests or less, also if they end early. It
contains 0 in 96% of tests or more in which a constant 0.9, 0.95 or 0.99 is compared with 1 or 0 of the same mean, where
the permutation test alone finds a gain in up to 80%. See `benchmarks.bench_final_test`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from promptiter.evaluation.stats.permutation import PairedScores, mean_gain

UNSEEN_FAILURES = 5
"""Without run noise, a gain must be larger than this number of total failures among the runs of the candidate."""

LEVEL = 0.95
_BELOW, _ABOVE = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.99)
"""Standard errors of the two ends. A test that ends early without a gain has seen too low a gain, so the high end needs
more than 2.5%; chosen by simulation, so that both ends together miss the true gain in 5% of final tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainInterval:
    """The true gains that the runs agree with, at a confidence `level`."""

    low: float
    high: float
    level: float = LEVEL

    def __str__(self) -> str:
        return f"{100 * self.level:.4g}% interval {self.low:+.3f} to {self.high:+.3f}"


def estimate_gain_interval(
    cases: Sequence[PairedScores],
    *,
    worst: float = 0.0,
    best: float = 1.0,
    unseen_failures: float = UNSEEN_FAILURES,
    is_paired: bool = False,
    is_bounded: bool = True,
) -> GainInterval:
    """Estimate the interval of the mean gain on these cases. Scores are between `worst` and `best`.

    If `is_paired`, the arms share answers in each repeat. The noise that both have in common does not count. If not
    `is_bounded`, `worst` is a guess, and the noise that was seen says nothing about rarer runs.
    """
    gain = mean_gain(cases)
    before, after = [case.before for case in cases], [case.after for case in cases]
    noise_before, noise_after = _sum_variances(before), _sum_variances(after)
    if is_paired:
        noise_before, noise_after = _remove_common(noise_before, noise_after, _sum_variances(_subtract(before, after)))
    mean_before, mean_after = (fmean(map(fmean, arm)) for arm in (before, after))

    def find_reach(noisier: float, other: float, *, drop: float, rise: float, errors: float) -> float:
        """How many points, over all runs, the true gain may be away: the hidden part, and run noise."""
        unseen = max(_weigh(noisier, other, drop), _weigh(other, noisier, rise)) if is_bounded else drop
        hidden = unseen_failures / 2 * unseen
        return hidden + math.sqrt(hidden**2 + errors**2 * (noise_before + noise_after))

    below = find_reach(noise_after, noise_before, drop=mean_after - worst, rise=best - mean_before, errors=_BELOW)
    above = find_reach(noise_before, noise_after, drop=mean_before - worst, rise=best - mean_after, errors=_ABOVE)
    runs, widest = sum(map(len, after)), best - worst
    return GainInterval(low=max(gain - below / runs, -widest), high=min(gain + above / runs, widest))


def _weigh(noise: float, other: float, size: float) -> float:
    """The size of an unseen run, weighted by how far this arm, with one such run, is noisier than the other."""
    return max(0.0, size * (1 - other / (noise + size**2))) if size > 0 else 0.0


def _remove_common(noise_before: float, noise_after: float, noise_of_changes: float) -> tuple[float, float]:
    """The noise of each arm without the part that both have in common. The sum of both is that of the changes."""
    common = (noise_before + noise_after - noise_of_changes) / 2
    own_before = min(max(0.0, noise_before - common), noise_of_changes)
    return own_before, noise_of_changes - own_before


def _subtract(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[second - first for first, second in zip(*arms, strict=True)] for arms in zip(before, after, strict=True)]


def _sum_variances(arm: Sequence[Sequence[float]]) -> float:
    """The variance between repeats of a case, summed over all runs; between cases if there are no repeats."""
    repeated = [scores for scores in arm if len(scores) > 1] or [[fmean(scores) for scores in arm]]
    freedom = sum(len(scores) - 1 for scores in repeated)
    if not freedom:
        return 0.0
    return sum(map(len, arm)) * math.fsum(map(_sum_squares, repeated)) / freedom


def _sum_squares(scores: Sequence[float]) -> float:
    if min(scores) == max(scores):
        return 0.0  # exactly, whatever the last digit of the mean
    mean = fmean(scores)
    return math.fsum((score - mean) ** 2 for score in scores)
