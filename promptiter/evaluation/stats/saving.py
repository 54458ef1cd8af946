"""Savings: does the candidate take fewer tokens or dollars than the baseline, beyond run noise?

The runs are those of the final test, in the same blocks and with the same looks as the test of the score. The amounts
of a case are permuted between the arms, which needs no assumption about their distribution. As with scores, a saving
must be above what runs that were not seen could cost (see `gain_interval`). Amounts have no upper bound, so an unseen
run is taken to cost twice what its case takes, or as much more than that as any run that was seen. Where cases differ
in length, the long ones count by their share of the total. Rarer runs that cost many times as much cannot be excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from promptiter.errors import SetupError
from promptiter.evaluation.stats.bounded_mean import compute_p_value
from promptiter.evaluation.stats.final_test import (
    THREE_BLOCKS,
    Block,
    FinalTestResult,
    Look,
    check_inputs,
    compare_p_value,
    decide_in_blocks,
    describe_p_value,
    look_by_permutation,
)
from promptiter.evaluation.stats.gain_interval import GainInterval, estimate_gain_interval
from promptiter.evaluation.stats.new_cases import explain_too_few_new_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.wording import plural


def decide_saving(
    amounts: Sequence[PairedScores],
    *,
    unit: str = "tokens",
    blocks: Sequence[Block] = THREE_BLOCKS,
) -> FinalTestResult:
    """Whether the after arm takes less on these cases, given what each run took; `open` if another block must decide.

    The gain of each look is the saving as a share of what the baseline took.
    """
    check_inputs(amounts, blocks)
    if wrong := [case.case_id for case in amounts if min((*case.before, *case.after)) < 0]:
        raise SetupError(f"case {wrong[0]!r} took a negative number of {unit}; give what its runs took")

    def take_look(seen: Sequence[PairedScores], block: Block) -> Look:
        return look_by_permutation(
            _scale_to_shares(seen),
            alpha=block.alpha,
            interval=estimate_saving_interval(seen),
        )

    return decide_in_blocks(amounts, blocks, take_look, describe=lambda look: _describe_saving(look, unit))


def estimate_saving_interval(amounts: Sequence[PairedScores]) -> GainInterval:
    """Estimate the interval of the saving on these cases, as a share of what the baseline took."""
    shares = _scale_to_shares(amounts)
    excess = max(fmean(case.after) - min(case.after) for case in shares)
    mean_after = fmean(fmean(case.after) for case in shares)
    worst = mean_after - max(_find_typical_length(shares), excess)
    return estimate_gain_interval(shares, worst=worst, best=0.0, is_bounded=False)


def decide_saving_for_new_cases(
    amounts: Sequence[PairedScores], *, unit: str = "tokens", alpha: float = 0.05
) -> FinalTestResult:
    """Whether cases like these take less in all: Gaffke's test, with one look and one change per case.

    A case that was not seen is taken to cost twice as much as before, or as much more as any that was seen.
    """
    check_inputs(amounts, [Block(repeats=1, alpha=alpha)])
    if (few := explain_too_few_new_cases(len(amounts))) is not None:
        return FinalTestResult(scope="new cases", outcome="not_shown", looks=(), reason=few)
    shares = _scale_to_shares(amounts)
    gains = [case.gain for case in shares]
    p_value = compute_p_value(gains, worst=min(-_find_typical_length(shares), *gains))
    look = Look.of(shares, p_value=p_value, alpha=alpha, test="bounded_mean")
    saved = f"{abs(look.gain):.1%} {'fewer' if look.gain >= 0 else 'more'} {unit}"
    fewer = f"fewer in {sum(gain > 0 for gain in gains)} of {plural(len(amounts), 'case')}"
    return FinalTestResult(
        scope="new cases",
        outcome="shown" if look.is_shown else "not_shown",
        looks=(look,),
        reason=f"{saved}, {fewer}, {compare_p_value(p_value, alpha)} by Gaffke's test for bounded means",
    )


def _find_typical_length(shares: Sequence[PairedScores]) -> float:
    """What the case of a typical token takes under the baseline: longer cases have more of them."""
    lengths = [-fmean(case.before) for case in shares]
    return sum(length**2 for length in lengths) / (sum(lengths) or 1.0)


def _scale_to_shares(amounts: Sequence[PairedScores]) -> list[PairedScores]:
    """The amounts as negative shares of what a run of the baseline takes on average: higher is better."""
    mean = fmean(fmean(case.before) for case in amounts) or 1.0
    return [
        PairedScores(
            case_id=case.case_id,
            before=tuple(-amount / mean for amount in case.before),
            after=tuple(-amount / mean for amount in case.after),
            numbers=case.numbers,
        )
        for case in amounts
    ]


def _describe_saving(look: Look, unit: str) -> str:
    if look.gain <= 0:
        return f"no {unit} are saved" if look.gain == 0 else f"{-look.gain:.1%} more {unit}"
    assert look.interval is not None, "a look at a saving has an interval"
    low, high = 100 * look.interval.low, 100 * look.interval.high
    found = f"{look.gain:.1%} fewer {unit} ({100 * look.interval.level:g}% interval {low:.1f} to {high:.1f}%)"
    found = f"{found}, {describe_p_value(look)}"
    runs = plural(look.runs, "run")
    if look.is_shown:
        return f"{found}; runs of over twice the {unit}, rarer than about 3 in {runs}, would not have been seen"
    return f"{found}, but runs too rare to be seen in {runs} could take more" if look.is_significant else found
