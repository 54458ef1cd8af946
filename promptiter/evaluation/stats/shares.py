"""Which parts of a profile its gain is owed to: which can go, and Shapley shares.

A value function says how good the profile with only these parts is, all measured on identical repeats. It is asked for
each set once. Where evaluating is not a plain call, look the values up: a missing one is the KeyError of
`values.__getitem__`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from functools import cache
from itertools import combinations
from typing import TypeVar

from promptiter.errors import SetupError

MOST_PARTS = 12
"""Shapley shares of more parts would need more than 4,096 values."""

Part = TypeVar("Part", bound=Hashable)


def next_to_drop(losses: dict[Part, float], *, tolerance: float = 1e-12) -> Part | None:
    """The part whose loss is the least, the first of several, if the whole is no worse without it; None: all stay."""
    if not losses:
        return None
    part = min(losses, key=lambda each: losses[each])
    return part if losses[part] <= tolerance else None


def shapley_shares(parts: Collection[Part], value: Callable[[frozenset[Part]], float]) -> dict[Part, float]:
    """The gain of the whole over nothing, divided fairly: what each part adds, averaged over all orders of adding."""
    if len(parts) > MOST_PARTS:
        raise SetupError(
            f"Shapley shares of {len(parts)} parts need {2 ** len(parts):,} values; give {MOST_PARTS} or fewer"
        )
    value = cache(value)
    return {part: math.fsum(_additions(part, parts, value)) for part in parts}


def _additions(part: Part, parts: Collection[Part], value: Callable[[frozenset[Part]], float]) -> Iterator[float]:
    others = [each for each in parts if each != part]
    for size in range(len(parts)):
        weight = 1 / (len(parts) * math.comb(len(others), size))
        for chosen in combinations(others, size):
            without = frozenset(chosen)
            yield weight * (value(without | {part}) - value(without))
