"""Two profiles on the same repeats: is the second better, worse, or within noise of the first, on these cases?

The test is two-sided: both directions are tested by the rules of the final test, each at half of alpha, so that the
chance to see a difference between profiles that behave alike is at most alpha. Looks and blocks are those of
`final_test`.

The profiles share answers: in a repeat, both have the same ones until a step reads what differs. So the two scores of
a repeat are a pair. If both profiles behave alike, either score could have come from either profile, and the sign of
their difference is a coin flip, whatever they share. The test flips these signs, over all pairs of all cases, and is
exact. A repeat in which nothing that differs was read has a difference of 0 and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from promptiter.evaluation.stats.final_test import Block, FinalTestResult, Look, decide_in_blocks, plan_blocks
from promptiter.evaluation.stats.permutation import PairedScores, has_run_noise, mean_gain, sign_flip
from promptiter.wording import plural

Answer: TypeAlias = Literal["improved", "worse", "within_noise", "undecided"]
"""`undecided`: needs the repeats of the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The answer for these cases, with the look it is based on. `needed_repeats` must still be run."""

    answer: Answer
    look: Look | None
    reason: str
    needed_repeats: int = 0


def decide_difference(
    cases: Sequence[PairedScores], *, alpha: float = 0.05, repeats: int = 2, seed: int = 0
) -> PairedDifference:
    """Decide whether the after arm is better or worse on these cases, given the repeats so far.

    There are three blocks of `repeats`. Repeats after the deciding look are not used.
    """
    blocks = plan_blocks(alpha / 2, repeats=repeats)
    gain = _decide(cases, blocks, seed)
    loss = _decide([replace(case, before=case.after, after=case.before) for case in cases], blocks, seed)
    if gain.is_shown:
        return PairedDifference(answer="improved", look=gain.looks[-1], reason=_describe(gain.looks[-1], "gain"))
    if loss.is_shown:
        return PairedDifference(answer="worse", look=_mirror(loss.looks[-1]), reason=_describe(loss.looks[-1], "loss"))
    open_ones = [each for each in (gain, loss) if each.outcome == "open"]
    latest = max((gain, loss), key=lambda each: len(each.looks))
    look = None if not latest.looks else latest.looks[-1] if latest is gain else _mirror(latest.looks[-1])
    if open_ones:
        needed = min(each.needed_repeats for each in open_ones)
        return PairedDifference(answer="undecided", look=look, reason=open_ones[0].reason, needed_repeats=needed)
    return PairedDifference(answer="within_noise", look=look, reason=_describe_noise(latest, is_gain=latest is gain))


def _decide(cases: Sequence[PairedScores], blocks: Sequence[Block], seed: int) -> FinalTestResult:
    return decide_in_blocks(cases, blocks, lambda seen, block: _take_look(seen, alpha=block.alpha, seed=seed))


def _take_look(cases: Sequence[PairedScores], *, alpha: float, seed: int) -> Look:
    pairs = [(before, after) for case in cases for before, after in zip(case.before, case.after, strict=True)]
    test = sign_flip([after - before for before, after in pairs], seed=seed)
    has_noise, fewest = has_run_noise(cases), min(case.repeats for case in cases)
    return Look(
        repeats=max(case.repeats_made for case in cases),
        gain=mean_gain(cases),
        p_value=test.p_value if has_noise else min(test.p_value, 0.25**fewest),
        alpha=alpha,
        has_run_noise=has_noise,
    )


def _mirror(look: Look) -> Look:
    """The same look, seen from the other profile."""
    return replace(look, gain=-look.gain)


def _describe(look: Look, what: Literal["gain", "loss"]) -> str:
    figures = f"p = {look.p_value:.2g} <= {look.alpha:g} after {plural(look.repeats, 'repeat')}"
    return f"{what} of {look.gain:.3f}, {figures}"


def _describe_noise(result: FinalTestResult, *, is_gain: bool) -> str:
    look = result.looks[-1]
    if look.gain == 0:
        return f"no difference in {plural(look.repeats, 'repeat')}"
    what = "gain" if (look.gain > 0) == is_gain else "loss"
    return f"{what} of {abs(look.gain):.3f}, which {plural(look.repeats, 'repeat')} cannot tell from noise"
