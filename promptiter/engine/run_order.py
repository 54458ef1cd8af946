"""The order in which the case runs of several evaluations are made: each run is made for all of them in turn.

A model that drifts, a rate limit or a deployment then affects all evaluations alike, so it is not mistaken for a
difference between their profiles. The order is random and depends on nothing but the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeAlias

from promptiter.evaluation.evaluator import CaseRepeat

MIN_SEGMENTS = 4
"""With fewer, what changes over time could affect one evaluation more than the others."""

PlacedRun: TypeAlias = tuple[int, CaseRepeat]
"""A case run, with the place of its evaluation in the batch."""


def interleave_runs(batch: Sequence[Sequence[CaseRepeat]], *, seed: str, segment: int = 1) -> list[PlacedRun]:
    """Return the runs of a batch of evaluations in random order, one evaluation after the other for each run.

    An agent that can hold one profile at a time needs longer segments: up to this number of runs of one evaluation,
    then the same runs of the next. There are at least MIN_SEGMENTS, of about equal size, if there are as many runs. The
    evaluations of each segment are in random order. A single evaluation keeps its order.
    """
    if len(batch) == 1:
        return [(0, run) for run in batch[0]]
    rng = Random(seed)
    runs = list(dict.fromkeys(run for each in batch for run in each))
    rng.shuffle(runs)
    wanted = [frozenset(each) for each in batch]
    order: list[PlacedRun] = []
    count = min(len(runs), max(MIN_SEGMENTS, math.ceil(len(runs) / segment)))
    for number in range(count):
        some = runs[number * len(runs) // count : (number + 1) * len(runs) // count]
        places = list(range(len(batch)))
        rng.shuffle(places)
        order += [(place, run) for place in places for run in some if run in wanted[place]]
    return order
