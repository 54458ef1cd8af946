"""The statistics of the final test: is the best profile of the search better than the baseline?

Both profiles are run again in blocks of repeats, with one look at the scores after each block. A look shows a gain if
its p-value is at most its share of alpha. It stops the test early if there is no gain; otherwise the next block is run.
The shares add up to alpha, so the false-positive rate of the whole test is at most alpha. `decide_for_these_cases`
repeats all looks from the scores in their order: the same scores give the same result, also on resume and in an audit.

If no run noise was seen, six equal repeats say no more than one, and the difference on these cases is simply what it
is. A gain counts as shown if it is unlikely that noise was there but not seen. That probability has two bounds, and the
smaller is used: the p-value of the test, which is tiny if several cases improved and none got worse; and 0.25 **
repeats, the probability that one coin flip among cases without noise looks like this. None of this says anything about
new cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import (
    PairedScores,
    has_run_noise,
    select_first,
    sign_flip,
    within_case_permutation,
)
from promptiter.wording import plural

Scope: TypeAlias = Literal["these cases", "new cases", "this scorer"]
"""What a result is about: the cases that were run, cases like these, or the scorer of a run without cases."""

FinalTestOutcome: TypeAlias = Literal["shown", "not_shown", "futile", "open"]
"""`futile`: stopped early because there was no gain. `open`: needs the repeats of the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Further repeats of each case in each arm, and the share of alpha for the look after them."""

    repeats: int = 2
    alpha: float


def plan_blocks(alpha: float, *, repeats: int = 2) -> tuple[Block, ...]:
    """The blocks of a final test at this alpha, most of which is spent on the last look."""
    return tuple(Block(repeats=repeats, alpha=round(alpha * share, 12)) for share in (0.2, 0.3, 0.5))


BLOCKS = plan_blocks(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result after a block. Without run noise, `p_value` bounds the probability that noise was there but not seen.

    A look tests for a gain above `-margin`: *better* without a margin, *no worse* with one.
    """

    repeats: int
    gain: float
    p_value: float
    alpha: float
    has_run_noise: bool = True
    margin: float = 0.0

    @property
    def is_shown(self) -> bool:
        return self.gain > -self.margin and self.p_value <= self.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestResult:
    """The outcome for one scope, with the looks it is based on; `needed_repeats` must still be run."""

    scope: Scope
    outcome: FinalTestOutcome
    looks: tuple[Look, ...]
    reason: str
    needed_repeats: int = 0

    @property
    def is_shown(self) -> bool:
        return self.outcome == "shown"

    @property
    def gain(self) -> float | None:
        return self.looks[-1].gain if self.looks else None

    @property
    def p_value(self) -> float | None:
        return self.looks[-1].p_value if self.looks else None


def decide_for_these_cases(
    cases: Sequence[PairedScores], *, blocks: Sequence[Block] = BLOCKS, seed: int = 0
) -> FinalTestResult:
    """Whether the after arm is better on these cases, given the repeats so far; `open` if another block must decide.

    Repeats after the deciding look are not used, so it does not matter whether they were run.
    """
    return decide_in_blocks(cases, blocks, lambda seen, block: _take_look(seen, alpha=block.alpha, seed=seed))


def decide_in_blocks(
    cases: Sequence[PairedScores], blocks: Sequence[Block], take_look: Callable[[Sequence[PairedScores], Block], Look]
) -> FinalTestResult:
    """Take a look after each block until one decides. A loss of the margin or more ends the test early."""
    check_inputs(cases, blocks)
    available = max(case.repeats_made for case in cases)  # some cases may have lost the last of them
    looks: list[Look] = []
    repeats = 0

    def conclude(outcome: FinalTestOutcome, reason: str, *, needed_repeats: int = 0) -> FinalTestResult:
        return FinalTestResult(
            scope="these cases", outcome=outcome, looks=tuple(looks), reason=reason, needed_repeats=needed_repeats
        )

    for number, block in enumerate(blocks, start=1):
        repeats += block.repeats
        if repeats > available:
            so_far = f"{describe_look(looks[-1])}; " if looks else ""
            reason = f"{so_far}block {number} of {len(blocks)} has not been run"
            return conclude("open", reason, needed_repeats=repeats - available)
        look = take_look(select_first(cases, repeats), block)
        looks.append(look)
        if look.is_shown:
            return conclude("shown", describe_look(look))
        if look.gain <= -look.margin:
            return conclude("futile", f"{describe_look(look)}; stopped after block {number} of {len(blocks)}")
    return conclude("not_shown", describe_look(looks[-1]))


def decide_for_new_cases(cases: Sequence[PairedScores], *, alpha: float = 0.05, seed: int = 0) -> FinalTestResult:
    """Whether the after arm is better on cases like these, none of which the search has used. There is one look.

    Each case counts once, with its mean over repeats: repeats reduce its noise but are not additional evidence.
    """
    check_inputs(cases, [Block(repeats=1, alpha=alpha)])
    test = sign_flip([case.gain for case in cases], seed=seed)
    repeats = min(case.repeats for case in cases)
    look = Look(repeats=repeats, gain=test.gain, p_value=test.p_value, alpha=alpha)
    reason = f"{describe_look(look)} over {plural(len(cases), 'test case')}"
    if look.is_shown:
        return FinalTestResult(scope="new cases", outcome="shown", looks=(look,), reason=reason)
    if (least := 0.5 ** len(cases)) > alpha:
        reason += f"; too few cases to show any gain: the p-value is at least {least:.2g}"
    return FinalTestResult(scope="new cases", outcome="not_shown", looks=(look,), reason=reason)


def _take_look(cases: Sequence[PairedScores], *, alpha: float, seed: int) -> Look:
    repeats, fewest = max(case.repeats_made for case in cases), min(case.repeats for case in cases)
    test, has_noise = within_case_permutation(cases, seed=seed), has_run_noise(cases)
    p_value = test.p_value if has_noise else min(test.p_value, 0.25**fewest)
    return Look(repeats=repeats, gain=test.gain, p_value=p_value, alpha=alpha, has_run_noise=has_noise)


def describe_look(look: Look) -> str:
    """A look in one clause: the gain or loss, and what speaks for and against it."""
    gain = f"gain {look.gain:+.3f}"
    sign = "<=" if look.is_shown else ">"
    figures = f"p = {look.p_value:.2g} {sign} {look.alpha:g} after {plural(look.repeats, 'repeat')}"
    if look.margin:
        return _describe_non_inferiority(look, gain, figures)
    if look.gain <= 0:
        return "no gain" if look.gain == 0 else f"loss of {-look.gain:.3f}"
    if not look.has_run_noise:
        same = f"every case scored the same in {plural(look.repeats, 'repeat')}"
        if look.is_shown:
            return f"{gain}; {same}, so run-to-run noise does not explain it"
        return f"{gain}; {same}, but that is too few to rule out noise"
    return f"{gain}, {figures}"


def _describe_non_inferiority(look: Look, gain: str, figures: str) -> str:
    if look.gain <= -look.margin:
        return f"loss of {-look.gain:.3f}, which is not below the margin of {look.margin:g}"
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
    if (total := math.fsum(block.alpha for block in blocks)) >= 1:
        raise SetupError(f"the alphas of the blocks add up to {total:g}; keep the sum below 1, such as 0.05")
