"""Metric calls: how many cases a run may evaluate, and what of that is reserved for its final test.

A metric call is one case under one candidate, including its repeats. Rows that are known or come from the cache cost
none. Calls after the search count, too. The final test takes two for each of its cases, one per profile, however many
blocks of repeats it needs. They are reserved from the start, so that the search ends while the test can still be run.
Replays of a gradient check run no candidate, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.new_cases import explain_too_few_new_cases
from promptiter.runlog.results import RunShape
from promptiter.wording import plural

FINAL_PHASES = frozenset(("final_test", "test"))
"""The phases of the final test, which take what is reserved for it."""

MetricCall = tuple[int | None, str, str, str]
"""What one metric call is about: the evaluation, or None in the final test, its phase, the profile and the case."""


def name_call(case_id: str, *, number: int | None, phase: str, profile_digest: str) -> MetricCall:
    """The metric call to which a run of a case belongs. Blocks of the final test repeat the same calls."""
    return (None if phase in FINAL_PHASES else number), phase, profile_digest, case_id


def is_test_set_run(cases: int, *, shape: RunShape) -> bool:
    """Whether the final test runs a test set of this size: not if it is too small to decide anything.

    The hold-out of a scorer is always run: its cases are few, and may show that a gain is specific to the scorer.
    """
    return shape == "scorer" or explain_too_few_new_cases(cases) is None


def count_final_test_calls(validation: EvalSet, test: EvalSet | None, *, shape: RunShape) -> int:
    """The metric calls of a final test: two profiles on the validation cases, and on the test set if it is run."""
    cases = 0 if test is None else len(test.cases)
    return 2 * (len(validation.cases) + (cases if is_test_set_run(cases, shape=shape) else 0))


def count_calls(evaluations: Iterable[Evaluation]) -> int:
    """The metric calls of evaluations that were made."""
    found = {
        name_call(row.case_id, number=each.number, phase=each.phase, profile_digest=each.profile_digest)
        for each in evaluations
        for row in each.rows
        if row.origin == "executed"
    }
    return len(found)


class MetricCalls:
    """Counts metric calls against a cap; None means no cap. `reserved` of them are for the final test."""

    def __init__(self, cap: int | None, *, reserved: int = 0) -> None:
        self.cap = cap
        self.reserved = reserved
        self._made: set[MetricCall] = set()

    @property
    def made(self) -> int:
        return len(self._made)

    def note(self, call: MetricCall) -> None:
        """Count a call, once."""
        self._made.add(call)

    def check(self, calls: Iterable[MetricCall]) -> None:
        """Raise BudgetEndedError if the cap, less what is reserved, does not allow these calls. Then none is made."""
        new = set(calls) - self._made
        if self.cap is None or not new:
            return
        reserved = 0 if all(phase in FINAL_PHASES for _, phase, _, _ in new) else self.reserved
        needed, left = len(new), self.cap - self.made - reserved
        if needed > left:
            rest = f", besides {reserved} reserved for the final test" if reserved else ""
            raise BudgetEndedError(
                f"the next evaluation needs {plural(needed, 'metric call')}, and {max(0, left)} of {self.cap} are left"
                f"{rest}",
                cap="max_metric_calls",
                advice="raise max_metric_calls",
            )
