"""The final test for new cases: is the candidate better on cases like these, none of which taught the search anything?

Each case counts once, with the mean of its repeats: repeats reduce its noise, but are not additional evidence. The same
holds for cases with the same input, which are merged. There is one look, at the end. The changes of the cases are
tested with Gaffke's test for bounded means, which is the exact sign test if every change is -1, 0 or +1 (see
`bounded_mean`). A loss is tested the same way, in the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from promptiter.evaluation.stats.bounded_mean import compute_p_value, find_lower_bound
from promptiter.evaluation.stats.final_test import (
    Block,
    FinalTestOutcome,
    FinalTestResult,
    Look,
    TestName,
    check_inputs,
    compare_p_value,
    describe_gain,
    find_range,
)
from promptiter.evaluation.stats.gain_interval import GainInterval
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.grouping import group_by
from promptiter.wording import plural

FEWEST_NEW_CASES = 8
"""Fewer cases decide nothing: 5 that all rise from 0 to 1 have a p-value of 0.03, and smaller gains cannot be shown."""

_NAMES: dict[TestName, str] = {"sign": "the sign test", "bounded_mean": "Gaffke's test for bounded means"}


def explain_too_few_new_cases(count: int) -> str | None:
    """Say that this number of cases decides nothing about new cases; None if it is enough."""
    if count >= FEWEST_NEW_CASES:
        return None
    return f"{plural(count, 'case')} cannot decide about new cases; give at least {FEWEST_NEW_CASES}"


def merge_cases(cases: Sequence[PairedScores], keys: Mapping[str, str]) -> tuple[PairedScores, ...]:
    """Merge the cases that have the same key into one, with the mean of their scores in each repeat."""
    return tuple(map(_merge, group_by(cases, lambda case: keys[case.case_id]).values()))


def _merge(cases: Sequence[PairedScores]) -> PairedScores:
    if len(cases) == 1:
        return cases[0]
    runs = [
        run for case in cases for run in zip(case.numbers or range(case.repeats), case.before, case.after, strict=False)
    ]
    repeats = group_by(sorted(runs), lambda run: run[0])
    return PairedScores(
        case_id=cases[0].case_id,
        before=tuple(fmean(before for _, before, _ in each) for each in repeats.values()),
        after=tuple(fmean(after for _, _, after in each) for each in repeats.values()),
        numbers=tuple(repeats),
    )


def decide_for_new_cases(
    cases: Sequence[PairedScores], *, alpha: float = 0.05, margin: float = 0.0, worst: float = 0.0, best: float = 1.0
) -> FinalTestResult:
    """Whether cases like these get better: `shown`, `loss` if it is shown that they get worse, or `not_shown`.

    With a margin, `shown` means no worse by the margin or more, and `loss` worse by more than it.
    """
    check_inputs(cases, [Block(repeats=1, alpha=alpha)])
    if (few := explain_too_few_new_cases(len(cases))) is not None:
        return FinalTestResult(scope="new cases", outcome="not_shown", looks=(), reason=few)
    lowest, highest = find_range(cases, worst=worst, best=best)
    spread = highest - lowest
    gains = [case.gain for case in cases]
    losses = [-gain for gain in gains]
    test: TestName = "sign" if not margin and _has_whole_changes(gains, spread) else "bounded_mean"
    look = Look.of(
        cases,
        p_value=compute_p_value(gains, worst=-spread, mean=-margin),
        alpha=alpha,
        margin=margin,
        test=test,
        interval=GainInterval(
            low=find_lower_bound(gains, worst=-spread, alpha=alpha),
            high=-find_lower_bound(losses, worst=-spread, alpha=alpha),
            level=1 - 2 * alpha,
        ),
    )
    of_loss = compute_p_value(losses, worst=-spread, mean=margin)
    outcome: FinalTestOutcome = "shown" if look.is_shown else "loss" if of_loss <= alpha else "not_shown"
    how = f"by {_NAMES[test]} over {plural(len(cases), 'case')}"
    return FinalTestResult(
        scope="new cases", outcome=outcome, looks=(look,), reason=f"{_describe(look, of_loss=of_loss)} {how}"
    )


def _has_whole_changes(gains: Sequence[float], spread: float) -> bool:
    return all(abs(gain) in (0.0, spread) for gain in gains)


def _describe(look: Look, *, of_loss: float) -> str:
    is_loss = of_loss <= look.alpha
    p_value = of_loss if is_loss else look.p_value
    figures = compare_p_value(p_value, look.alpha)
    if is_loss:
        beyond = f", more than the margin of {look.margin:g}" if look.margin else ""
        return f"loss of {-look.gain:.3f} ({look.interval}){beyond}, {figures}"
    if not look.margin:
        return f"{describe_gain(look)}, {figures}"
    ruled_out = "is ruled out" if look.is_shown else "is not ruled out"
    return f"{describe_gain(look)}, a loss of {look.margin:g} or more {ruled_out}, {figures}"
