"""Two profiles on the same repeats: is the second better, worse, or within noise of the first, on these cases?

The test is two-sided: both directions are tested by the rules of the final test, each at half of alpha, so that the
chance to see a difference between profiles that behave alike is at most alpha. Looks and blocks are those of
`final_test`.

The profiles share answers: in a repeat, both have the same ones until a step reads what differs. So the two scores of
a repeat are a pair. If both profiles behave alike, either score could have come from either profile, and the sign of
their difference is a coin flip, whatever they share. The test flips these signs, over all pairs of all cases, and is
exact. A repeat in which nothing that differs was read has a difference of 0 and does not count. As in the final test,
a difference must also be larger than rare results that were not seen, see `gain_interval`; the noise that both profiles
share does not count there either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from promptiter.evaluation.stats.final_test import (
    Block,
    FinalTestResult,
    Look,
    bound_by_hidden_noise,
    decide_in_blocks,
    describe_gain,
    find_range,
    plan_blocks,
)
from promptiter.evaluation.stats.gain_interval import GainInterval, estimate_gain_interval
from promptiter.evaluation.stats.permutation import PairedScores, select_first, sign_flip
from promptiter.wording import plural

ComparisonAnswer: TypeAlias = Literal["improved", "worse", "within_noise", "undecided"]
"""`undecided`: needs the repeats of the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The answer for these cases, with the last look. Without one, too few repeats were run for the first.

    `needed_repeats` must still be run.
    """

    answer: ComparisonAnswer
    look: Look | None
    reason: str
    needed_repeats: int = 0


def decide_difference(
    cases: Sequence[PairedScores],
    *,
    alpha: float = 0.05,
    repeats: int = 2,
    worst: float = 0.0,
    best: float = 1.0,
) -> PairedDifference:
    """Decide whether the after arm is better or worse on these cases, given the repeats so far.

    There are three blocks of `repeats`. Repeats after the deciding look are not used. Scores are between `worst` and
    `best`.
    """
    blocks = plan_blocks(alpha / 2, repeats=repeats)
    swapped = [replace(case, before=case.after, after=case.before) for case in cases]
    worst, best = find_range(cases, worst=worst, best=best)
    gain, loss = (_decide(each, blocks, worst=worst, best=best) for each in (cases, swapped))
    if loss.is_shown:
        return PairedDifference(
            answer="worse", look=_mirror(loss.looks[-1]), reason=_describe(loss, cases, is_loss=True)
        )
    latest = max((gain, loss), key=lambda each: len(each.looks))
    if not latest.looks:
        return PairedDifference(
            answer="undecided", look=None, reason=latest.reason, needed_repeats=latest.needed_repeats
        )
    look, reason = latest.looks[-1], _describe(latest, cases, is_loss=latest is loss)
    found = PairedDifference(
        answer="improved" if gain.is_shown else "within_noise",
        look=_mirror(look) if latest is loss else look,
        reason=reason,
    )
    open_ones = [each.needed_repeats for each in (gain, loss) if each.outcome == "open"]
    if gain.is_shown or not open_ones:
        return found
    return replace(found, answer="undecided", needed_repeats=min(open_ones))


def _decide(cases: Sequence[PairedScores], blocks: Sequence[Block], *, worst: float, best: float) -> FinalTestResult:
    def take_look(seen: Sequence[PairedScores], block: Block) -> Look:
        changes = [after - before for case in seen for before, after in zip(case.before, case.after, strict=True)]
        p_value = bound_by_hidden_noise(sign_flip(changes).p_value, seen)
        interval = estimate_gain_interval(seen, worst=worst, best=best, is_paired=True)
        return Look.of(seen, p_value=p_value, alpha=block.alpha, interval=interval)

    return decide_in_blocks(cases, blocks, take_look)


def _mirror(look: Look) -> Look:
    """The same look, seen from the other profile."""
    interval = look.interval
    if interval is not None:
        interval = GainInterval(low=-interval.high, high=-interval.low, level=interval.level)
    return replace(look, gain=-look.gain, interval=interval)


def _describe(result: FinalTestResult, cases: Sequence[PairedScores], *, is_loss: bool) -> str:
    """The last look in a few clauses: the gain, which is negative for a loss, and what speaks for and against it."""
    look = result.looks[-1]
    repeats = plural(look.repeats, "repeat")
    if look.gain == 0:
        is_mixed = any(case.gain for case in select_first(cases, look.repeats))
        return (
            f"the gains and losses of single cases cancel out in {repeats}"
            if is_mixed
            else f"no difference in {repeats}"
        )
    gain = describe_gain(_mirror(look) if is_loss else look)
    figures = (
        f"p = {look.p_value:.2g} after {repeats}" if look.has_run_noise else f"every case scored the same in {repeats}"
    )
    if look.is_shown or not look.is_significant:
        return f"{gain}, {figures}"
    return f"{gain}, {figures}, but results too rare to be seen in {plural(look.runs, 'run')} could explain it"
