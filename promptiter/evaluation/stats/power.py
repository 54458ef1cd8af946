"""Power: how noisy an eval set is, which gains it can show, and how many cases or repeats a gain needs.

Everything is planned from runs of one profile against itself, never from an observed gain: power at the observed gain
only restates its p-value. Three figures describe the runs: the mean score, the variance between repeats of a case, and
the squared distance of cases from the best score. A gain is modelled as fixed failures: a candidate with gain g gives
the best score with probability g / (best - mean), and otherwise the baseline's score. For *these cases* this is sampled
in each repeat, which adds run noise; for *new cases* once per case, which makes cases differ more. A candidate that
also makes some cases worse needs more. The mean gain is taken as normal; with 6 cases or more on *these cases*, 8 on
*new cases*, the power is within 0.06 of that of the exact test. Without run noise, a gain on these cases is shown if
failures that were not seen cannot explain it (`gain_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from random import Random
from statistics import NormalDist, fmean, pstdev

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import BLOCKS, PROMISING_P_VALUE, Block, Scope, count_repeats, fit_to_cases
from promptiter.evaluation.stats.gain_interval import UNSEEN_FAILURES
from promptiter.evaluation.stats.new_cases import FEWEST_NEW_CASES
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.wording import plural

POWER = 0.8
MAX_CASES, MAX_REPEATS = 100_000, 1_000
_NORMAL = NormalDist()
_TRIALS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """The noise of one profile. `variance` is between repeats of a case; `square_room` is the mean over cases of the
    squared distance of their mean from the best score."""

    cases: int
    mean: float
    variance: float
    square_room: float
    best: float = 1.0

    @property
    def room(self) -> float:
        """The largest possible gain."""
        return self.best - self.mean

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)


def estimate_run_noise(repeats: Iterable[Sequence[float]], *, best: float = 1.0) -> RunNoise:
    """Estimate the noise from the repeats of each case, all of one profile (both arms of an A/A run together)."""
    cases = [list(scores) for scores in repeats if scores]
    if all(len(scores) < 2 for scores in cases):
        raise SetupError(
            f"run noise needs a case with at least 2 repeats; got {plural(len(cases), 'case')} with one at most"
        )
    best = max(best, *(max(scores) for scores in cases))
    variance = pooled_std(cases) ** 2
    mean = fmean(map(fmean, cases))
    # The mean of a few repeats is itself noisy: its square is too large by the variance divided by the repeats.
    squares = fmean((best - fmean(scores)) ** 2 - variance / len(scores) for scores in cases)
    return RunNoise(
        cases=len(cases),
        mean=mean,
        variance=variance,
        square_room=min(max(squares, (best - mean) ** 2), max((best - min(map(min, cases))) ** 2, 0.0)),
        best=best,
    )


def pooled_std(repeats: Iterable[Sequence[float]]) -> float:
    """The standard deviation between repeats of a case, pooled over cases. Differences between cases do not count."""
    squares, freedom = [], 0
    for scores in repeats:
        if len(scores) > 1:
            mean = scores[0] if len(set(scores)) == 1 else fmean(scores)  # equal scores have a deviation of exactly 0
            squares += [(score - mean) ** 2 for score in scores]
            freedom += len(scores) - 1
    return math.sqrt(math.fsum(squares) / freedom) if freedom else 0.0


def noise_bar(before: Sequence[float], after: Sequence[float], *, sigma: float = 1.0) -> float:
    """The gain that the sigma rule requires: `sigma` times the pooled spread of whole sweeps over the cases."""
    return sigma * math.hypot(pstdev(before), pstdev(after))


def noise_floor(noise: RunNoise, *, cases: int, repeats: int) -> float:
    """The gain that an A/A comparison exceeds in 5% of all cases, for a number of cases and repeats per arm."""
    return _NORMAL.inv_cdf(0.95) * noise.std * math.sqrt(2 / (cases * repeats))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestPlan:
    """A planned final test: the noise of the agent, the cases, and the blocks of repeats.

    For *new cases* the cases are those of a test set. `unseen_failures` is what a gain on these cases must exceed.
    """

    noise: RunNoise
    cases: int
    blocks: Sequence[Block] = BLOCKS
    scope: Scope = "these cases"
    unseen_failures: float = UNSEEN_FAILURES

    def power(self, gain: float) -> float:
        """The probability that a candidate with this gain is shown to be better."""
        if not 0 < gain <= self.noise.room:
            return 0.0
        blocks = fit_to_cases(self.blocks, self.cases)
        if self.scope != "these cases":
            return _compute_power_on_new_cases(self.noise, gain, self.cases, blocks)
        if not self.noise.variance:
            return float(self._exceeds_unseen_failures(gain))
        return _compute_power_on_these_cases(self.noise, gain, self.cases, blocks)

    def _exceeds_unseen_failures(self, gain: float) -> bool:
        runs = self.cases * sum(block.repeats for block in fit_to_cases(self.blocks, self.cases))
        largest = max(self.noise.mean + gain - (self.noise.best - 1.0), self.noise.room)
        return gain * runs > self.unseen_failures * largest

    def smallest_gain(self) -> float | None:
        """The smallest gain that is shown with a power of POWER; 0 if there is nothing to gain, None if none is."""
        if not self.noise.room:
            return 0.0
        low, high = 0.0, self.noise.room
        if self.power(high) < POWER:
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if self.power(middle) < POWER else (low, middle)
        return high

    def cases_needed(self, gain: float) -> int | None:
        """The number of cases needed to show this gain with a power of POWER; None if no number is enough."""
        return _find_smallest(lambda cases: replace(self, cases=cases).power(gain) >= POWER, MAX_CASES)

    def repeats_needed(self, gain: float) -> int | None:
        """The repeats needed per case and arm, in longer blocks; None if no number is enough."""
        shortest, repeats = min(block.repeats for block in self.blocks), count_repeats(self.blocks)

        def suffices(times: int) -> bool:
            longer = [replace(block, repeats=times * block.repeats // shortest) for block in self.blocks]
            return replace(self, blocks=longer).power(gain) >= POWER

        times = _find_smallest(suffices, MAX_REPEATS * shortest // repeats)
        return None if times is None else times * repeats // shortest


def find_smallest_gain(
    cases: Sequence[PairedScores],
    *,
    blocks: Sequence[Block] = BLOCKS,
    best: float = 1.0,
    unseen_failures: float = UNSEEN_FAILURES,
) -> float | None:
    """The smallest gain that these cases can show, by the noise of the before arm alone.

    None if they can show none, or if no case has 2 repeats, so that the noise is unknown.
    """
    repeats = [case.before for case in cases]
    if all(len(each) < 2 for each in repeats):
        return None
    noise = estimate_run_noise(repeats, best=best)
    plan = FinalTestPlan(noise=noise, cases=len(repeats), blocks=blocks, unseen_failures=unseen_failures)
    return plan.smallest_gain()


def _compute_power_on_these_cases(noise: RunNoise, gain: float, cases: int, blocks: Sequence[Block]) -> float:
    fixed = gain / noise.room
    after = (1 - fixed) * (noise.variance + fixed * noise.square_room)
    both = noise.variance + after
    bars: list[tuple[float, float]] = []
    done = 0
    for block, following in zip_longest(blocks, blocks[1:]):
        done += block.repeats
        # Permuted repeats of a case vary by the difference of the arms, too, not only by their noise.
        permuted = both / 2 + done * fixed**2 * noise.square_room / (2 * (2 * done - 1))
        half_step = 1 / (done * cases)  # for scores of 0 or 1 the bar is between two steps
        error = math.sqrt(2 * permuted / (done * cases))
        least = _find_quantile(PROMISING_P_VALUE) * error if following is not None and following.is_extra else 0.0
        bars.append((_find_quantile(block.alpha) * error + half_step, least))
    spreads = [math.sqrt(both * block.repeats / cases) for block in blocks]
    return fmean(_is_shown(trial, gain, blocks, spreads, bars) for trial in _simulate_trials(len(blocks)))


def _find_quantile(share: float) -> float:
    """What a standard normal variable exceeds with this probability."""
    return _NORMAL.inv_cdf(1 - share)


def _is_shown(
    trial: Sequence[float],
    gain: float,
    blocks: Sequence[Block],
    spreads: Sequence[float],
    bars: Sequence[tuple[float, float]],
) -> bool:
    """Whether a trial reaches the bar of a look. Below the second bar, it ends without a gain."""
    total, done = 0.0, 0
    for shift, block, spread, (bar, least) in zip(trial, blocks, spreads, bars, strict=True):
        total += block.repeats * gain + shift * spread
        done += block.repeats
        if total / done >= bar:
            return True
        if total / done <= least:
            return False
    return False


def _compute_power_on_new_cases(noise: RunNoise, gain: float, cases: int, blocks: Sequence[Block]) -> float:
    alpha, repeats = math.fsum(block.alpha for block in blocks), count_repeats(blocks)
    if cases < FEWEST_NEW_CASES:
        return 0.0
    fixed = gain / noise.room
    variance = max((2 - fixed) * noise.variance / repeats + fixed * noise.square_room - gain**2, 0.0)
    # Gaffke's test adds one case with the largest possible loss, which counts in the mean and in the noise.
    bar = 1 + _NORMAL.inv_cdf(1 - alpha) * math.sqrt(cases * variance + (1 + gain) ** 2)
    above, spread = cases * gain - bar, math.sqrt(cases * variance)
    return _NORMAL.cdf(above / spread) if spread else float(above >= 0)


def _find_smallest(suffices: Callable[[int], bool], most: int) -> int | None:
    high = 1
    while not suffices(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


@lru_cache(maxsize=8)
def _simulate_trials(blocks: int) -> tuple[tuple[float, ...], ...]:
    """The same random numbers for every question, so that a larger gain never has less power by chance."""
    random = Random(0)
    return tuple(tuple(random.gauss() for _ in range(blocks)) for _ in range(_TRIALS))
