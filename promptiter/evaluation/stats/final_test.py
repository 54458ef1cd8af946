"""The claim at the end of a run: is the profile that the search kept better than the baseline?

Both run afresh, in blocks of draws; after each block there is one look. A look claims if its p-value is at most its
share of the error, gives up if there is no gain, and else wants the next block. The shares add up to the error of the
whole claim, whatever depends on what. `claim_these_cases` goes through all looks again from the draws in their order:
the same draws give the same claim, on resume and in an audit too.

Where no run noise was seen, six equal repeats say what one says, and the difference is what it is on these cases. It is
claimed if it is above 0 and chance can hardly have hidden the noise. How likely that is has two bounds, and the smaller
counts: the test's own p-value, which is tiny if several cases changed and none for the worse; and 0.25 ** draws, the
chance that one coin flip among cases without noise looks like this, which 4 draws settle whatever else changed. It is
no evidence at all for new cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import (
    PairedDraws,
    has_run_noise,
    sign_flip,
    within_case_permutation,
)

Scope: TypeAlias = Literal["these cases", "new cases"]

ClaimOutcome: TypeAlias = Literal["claimed", "not_shown", "futile", "open"]
"""`futile`: given up early, there was no gain. `open`: wants the draws of the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """So many further draws of each case in each arm, and the error that the look after them may spend."""

    draws: int = 2
    error: float


def blocks_of(error: float, *, draws: int = 2) -> tuple[Block, ...]:
    """The blocks of a claim with this error in all, most of it for the last look."""
    return tuple(Block(draws=draws, error=round(error * share, 12)) for share in (0.2, 0.3, 0.5))


BLOCKS = blocks_of(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen after a block. Without run noise, `p_value` is the chance that noise hid so well.

    What is claimed is a gain above `-margin`: with no margin *better*, with one *no worse*.
    """

    draws: int
    gain: float
    p_value: float
    error: float
    has_run_noise: bool = True
    margin: float = 0.0

    @property
    def claims(self) -> bool:
        return self.gain > -self.margin and self.p_value <= self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What may be said of a profile, for which cases, and on which looks; `wanted_draws` are those still to be run."""

    scope: Scope
    outcome: ClaimOutcome
    looks: tuple[Look, ...]
    reason: str
    wanted_draws: int = 0

    @property
    def is_claimed(self) -> bool:
        return self.outcome == "claimed"

    @property
    def gain(self) -> float | None:
        return self.looks[-1].gain if self.looks else None

    @property
    def p_value(self) -> float | None:
        return self.looks[-1].p_value if self.looks else None


def claim_these_cases(cases: Sequence[PairedDraws], *, blocks: Sequence[Block] = BLOCKS, seed: int = 0) -> Claim:
    """Whether the after arm is better on these cases, with the draws so far; `open` as long as a further block decides.

    Draws beyond the looks that were needed are not used, so it does not matter whether they were run.
    """
    check_claim(cases, blocks)
    available = min(case.draws for case in cases)
    looks: list[Look] = []
    draws = 0
    for number, block in enumerate(blocks, start=1):
        draws += block.draws
        if draws > available:
            wanted = draws - available
            reason = f"{_told(looks[-1])}; " if looks else ""
            return _these("open", looks, f"{reason}block {number} of {len(blocks)} is to be run", wanted_draws=wanted)
        look = _look([case.first(draws) for case in cases], draws, error=block.error, seed=seed)
        looks.append(look)
        if look.claims:
            return _these("claimed", looks, _told(look))
        if look.gain <= 0:
            return _these("futile", looks, f"{_told(look)}: given up after block {number} of {len(blocks)}")
    return _these("not_shown", looks, _told(looks[-1]))


def claim_new_cases(cases: Sequence[PairedDraws], *, error: float = 0.05, seed: int = 0) -> Claim:
    """Whether the after arm is better on cases like these, none of which the search ever used: one look.

    Each case counts once, by its mean over draws, so repeats make a case less noisy and are no further evidence.
    """
    check_claim(cases, [Block(draws=1, error=error)])
    test = sign_flip([case.gain for case in cases], seed=seed)
    draws = min(case.draws for case in cases)
    look = Look(draws=draws, gain=test.gain, p_value=test.p_value, error=error)
    told = f"{_told(look)} over {len(cases)} sealed cases"
    if look.claims:
        return Claim(scope="new cases", outcome="claimed", looks=(look,), reason=told)
    if (least := 0.5 ** len(cases)) > error:
        told += f"; with so few cases no gain could be shown, the p-value is at least {least:.2g}"
    return Claim(scope="new cases", outcome="not_shown", looks=(look,), reason=told)


def _look(cases: Sequence[PairedDraws], draws: int, *, error: float, seed: int) -> Look:
    test, has_noise = within_case_permutation(cases, seed=seed), has_run_noise(cases)
    p_value = test.p_value if has_noise else min(test.p_value, 0.25**draws)
    return Look(draws=draws, gain=test.gain, p_value=p_value, error=error, has_run_noise=has_noise)


def _these(outcome: ClaimOutcome, looks: Sequence[Look], reason: str, *, wanted_draws: int = 0) -> Claim:
    return Claim(scope="these cases", outcome=outcome, looks=tuple(looks), reason=reason, wanted_draws=wanted_draws)


def _told(look: Look) -> str:
    gain = f"gain {look.gain:+.3f}"
    if look.gain <= 0:
        return f"{gain}: none" if look.gain == 0 else f"{gain}: worse"
    if not look.has_run_noise:
        same = f"no case differed from itself in {look.draws} draws"
        if look.claims:
            return f"{gain} and no run noise: {same}, so it is no chance on these cases"
        return f"{gain}: {same}, and so few of them may hide noise"
    sign = "<=" if look.claims else ">"
    return f"{gain}, p = {look.p_value:.2g} {sign} {look.error:g} after {look.draws} draws"


def check_claim(cases: Sequence[PairedDraws], blocks: Sequence[Block]) -> None:
    """SetupError if these cases and blocks make no claim."""
    if not cases:
        raise SetupError("there are no cases to claim a gain on; give at least one")
    if len({case.case_id for case in cases}) < len(cases):
        raise SetupError("a case is given twice to a claim; join its draws in one PairedDraws")
    if not blocks or any(block.draws < 1 or not block.error > 0 for block in blocks):
        raise SetupError(f"the blocks of a claim are {list(blocks)!r}; give each at least 1 draw and an error above 0")
    if (total := math.fsum(block.error for block in blocks)) >= 1:
        raise SetupError(f"the errors of a claim's blocks add up to {total:g}; keep them below 1, such as 0.05")
