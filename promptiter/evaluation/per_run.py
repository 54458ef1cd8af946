"""What one run of an agent takes on average: tokens and dollars, from the rows of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptiter.evaluation.result import CaseRow, Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRun:
    """Means over runs of cases. None is unknown, never 0: one run of unknown price makes the mean unknown."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    usd: float | None = None

    @property
    def tokens(self) -> float | None:
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


def per_run(evaluation: Evaluation) -> PerRun:
    """What a run took, over all that did not fail: those that did may have ended early."""
    return _mean([row for row in evaluation.rows if row.error is None])


def per_common_run(before: Evaluation, after: Evaluation) -> tuple[PerRun, PerRun]:
    """The same for two profiles, over the repeats of cases that succeeded under both."""
    arms = [{(row.case_id, row.repeat): row for row in each.rows if row.error is None} for each in (before, after)]
    common = sorted(arms[0].keys() & arms[1].keys())
    first, second = (_mean([arm[key] for key in common]) for arm in arms)
    return first, second


def _mean(rows: Sequence[CaseRow]) -> PerRun:
    return PerRun(
        input_tokens=_mean_of(row.usage.input_tokens for row in rows),
        output_tokens=_mean_of(row.usage.output_tokens for row in rows),
        usd=_mean_of(row.usage.cost_usd for row in rows),
    )


def _mean_of(figures: Iterable[float | None]) -> float | None:
    given = list(figures)
    known = [figure for figure in given if figure is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(given) else None
