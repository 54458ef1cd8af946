"""The end of a rehearsed run: parts of what was kept are left out, the claim is made, test cases are opened.

How many looks a claim takes depends on how many cases were mended and on whether the same run comes out differently:
without such noise three mended cases are shown by the first block, and one by the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from promptiter.engine.final_test import TEST_SET_REPEATS
from promptiter.engine.plan import ClaimOutline, RunPlan
from promptiter.engine.till import Till

Noise: TypeAlias = Literal["none", "some", "much"]

SHOWN_AT_ONCE = 3.0
"""So many mended cases are shown by the first block of two repeats, if there is no noise."""

LOOKS: Mapping[Noise, Sequence[int]] = {"none": (1,), "some": (1, 1, 1, 2), "much": (1, 1, 2, 2, 3)}
"""How many blocks it takes to settle a claim of so many mended cases."""

NOT_SHOWN: Mapping[Noise, float] = {"none": 0.0, "some": 0.03, "much": 0.2}
"""How often a claim is not shown."""

SEEMS_USELESS: Mapping[Noise, float] = {"none": 0.05, "some": 0.2, "much": 0.3}
"""How often a part seems to do no good at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a search has kept: the patched nodes, and how many validation cases they mended.

    `is_recorded` says that it was validated on the repeats of the baseline; `noise`, whether runs come out differently.
    """

    nodes: frozenset[str]
    is_recorded: bool
    mended: float
    noise: Noise


def rehearse_ending(plan: RunPlan, till: Till, rng: Random, kept: Kept) -> None:
    """What comes after the search of one rehearsal."""
    if plan.final_test is None:
        return
    if plan.final_test.ablates:
        kept = _Ablation(plan, till, rng, kept).left()
    if _claim(plan.final_test, plan, till, rng, kept) and plan.test:
        till.evaluate("test", plan.test, repeats=TEST_SET_REPEATS)
        till.evaluate("test", plan.test, plan.paid_again(kept.nodes), repeats=TEST_SET_REPEATS)


class _Ablation:
    """Each part left out on the repeats of the first record, and once more if it seems to do no good."""

    def __init__(self, plan: RunPlan, till: Till, rng: Random, kept: Kept) -> None:
        self.plan = plan
        self.till = till
        self.rng = rng
        self.kept = kept
        self.cases = plan.validation * till.touched(kept.nodes)
        self.has_looked_twice = False

    def left(self) -> Kept:
        """What is kept of it."""
        parts = set(self.kept.nodes)
        if len(parts) > 1 and not self.kept.is_recorded:
            self.till.evaluate("ablation", self.cases, self.plan.paid_again(parts))
        while len(parts) > 1:
            useless = [part for part in sorted(parts) if self._seems_useless(part, parts)]
            if not useless:
                break
            parts.remove(useless[0])
        return replace(self.kept, nodes=frozenset(parts))

    def _seems_useless(self, part: str, parts: set[str]) -> bool:
        """Without a part, what is not behind it is known, and so is what is behind no other part."""
        plan = self.plan
        changed = plan.paid_again([part]) & plan.paid_again(parts - {part})
        self.till.evaluate("ablation", self.cases, changed)
        if self.rng.random() >= SEEMS_USELESS[self.kept.noise]:
            return False
        if not self.has_looked_twice:
            self.till.evaluate("ablation", self.cases, is_grown=True)
            self.has_looked_twice = True
        self.till.evaluate("ablation", self.cases, changed)
        return self.rng.random() < 0.5


def _claim(rule: ClaimOutline, plan: RunPlan, till: Till, rng: Random, kept: Kept) -> bool:
    """Block after block in both arms, until it is settled; gives whether it is shown."""
    cases, changed = plan.validation * till.touched(kept.nodes), plan.paid_again(kept.nodes)
    blocks, is_shown = _looks(kept, rng)
    for _ in range(min(blocks, rule.blocks)):
        till.evaluate("final_test", cases, repeats=rule.repeats)
        till.evaluate("final_test", cases, changed, repeats=rule.repeats)
    return is_shown


def _looks(kept: Kept, rng: Random) -> tuple[int, bool]:
    """How many blocks a claim takes, and whether it is shown."""
    blocks = rng.choice(LOOKS[kept.noise]) + (kept.mended < SHOWN_AT_ONCE)
    return blocks, rng.random() >= NOT_SHOWN[kept.noise]
