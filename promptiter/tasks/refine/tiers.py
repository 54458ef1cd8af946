"""Model tiers: weak models in early iterations, strong ones in late ones. The tier is a function of k and N alone.

Early iterations have the most to fix, late ones the least, so that precision is paid for where it matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.tasks.refine.records import ModelPair

Tier: TypeAlias = Literal["low", "mid", "high"]

MAX_ITERATIONS = 10
DEFAULT_ITERATIONS = 3


def clamp_iterations(wanted: int) -> int:
    """The number of iterations, from 1 to MAX_ITERATIONS."""
    return max(1, min(MAX_ITERATIONS, wanted))


def find_tier(number: int, of: int) -> Tier:
    """The tier of iteration `number` (from 1) of `of` iterations: thirds, with the longer ones first."""
    if not 1 <= number <= of:
        raise SetupError(f"iteration {number} of {of} does not exist; count from 1")
    if of <= 2:
        return "high" if number == of else "low"
    if number <= math.ceil(of / 3):
        return "low"
    return "high" if number >= of - of // 3 + 1 else "mid"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """The models of each tier. What is empty falls back to the models of the seed."""

    low: ModelPair = field(default_factory=ModelPair)
    mid: ModelPair = field(default_factory=ModelPair)
    high: ModelPair = field(default_factory=ModelPair)

    @property
    def is_trivial(self) -> bool:
        """Whether no tier names a model, so that every iteration uses the models of the seed."""
        return self.low == self.mid == self.high == ModelPair()

    def resolve(self, number: int, of: int, *, seed: ModelPair) -> ModelPair:
        """The models of an iteration."""
        pairs: dict[Tier, ModelPair] = {"low": self.low, "mid": self.mid, "high": self.high}
        return pairs[find_tier(number, of)].or_else(seed)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that it names, sorted."""
        pairs = (self.low, self.mid, self.high)
        return tuple(sorted({name for pair in pairs for name in (pair.manager, pair.worker) if name}))


def parse_pair(text: str) -> ModelPair:
    """`manager:worker`, split at the first colon. Either side may be empty. Give names with colons in promptiter.yaml.

    >>> parse_pair("gpt-5-mini:deepseek")
    ModelPair(manager='gpt-5-mini', worker='deepseek')
    """
    manager, _, worker = text.partition(":")
    return ModelPair(manager=manager.strip(), worker=worker.strip())
