"""The budget of an iteration: half of what the seed was observed to use. Depth is inherited: it is structure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from promptiter.tasks.refine.records import ObservedUse

SHARE = 0.5
MIN_WALL_TIME_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBudget:
    """Hard caps of one iteration. None: no cap, because what the seed used is not known."""

    max_loops: int | None = None
    max_total_workers: int | None = None
    max_tool_calls: int | None = None
    max_total_tokens: int | None = None
    max_wall_time_s: int | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFloors:
    """The least that an iteration gets, whatever the seed used."""

    loops: int = 1
    workers: int = 1
    tool_calls: int = 1
    tokens: int = 1
    wall_time_s: int = MIN_WALL_TIME_S


def halve_budget(use: ObservedUse, floors: BudgetFloors | None = None) -> IterationBudget:
    """Half of what was used: counts are rounded up, tokens and seconds down, and nothing is below its floor."""
    floors = floors or BudgetFloors()
    return IterationBudget(
        max_loops=_halve_count(use.loops, floors.loops),
        max_total_workers=_halve_count(use.workers, floors.workers),
        max_tool_calls=_halve_count(use.tool_calls, floors.tool_calls),
        max_total_tokens=None if use.tokens is None else max(floors.tokens, use.tokens // 2),
        max_wall_time_s=None if use.wall_time_s is None else max(floors.wall_time_s, int(use.wall_time_s * SHARE)),
        max_depth=use.max_depth,
    )


def _halve_count(count: int | None, floor: int) -> int | None:
    return None if count is None else max(floor, math.ceil(count * SHARE))
