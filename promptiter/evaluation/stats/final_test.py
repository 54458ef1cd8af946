"""The claim at the end of a run: is the profile that the search kept better than the baseline?

Both run afresh, in blocks of repeats; after each block there is one look. A look claims if its p-value is at most its
share of the alpha, gives up if there is no gain, and else wants the next block. The shares add up to the error of the
whole claim, whatever depends on what. `decide_for_these_cases` goes through all looks again from the repeats in their
order: the same repeats give the same claim, on resume and in an audit too.

Where no run noise was seen, six equal repeats say what one says, and the difference is what it is on these cases. It is
claimed if it is above 0 and chance can hardly have hidden the noise. How likely that is has two bounds, and the smaller
counts: the test's own p-value, which is tiny if several cases changed and none for the worse; and 0.25 ** repeats, the
chance that one coin flip among cases without noise looks like this, which 4 repeats settle whatever else changed. It is
no evidence at all for new cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import (
    PairedScores,
    has_run_noise,
    sign_flip,
    within_case_permutation,
)

Scope: TypeAlias = Literal["these cases", "new cases"]

FinalTestOutcome: TypeAlias = Literal["shown", "not_shown", "futile", "open"]
"""`futile`: given up early, there was no gain. `open`: wants the repeats of the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """So many further repeats of each case in each arm, and the error that the look after them may spend."""

    repeats: int = 2
    alpha: float


def plan_blocks(alpha: float, *, repeats: int = 2) -> tuple[Block, ...]:
    """The blocks of a claim with this error in all, most of it for the last look."""
    return tuple(Block(repeats=repeats, alpha=round(alpha * share, 12)) for share in (0.2, 0.3, 0.5))


BLOCKS = plan_blocks(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen after a block. Without run noise, `p_value` is the chance that noise hid so well.

    What is claimed is a gain above `-margin`: with no margin *better*, with one *no worse*.
    """

    repeats: int
    gain: float
    p_value: float
    alpha: float
    has_run_noise: bool = True
    margin: float = 0.0

    @property
    def claims(self) -> bool:
        return self.gain > -self.margin and self.p_value <= self.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestResult:
    """What the test says of a profile, for which cases, after which looks; `needed_repeats` are still to be run."""

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
    """Whether the after arm is better on these cases, with the repeats so far; `open` as long as a further block
    decides.

    Repeats beyond the looks that were needed are not used, so it does not matter whether they were run.
    """
    check_inputs(cases, blocks)
    available = min(case.repeats for case in cases)
    looks: list[Look] = []
    repeats = 0
    for number, block in enumerate(blocks, start=1):
        repeats += block.repeats
        if repeats > available:
            wanted = repeats - available
            reason = f"{_describe_look(looks[-1])}; " if looks else ""
            return _conclude(
                "open", looks, f"{reason}block {number} of {len(blocks)} is to be run", needed_repeats=wanted
            )
        look = _take_look([case.first(repeats) for case in cases], repeats, alpha=block.alpha, seed=seed)
        looks.append(look)
        if look.claims:
            return _conclude("shown", looks, _describe_look(look))
        if look.gain <= 0:
            return _conclude("futile", looks, f"{_describe_look(look)}: given up after block {number} of {len(blocks)}")
    return _conclude("not_shown", looks, _describe_look(looks[-1]))


def decide_for_new_cases(cases: Sequence[PairedScores], *, alpha: float = 0.05, seed: int = 0) -> FinalTestResult:
    """Whether the after arm is better on cases like these, none of which the search ever used: one look.

    Each case counts once, by its mean over repeats, so repeats make a case less noisy and are no further evidence.
    """
    check_inputs(cases, [Block(repeats=1, alpha=alpha)])
    test = sign_flip([case.gain for case in cases], seed=seed)
    repeats = min(case.repeats for case in cases)
    look = Look(repeats=repeats, gain=test.gain, p_value=test.p_value, alpha=alpha)
    told = f"{_describe_look(look)} over {len(cases)} test cases"
    if look.claims:
        return FinalTestResult(scope="new cases", outcome="shown", looks=(look,), reason=told)
    if (least := 0.5 ** len(cases)) > alpha:
        told += f"; with so few cases no gain could be shown, the p-value is at least {least:.2g}"
    return FinalTestResult(scope="new cases", outcome="not_shown", looks=(look,), reason=told)


def _take_look(cases: Sequence[PairedScores], repeats: int, *, alpha: float, seed: int) -> Look:
    test, has_noise = within_case_permutation(cases, seed=seed), has_run_noise(cases)
    p_value = test.p_value if has_noise else min(test.p_value, 0.25**repeats)
    return Look(repeats=repeats, gain=test.gain, p_value=p_value, alpha=alpha, has_run_noise=has_noise)


def _conclude(
    outcome: FinalTestOutcome, looks: Sequence[Look], reason: str, *, needed_repeats: int = 0
) -> FinalTestResult:
    return FinalTestResult(
        scope="these cases", outcome=outcome, looks=tuple(looks), reason=reason, needed_repeats=needed_repeats
    )


def _describe_look(look: Look) -> str:
    gain = f"gain {look.gain:+.3f}"
    if look.gain <= 0:
        return f"{gain}: none" if look.gain == 0 else f"{gain}: worse"
    if not look.has_run_noise:
        same = f"no case differed from itself in {look.repeats} repeats"
        if look.claims:
            return f"{gain} and no run noise: {same}, so it is no chance on these cases"
        return f"{gain}: {same}, and so few of them may hide noise"
    sign = "<=" if look.claims else ">"
    return f"{gain}, p = {look.p_value:.2g} {sign} {look.alpha:g} after {look.repeats} repeats"


def check_inputs(cases: Sequence[PairedScores], blocks: Sequence[Block]) -> None:
    """SetupError if these cases and blocks make no claim."""
    if not cases:
        raise SetupError("there are no cases to claim a gain on; give at least one")
    if len({case.case_id for case in cases}) < len(cases):
        raise SetupError("a case is given twice to a claim; join its repeats in one PairedScores")
    if not blocks or any(block.repeats < 1 or not block.alpha > 0 for block in blocks):
        raise SetupError(
            f"the blocks of a claim are {list(blocks)!r}; give each at least 1 repeat and an error above 0"
        )
    if (total := math.fsum(block.alpha for block in blocks)) >= 1:
        raise SetupError(f"the errors of a claim's blocks add up to {total:g}; keep them below 1, such as 0.05")
