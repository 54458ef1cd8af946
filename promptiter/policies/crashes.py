"""Crashes: candidates whose runs fail with errors, which MaxFailures counts."""

from __future__ import annotations

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.edit_limits import EXCESS


def has_crashed(evaluation: Evaluation) -> bool:
    """Whether more runs failed with an error than a reliable evaluation may have. Outages do not count."""
    return sum(map(is_crash, evaluation.rows)) > evaluation.max_errored_fraction * len(evaluation.rows)


def is_crash(row: CaseRow) -> bool:
    """Whether a run was made, and failed by an error that is not an outage."""
    return row.error is not None and row.outage is None and row.error.type != EXCESS
