"""The other claim: is a profile no worse than the baseline, or worse by less than a margin?

For goals besides the score: a cheaper model, a shorter prompt. To shift one arm by the margin and deal the repeats out
anew would be no honest test: where the baseline always passes and the candidate fails one run in twenty, 12 cases with
2 repeats show no failure in 29% of all claims, and each of them would look like proof. Scores have an end, so a loss
may be rare and large, and nothing but enough repeats can exclude it.

So the claim is a bet (Waudby-Smith and Ramdas 2024). A gambler starts with 1 and bets on each pair of repeats, after
less before, against the null hypothesis "worse by the margin or more on average": a stake s makes 1 + s x (change +
margin) of what they have, and never less than nothing. With a fixed stake, cases that are independent, and a mean
change of at most -margin, what they own has a mean of at most 1 (the product of means is at most the mean to their
number), whatever the scores are like and however cases differ. So the chance that they ever own 20 is at most 1 in 20,
at all looks together (Ville): each look may spend the whole error. Several gamblers with stakes from bold to cautious
share the money, so nobody has to know how noisy the scores are.

One more gambler knows agents without run noise, of which six equal repeats say what one says. Given the first repeats,
repeats that are all equal hide a mean loss of `hidden` with a chance of at most (1 - hidden / 2) to the number of cells
(case and arm) for each repeat. They bet that no repeat ever differs, at those odds, and lose all when one does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import BLOCKS, Block, FinalTestResult, Look, Scope, check_inputs
from promptiter.evaluation.stats.permutation import PairedScores, has_run_noise, mean_gain

STAKES = (0.9, 0.45, 0.225, 0.1125)
"""What the gamblers bet, as shares of the most that cannot ruin them at once: rare losses to much noise."""


def decide_non_inferiority(
    cases: Sequence[PairedScores], *, margin: float, blocks: Sequence[Block] = BLOCKS, spread: float = 1.0
) -> FinalTestResult:
    """Whether the after arm is less than `margin` worse on these cases; `open` as long as a further block decides.

    `spread` is how far two scores can be apart. Given up when the loss reaches the margin.
    """
    check_inputs(cases, blocks)
    _check(cases, margin=margin, spread=spread)
    alpha, available = math.fsum(block.alpha for block in blocks), min(case.repeats for case in cases)
    looks: list[Look] = []
    repeats, wealth = 0, 0.0
    for number, block in enumerate(blocks, start=1):
        repeats += block.repeats
        if repeats > available:
            told = f"{_describe_look(looks[-1])}; " if looks else ""
            return FinalTestResult(
                scope="these cases",
                outcome="open",
                looks=tuple(looks),
                reason=f"{told}block {number} of {len(blocks)} is to be run",
                needed_repeats=repeats - available,
            )
        seen = [case.first(repeats) for case in cases]
        wealth = max(wealth, _bet_on_these_cases(seen, margin=margin, spread=spread))
        looks.append(_take_look(seen, repeats, wealth, alpha=alpha, margin=margin))
        if looks[-1].claims:
            return _conclude("these cases", looks)
        if looks[-1].gain <= -margin:
            return _conclude("these cases", looks, is_futile=True)
    return _conclude("these cases", looks)


def decide_non_inferiority_for_new_cases(
    cases: Sequence[PairedScores], *, margin: float, alpha: float = 0.05, spread: float = 1.0
) -> FinalTestResult:
    """The same for cases like these, none of which the search ever used: one look, and one bet for each case."""
    check_inputs(cases, [Block(repeats=1, alpha=alpha)])
    _check(cases, margin=margin, spread=spread)
    wealth = _mix_wealth(_bet_fixed_stakes([case.gain for case in cases], margin=margin, spread=spread))
    look = _take_look(cases, min(case.repeats for case in cases), wealth, alpha=alpha, margin=margin)
    return _conclude("new cases", [look])


def _bet_on_these_cases(cases: Sequence[PairedScores], *, margin: float, spread: float) -> float:
    changes = [after - before for case in cases for before, after in zip(case.before, case.after, strict=True)]
    return _mix_wealth(
        [
            *_bet_fixed_stakes(changes, margin=margin, spread=spread),
            _bet_on_no_noise(cases, margin=margin, spread=spread),
        ]
    )


def _bet_fixed_stakes(changes: Sequence[float], *, margin: float, spread: float) -> list[float]:
    """The logarithm of what each stake has made of 1."""
    counted = sorted(Counter(changes).items())
    stakes = [share / (spread - margin) for share in STAKES]
    return [math.fsum(count * math.log1p(stake * (change + margin)) for change, count in counted) for stake in stakes]


def _bet_on_no_noise(cases: Sequence[PairedScores], *, margin: float, spread: float) -> float:
    """The logarithm of what betting on no run noise has made of 1."""
    if has_run_noise(cases):
        return -math.inf
    hidden = min(max(0.0, (mean_gain(cases) + margin) / spread), 1.0)
    repeats = min(case.repeats for case in cases) - 1
    return -2 * len(cases) * repeats * math.log1p(-hidden / 2)


def _mix_wealth(wealths: Sequence[float]) -> float:
    """What the gamblers own together, each having started with an equal share of 1."""
    return math.fsum(math.exp(min(each, 700.0)) for each in wealths) / len(wealths)


def _take_look(cases: Sequence[PairedScores], repeats: int, wealth: float, *, alpha: float, margin: float) -> Look:
    return Look(
        repeats=repeats,
        gain=mean_gain(cases),
        p_value=min(1.0, 1.0 / wealth) if wealth > 0 else 1.0,
        alpha=alpha,
        has_run_noise=has_run_noise(cases),
        margin=margin,
    )


def _conclude(scope: Scope, looks: Sequence[Look], *, is_futile: bool = False) -> FinalTestResult:
    last = looks[-1]
    if last.claims:
        return FinalTestResult(scope=scope, outcome="shown", looks=tuple(looks), reason=_describe_look(last))
    if is_futile:
        return FinalTestResult(
            scope=scope, outcome="futile", looks=tuple(looks), reason=f"{_describe_look(last)}: given up"
        )
    return FinalTestResult(scope=scope, outcome="not_shown", looks=tuple(looks), reason=_describe_look(last))


def _describe_look(look: Look) -> str:
    gain = f"gain {look.gain:+.3f}"
    if look.gain <= -look.margin:
        return f"{gain} is a loss of the margin {look.margin:g} or more"
    sign = "<=" if look.claims else ">"
    figures = f"p = {look.p_value:.2g} {sign} {look.alpha:g} after {look.repeats} repeats"
    if look.claims:
        return f"{gain}, no worse by {look.margin:g} or more, {figures}"
    few = "" if look.has_run_noise else "; no run noise was seen, but so few runs may hide such a loss"
    return f"{gain}, but a loss of {look.margin:g} is not excluded, {figures}{few}"


def _check(cases: Sequence[PairedScores], *, margin: float, spread: float) -> None:
    if not 0 < margin < spread:
        raise SetupError(f"the margin is {margin!r}; give a number above 0 and below {spread:g}, such as 0.05")
    scores = [score for case in cases for score in (*case.before, *case.after)]
    if (seen := max(scores) - min(scores)) > spread:
        raise SetupError(f"scores are {seen:g} apart, which is more than the spread {spread:g}; give a larger spread")
