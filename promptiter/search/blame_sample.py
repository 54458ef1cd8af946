"""Which blame is checked: a few failed runs, chosen by chance, so that every blamed surface is in some of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeAlias

from promptiter.stages.contracts import SurfaceGradient

ENOUGH = 3
"""A surface that was checked in so many cases is known well enough."""

MOST_ALONG, COMMON_SHARE = 3, 0.25
"""So many surfaces at most are corrected along, if they are blamed in this share of the cases of the most blamed."""

RunKey: TypeAlias = tuple[str, int, int]
"""A case, a repeat, a turn."""


def run_of(gradient: SurfaceGradient) -> RunKey:
    return gradient.case_id, gradient.repeat, gradient.turn


def sample(blame: Iterable[SurfaceGradient], rng: Random, *, most: int) -> list[list[SurfaceGradient]]:
    """Failed runs with all their blame, one of each case: first those with surfaces that were checked least."""
    by_run: defaultdict[RunKey, list[SurfaceGradient]] = defaultdict(list)
    for gradient in blame:
        by_run[run_of(gradient)].append(gradient)
    waiting = list(by_run.values())
    rng.shuffle(waiting)
    counts: Counter[str] = Counter()
    chosen: list[list[SurfaceGradient]] = []
    while waiting:
        blamed = min(waiting, key=lambda each: _interest(each, counts))  # chance decides between equals
        waiting.remove(blamed)
        surfaces = {each.surface_id for each in blamed}
        if min(counts[each] for each in surfaces) >= ENOUGH:
            break
        if counts.total() + len(surfaces) > most and chosen:
            continue
        chosen.append(blamed)
        counts.update(surfaces)
        waiting = [each for each in waiting if each[0].case_id != blamed[0].case_id]
    return chosen


def most_blamed(blame: Iterable[SurfaceGradient]) -> dict[str, SurfaceGradient]:
    """The surfaces that would be patched as it is, each with a gradient that says why."""
    cases: defaultdict[str, set[str]] = defaultdict(set)
    first: dict[str, SurfaceGradient] = {}
    for gradient in blame:
        cases[gradient.surface_id].add(gradient.case_id)
        first.setdefault(gradient.surface_id, gradient)
    order = sorted(cases, key=lambda each: (-len(cases[each]), each))[:MOST_ALONG]
    return {each: first[each] for each in order if len(cases[each]) >= COMMON_SHARE * len(cases[order[0]])}


def _interest(blamed: Sequence[SurfaceGradient], counts: Counter[str]) -> tuple[int, int]:
    surfaces = {each.surface_id for each in blamed}
    return min(counts[each] for each in surfaces), -len(surfaces)
