"""The statistics of the final test: is the best profile of the search better than the baseline on these cases?

Both profiles are run again in blocks of repeats, with one look at the scores after each block. A look shows a gain if
its p-value is at most its share of alpha. It stops the test early if there is no gain; otherwise the next block is run.
The last block is longer than the others together, and is run only if the look before it is promising: many gains that
six repeats do not show are shown by sixteen, and few tests without a gain get that far. The shares add up to alpha, so
the false-positive rate of the whole test is at most alpha. `decide_for_these_cases` repeats all looks from the scores
in their order: the same scores give the same result, also on resume and in an audit.

The permutation test shows that the profiles behave differently, for the better. That their means differ is more: a
profile that fails rarely but totally may look better than one of the same mean. So a gain must also be above the
failures that were not seen, see `gain_interval`.

If no run noise was seen, six equal repeats say no more than one, and the difference on these cases is simply what it
is. A gain counts as shown if it is unlikely that noise was there but not seen. That probability has two bounds, and the
smaller is used: the p-value of the test, which is tiny if several cases improved and none got worse; and 0.25 **
repeats, the probability that one coin flip among cases without noise looks like this. None of this says anything about
new cases; see `new_cases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.gain_interval import UNSEEN_FAILURES, GainInterval, estimate_gain_interval
from promptiter.evaluation.stats.permutation import (
    PairedScores,
    has_run_noise,
    mean_gain,
    select_first,
    within_case_permutation,
)
from promptiter.wording import plural

Scope: TypeAlias = Literal["these cases", "new cases", "this scorer"]
"""What a result is about: the cases that were run, cases like these, or the scorer of a run without cases."""

FinalTestOutcome: TypeAlias = Literal["shown", "not_shown", "futile", "open", "loss"]
"""`futile`: stopped early because there was no gain. `open`: needs the repeats of the next block.

`loss`: a loss is shown, for new cases; with a margin, a loss above it.
"""

TestName: TypeAlias = Literal["permutation", "betting", "sign", "bounded_mean"]

_ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Further repeats of each case in each arm, and the share of alpha for the look after them.

    An extra block is run only if the look before it is promising.
    """

    repeats: int = 2
    alpha: float
    is_extra: bool = False


PROMISING_P_VALUE = 0.3
"""An extra block is run if the p-value of the look before it is at most this."""

MOST_CASES_IN_EXTRA_BLOCK = 100
"""Larger tests have no extra block: it would take thousands of case runs to show gains that hardly matter."""


def plan_blocks(alpha: float, *, repeats: int = 2) -> tuple[Block, ...]:
    """Three blocks with looks that share this alpha, half of it for the last."""
    return tuple(Block(repeats=repeats, alpha=round(alpha * share, 12)) for share in (0.2, 0.3, 0.5))


def plan_final_test(alpha: float, *, repeats: int = 2) -> tuple[Block, ...]:
    """The blocks of a final test at this alpha: three of these repeats, and an extra one of five times as many."""
    *first, last = (round(alpha * share, 12) for share in (0.2, 0.1, 0.3, 0.4))
    extra = Block(repeats=5 * repeats, alpha=last, is_extra=True)
    return (*(Block(repeats=repeats, alpha=share) for share in first), extra)


def fit_to_cases(blocks: Sequence[Block], cases: int) -> tuple[Block, ...]:
    """The blocks of a test on this number of cases. If it has no extra block, the last of the others gets its alpha."""
    *before, last = blocks
    if not last.is_extra or cases <= MOST_CASES_IN_EXTRA_BLOCK:
        return tuple(blocks)
    return (*before[:-1], replace(before[-1], alpha=round(before[-1].alpha + last.alpha, 12)))


def count_repeats(blocks: Sequence[Block]) -> int:
    """The repeats of each case and arm, without extra blocks."""
    return sum(block.repeats for block in blocks if not block.is_extra)


BLOCKS = plan_final_test(0.05)
THREE_BLOCKS = plan_blocks(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result after a block. Without run noise, `p_value` bounds the probability that noise was there but not seen.

    A look tests for a gain above `-margin`: *better* without a margin, *no worse* with one. Its `alpha` is a share of
    `total_alpha` if there are several looks. `runs` counts the runs of the candidate. A permutation test alone does not
    show a gain: the `interval` must exclude 0 too.
    """

    repeats: int
    gain: float
    p_value: float
    alpha: float
    has_run_noise: bool = True
    margin: float = 0.0
    test: TestName = "permutation"
    number: int = 1
    total_alpha: float | None = None
    runs: int = 0
    interval: GainInterval | None = None

    @classmethod
    def of(
        cls,
        cases: Sequence[PairedScores],
        *,
        p_value: float,
        alpha: float,
        margin: float = 0.0,
        test: TestName = "permutation",
        interval: GainInterval | None = None,
    ) -> Look:
        """A look at the runs of these cases so far."""
        return cls(
            repeats=max(case.repeats_made for case in cases),
            gain=mean_gain(cases),
            p_value=p_value,
            alpha=alpha,
            has_run_noise=has_run_noise(cases),
            margin=margin,
            test=test,
            runs=sum(len(case.after) for case in cases),
            interval=interval,
        )

    @property
    def is_significant(self) -> bool:
        return self.gain > -self.margin and self.p_value <= self.alpha

    @property
    def is_shown(self) -> bool:
        return self.is_significant and not self.may_be_unseen_failures

    @property
    def may_be_unseen_failures(self) -> bool:
        """Whether failures too rare to be seen in these runs could explain the gain."""
        return self.test == "permutation" and self.interval is not None and self.interval.low <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestResult:
    """The outcome for one scope, with the looks it is based on; `needed_repeats` must still be run.

    For goals other than the score, `saving` is the result for the tokens or dollars, and the looks are those of the
    score.
    """

    scope: Scope
    outcome: FinalTestOutcome
    looks: tuple[Look, ...]
    reason: str
    needed_repeats: int = 0
    saving: FinalTestResult | None = None

    @property
    def is_shown(self) -> bool:
        return self.outcome == "shown"

    @property
    def gain(self) -> float | None:
        return self.looks[-1].gain if self.looks else None

    @property
    def p_value(self) -> float | None:
        return self.looks[-1].p_value if self.looks else None

    @property
    def interval(self) -> GainInterval | None:
        """The true gains that the runs of this test agree with."""
        return self.looks[-1].interval if self.looks else None


def decide_for_these_cases(
    cases: Sequence[PairedScores],
    *,
    blocks: Sequence[Block] = BLOCKS,
    worst: float = 0.0,
    best: float = 1.0,
    unseen_failures: float = UNSEEN_FAILURES,
) -> FinalTestResult:
    """Whether the after arm is better on these cases, given the repeats so far; `open` if another block must decide.

    Repeats after the deciding look are not used, so it does not matter whether they were run. Scores are between
    `worst` and `best`. A gain that `unseen_failures` would cancel is not shown.
    """
    lowest, highest = find_range(cases, worst=worst, best=best)

    def take_look(seen: Sequence[PairedScores], block: Block) -> Look:
        interval = estimate_gain_interval(seen, worst=lowest, best=highest, unseen_failures=unseen_failures)
        return look_by_permutation(seen, alpha=block.alpha, interval=interval)

    return decide_in_blocks(cases, blocks, take_look)


def look_by_permutation(cases: Sequence[PairedScores], *, alpha: float, interval: GainInterval) -> Look:
    """Take a look at the runs of these cases so far, by permuting the repeats within each case."""
    p_value = within_case_permutation(cases).p_value
    return Look.of(cases, p_value=bound_by_hidden_noise(p_value, cases), alpha=alpha, interval=interval)


def bound_by_hidden_noise(p_value: float, cases: Sequence[PairedScores]) -> float:
    """The p-value, or without run noise the probability that it was there but not seen, if that is smaller."""
    return p_value if has_run_noise(cases) else min(p_value, 0.25 ** min(case.repeats for case in cases))


def decide_in_blocks(
    cases: Sequence[PairedScores],
    blocks: Sequence[Block],
    take_look: Callable[[Sequence[PairedScores], Block], Look],
    *,
    describe: Callable[[Look], str] | None = None,
) -> FinalTestResult:
    """Take a look after each block until one decides. A loss of the margin or more ends the test early."""
    check_inputs(cases, blocks)
    describe = describe or describe_look
    available = max(case.repeats_made for case in cases)  # some cases may have lost the last of them
    looks: list[Look] = []
    repeats = 0

    def conclude(outcome: FinalTestOutcome, reason: str, *, needed_repeats: int = 0) -> FinalTestResult:
        return FinalTestResult(
            scope="these cases", outcome=outcome, looks=tuple(looks), reason=reason, needed_repeats=needed_repeats
        )

    for number, block in enumerate(blocks, start=1):
        if block.is_extra and looks and looks[-1].p_value > PROMISING_P_VALUE:
            break
        repeats += block.repeats
        if repeats > available:
            so_far = f"{describe(looks[-1])}; " if looks else ""
            reason = f"{so_far}block {number} of {len(blocks)} has not been run"
            return conclude("open", reason, needed_repeats=repeats - available)
        if not (seen := select_first(cases, repeats)):
            continue
        look = replace(take_look(seen, block), number=number, total_alpha=_add_alphas(blocks))
        looks.append(look)
        if look.is_shown:
            return conclude("shown", describe(look))
        if look.gain <= -look.margin:
            return conclude("futile", f"{describe(look)}; stopped after block {number} of {len(blocks)}")
    return conclude("not_shown", describe(looks[-1]))


def describe_look(look: Look) -> str:
    """A look in a few clauses: the gain or loss, what speaks for and against it, and what it does not show."""
    if look.margin:
        return _describe_non_inferiority(look)
    if look.gain <= 0:
        return "no gain" if look.gain == 0 else f"loss of {-look.gain:.3f}"
    gain = describe_gain(look)
    if look.has_run_noise:
        found = f"{gain}, {describe_p_value(look)}"
    else:
        same = f"every case scored the same in {plural(look.repeats, 'repeat')}"
        enough = "so run-to-run noise does not explain it" if look.is_significant else "too few to rule out noise"
        found = f"{gain}; {same}, {enough}"
    if look.is_shown:
        better = "; the profiles behave differently, for the better" if look.has_run_noise else ""
        unseen = f"failures rarer than about 3 in {plural(look.runs, 'run')} would not have been seen"
        return f"{found}{better}; {unseen}"
    if look.is_significant:
        return f"{found}, but failures too rare to be seen in {plural(look.runs, 'run')} could explain it"
    return found


def describe_gain(look: Look) -> str:
    interval = "" if look.interval is None else f" ({look.interval})"
    return f"gain {look.gain:+.3f}{interval}"


def describe_p_value(look: Look) -> str:
    """`p = 0.003 <= 0.01 (the limit for the first look, 0.05 for all looks) after 2 repeats`."""
    total = look.alpha if look.total_alpha is None else look.total_alpha
    ordinal = _ORDINALS[look.number - 1] if look.number <= len(_ORDINALS) else f"{look.number}th"
    share = "" if math.isclose(total, look.alpha) else f" (the limit for the {ordinal} look, {total:g} for all looks)"
    return f"{compare_p_value(look.p_value, look.alpha)}{share} after {plural(look.repeats, 'repeat')}"


def compare_p_value(p_value: float, alpha: float) -> str:
    """`p = 0.003 <= 0.01`."""
    return f"p = {p_value:.2g} {'<=' if p_value <= alpha else '>'} {alpha:.3g}"


def _describe_non_inferiority(look: Look) -> str:
    if look.gain <= -look.margin:
        return f"loss of {-look.gain:.3f}, which is not below the margin of {look.margin:g}"
    gain, figures = describe_gain(look), describe_p_value(look)
    if look.is_shown:
        return f"{gain}, a loss of {look.margin:g} or more is ruled out, {figures}"
    few = "" if look.has_run_noise else "; no run noise was seen, but there are too few runs to rule it out"
    return f"{gain}, a loss of {look.margin:g} or more is not ruled out, {figures}{few}"


def check_inputs(cases: Sequence[PairedScores], blocks: Sequence[Block]) -> None:
    """Raise SetupError if these cases and blocks cannot be tested."""
    if not cases:
        raise SetupError("the final test has no cases; give at least one")
    if len({case.case_id for case in cases}) < len(cases):
        raise SetupError("a case is given twice to the final test; put its repeats in one PairedScores")
    if not blocks or any(block.repeats < 1 or not block.alpha > 0 for block in blocks):
        raise SetupError(
            f"the blocks of the final test are {list(blocks)!r}; give each at least 1 repeat and an alpha above 0"
        )
    if (total := _add_alphas(blocks)) >= 1:
        raise SetupError(f"the alphas of the blocks add up to {total:g}; keep the sum below 1, such as 0.05")


def find_range(cases: Sequence[PairedScores], *, worst: float, best: float) -> tuple[float, float]:
    """The lowest and highest possible score: those expected, or those seen if they are beyond."""
    scores = [score for case in cases for score in (*case.before, *case.after)]
    return min([worst, *scores]), max([best, *scores])


def _add_alphas(blocks: Sequence[Block]) -> float:
    return round(math.fsum(block.alpha for block in blocks), 12)
