"""Non-inferiority: is a profile no worse than the baseline, that is, worse by less than a margin?

This is the final test of goals other than the score, such as a cheaper model or a shorter prompt. Shifting one arm by
the margin and permuting the repeats would not be an honest test: if the baseline always passes and the candidate fails
one run in twenty, 12 cases with 2 repeats show no failure in 29% of all tests, and each of these would look like proof.
Scores are bounded, so a loss may be rare and large, and only enough repeats can rule it out.

The test is therefore a bet (Waudby-Smith and Ramdas 2024). A gambler starts with 1 and bets on each pair of repeats,
after minus before, against the null hypothesis "worse by the margin or more on average". A stake s multiplies the
wealth by 1 + s x (change + margin), which is never negative. With a fixed stake, independent cases and a mean change of
at most -margin, the expected wealth is at most 1 (the product of means is at most the mean to the power of their
number), whatever the distribution of scores and however cases differ. So the probability of ever owning 20 is at most 1
in 20 over all looks together (Ville's inequality): each look may spend the whole alpha. Several gamblers with stakes
from bold to cautious share the starting money, so the noise of the scores need not be known.

One more gambler is for agents without run noise, where six equal repeats say no more than one. Given the first repeats,
a mean loss of `hidden` leaves all further repeats equal with a probability of at most (1 - hidden / 2) to the power of
the number of cells (case and arm) per repeat. This gambler bets at those odds that no repeat ever differs, and loses
everything when one does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import (
    THREE_BLOCKS,
    Block,
    FinalTestResult,
    Look,
    check_inputs,
    decide_in_blocks,
)
from promptiter.evaluation.stats.gain_interval import estimate_gain_interval
from promptiter.evaluation.stats.permutation import PairedScores, has_run_noise, mean_gain

STAKES = (0.9, 0.45, 0.225, 0.1125)
"""The stakes of the gamblers, as shares of the largest that one bet cannot ruin: for rare losses to much noise."""


def decide_non_inferiority(
    cases: Sequence[PairedScores], *, margin: float, blocks: Sequence[Block] = THREE_BLOCKS, spread: float = 1.0
) -> FinalTestResult:
    """Whether the after arm is less than `margin` worse on these cases; `open` if another block must decide.

    `spread` is the largest possible difference of two scores. The test stops early when the loss reaches the margin.
    """
    _check(cases, blocks, margin=margin, spread=spread)
    alpha = math.fsum(block.alpha for block in blocks)
    wealth = 0.0

    def take_look(seen: Sequence[PairedScores], _: Block) -> Look:
        nonlocal wealth
        wealth = max(wealth, _bet_on_these_cases(seen, margin=margin, spread=spread))
        return _take_look(seen, wealth, alpha=alpha, margin=margin)

    return decide_in_blocks(cases, blocks, take_look)


def _bet_on_these_cases(cases: Sequence[PairedScores], *, margin: float, spread: float) -> float:
    changes = [after - before for case in cases for before, after in zip(case.before, case.after, strict=True)]
    return _mix_wealth(
        [
            *_bet_fixed_stakes(changes, margin=margin, spread=spread),
            _bet_on_no_noise(cases, margin=margin, spread=spread),
        ]
    )


def _bet_fixed_stakes(changes: Sequence[float], *, margin: float, spread: float) -> list[float]:
    """The logarithm of the wealth with each stake."""
    counted = sorted(Counter(changes).items())
    stakes = [share / (spread - margin) for share in STAKES]
    return [math.fsum(count * math.log1p(stake * (change + margin)) for change, count in counted) for stake in stakes]


def _bet_on_no_noise(cases: Sequence[PairedScores], *, margin: float, spread: float) -> float:
    """The logarithm of the wealth of betting on no run noise."""
    if has_run_noise(cases):
        return -math.inf
    hidden = min(max(0.0, (mean_gain(cases) + margin) / spread), 1.0)
    repeats = min(len(case.before) for case in cases) - 1
    return -2 * len(cases) * repeats * math.log1p(-hidden / 2)


def _mix_wealth(wealths: Sequence[float]) -> float:
    """The wealth of all gamblers together. They start with equal shares of 1."""
    return math.fsum(math.exp(min(each, 700.0)) for each in wealths) / len(wealths)


def _take_look(cases: Sequence[PairedScores], wealth: float, *, alpha: float, margin: float) -> Look:
    p_value = min(1.0, 1.0 / wealth) if wealth > 0 else 1.0
    interval = estimate_gain_interval(cases)
    return Look.of(cases, p_value=p_value, alpha=alpha, margin=margin, test="betting", interval=interval)


def _check(cases: Sequence[PairedScores], blocks: Sequence[Block], *, margin: float, spread: float) -> None:
    check_inputs(cases, blocks)
    if not 0 < margin < spread:
        raise SetupError(f"the margin is {margin!r}; give a number above 0 and below {spread:g}, such as 0.05")
    scores = [score for case in cases for score in (*case.before, *case.after)]
    if (seen := max(scores) - min(scores)) > spread:
        raise SetupError(f"scores differ by {seen:g}, more than the spread {spread:g}; give a larger spread")
