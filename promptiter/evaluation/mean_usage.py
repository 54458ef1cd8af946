"""MeanUsage: the tokens and dollars of a case run, as means over the runs of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from promptiter.evaluation.result import CaseRow, Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanUsage:
    """Means over case runs. None is unknown, never 0: one run with an unknown price makes the mean unknown."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    usd: float | None = None

    @property
    def tokens(self) -> float | None:
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


def average_usage(evaluation: Evaluation) -> MeanUsage:
    """The mean usage of the runs that did not fail. Failed runs may have ended early."""
    return _average_rows([row for row in evaluation.rows if row.error is None])


def average_common_usage(before: Evaluation, after: Evaluation) -> tuple[MeanUsage, MeanUsage]:
    """The same for two profiles, over the case runs that succeeded under both."""
    arms = [{(row.case_id, row.repeat): row for row in each.rows if row.error is None} for each in (before, after)]
    common = sorted(arms[0].keys() & arms[1].keys())
    first, second = (_average_rows([arm[key] for key in common]) for arm in arms)
    return first, second


def _average_rows(rows: Sequence[CaseRow]) -> MeanUsage:
    return MeanUsage(
        input_tokens=_average_known(row.usage.input_tokens for row in rows),
        output_tokens=_average_known(row.usage.output_tokens for row in rows),
        usd=_average_known(row.usage.cost_usd for row in rows),
    )


def _average_known(values: Iterable[float | None]) -> float | None:
    """The mean, or None if there are no values, or one is unknown."""
    given = list(values)
    known = [value for value in given if value is not None]
    return fmean(known) if known and len(known) == len(given) else None
