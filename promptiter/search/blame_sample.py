"""The sample for the gradient check: a few randomly chosen failed runs that together cover the blamed surfaces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeAlias

from promptiter.grouping import group_by
from promptiter.stages.contracts import SurfaceGradient

ENOUGH_CHECKS = 3
"""A surface needs no further checks after this many cases."""

MOST_COMMON, COMMON_SHARE = 3, 0.25
"""At most MOST_COMMON surfaces are corrected in every run: those with this share of the most blamed one's cases."""

RunKey: TypeAlias = tuple[str, int, int]
"""Case id, repeat and turn."""


def run_of(gradient: SurfaceGradient) -> RunKey:
    return gradient.case_id, gradient.repeat, gradient.turn


def sample_runs(blame: Iterable[SurfaceGradient], rng: Random, *, most: int) -> list[list[SurfaceGradient]]:
    """Choose failed runs with all their gradients, one per case, preferring surfaces that have the fewest checks."""
    waiting = list(group_by(blame, run_of).values())
    rng.shuffle(waiting)
    counts: Counter[str] = Counter()
    chosen: list[list[SurfaceGradient]] = []
    while waiting:
        blamed = min(waiting, key=lambda each: _rank_interest(each, counts))  # the shuffle breaks ties
        waiting.remove(blamed)
        surfaces = {each.surface_id for each in blamed}
        if min(counts[each] for each in surfaces) >= ENOUGH_CHECKS:
            break
        if counts.total() + len(surfaces) > most and chosen:
            continue
        chosen.append(blamed)
        counts.update(surfaces)
        waiting = [each for each in waiting if each[0].case_id != blamed[0].case_id]
    return chosen


def find_most_blamed(blame: Iterable[SurfaceGradient]) -> dict[str, SurfaceGradient]:
    """The surfaces that would be patched without a check, each with one gradient that explains why."""
    cases: defaultdict[str, set[str]] = defaultdict(set)
    first: dict[str, SurfaceGradient] = {}
    for gradient in blame:
        cases[gradient.surface_id].add(gradient.case_id)
        first.setdefault(gradient.surface_id, gradient)
    order = sorted(cases, key=lambda each: (-len(cases[each]), each))[:MOST_COMMON]
    return {each: first[each] for each in order if len(cases[each]) >= COMMON_SHARE * len(cases[order[0]])}


def _rank_interest(blamed: Sequence[SurfaceGradient], counts: Counter[str]) -> tuple[int, int]:
    surfaces = {each.surface_id for each in blamed}
    return min(counts[each] for each in surfaces), -len(surfaces)
