"""Result tables of comparisons, drawn at random: scores, calls and dollars of two searches or more, by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from promptiter.evaluation.stats.search_differences import RunFigures

LOG_SD = 0.3
"""The spread of a search's calls between seeds."""


def draw_table(
    rng: Random,
    *,
    seeds: int = 10,
    ratios: Sequence[float] = (1.0, 1.0),
    gains: Sequence[float] = (),
    common: float = 0.0,
) -> dict[str, dict[int, RunFigures]]:
    """A table of searches that take `ratios` of the same calls. A share `common` of the noise is that of the seed.

    Scores are capped at 1 and rounded to twelfths, so that there are ties. Dollars follow the calls.
    """
    table: dict[str, dict[int, RunFigures]] = {chr(97 + at): {} for at in range(len(ratios))}
    for seed in range(seeds):
        shared = rng.gauss(0, 1)
        for (name, ratio), gain in zip(zip(table, ratios, strict=True), gains or [0.0] * len(ratios), strict=True):
            noise, luck = (math.sqrt(common) * shared + math.sqrt(1 - common) * rng.gauss(0, 1) for _ in range(2))
            calls = round(300 * ratio * math.exp(LOG_SD * noise))
            score = min(1.0, round(12 * (0.8 + gain + 0.15 * luck)) / 12)
            table[name][seed] = {"score": score, "calls": calls, "usd": 0.002 * calls * math.exp(rng.gauss(0, 0.1))}
    return table
