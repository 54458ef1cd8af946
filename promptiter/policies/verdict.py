"""The verdict of a run and the evidence for it: what the final test has shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.evaluation.stats.final_test import FinalTestResult, Scope
from promptiter.evaluation.stats.validation_use import ValidationUse
from promptiter.policies.paired_runs import PairedRuns

Verdict: TypeAlias = Literal[
    "improved",
    "improved_on_validation",
    "no_evidence",
    "underpowered",
    "overfit_risk",
    "budget_ended",
    "invalid_eval",
]
"""What a run may claim. `improved` is shown for new cases, `improved_on_validation` for the validation cases only."""

FEWEST_CASES = 5
"""With fewer validation cases, a gain that is not shown may still be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The verdict of a run. `reasons` describe the evidence, the most important first.

    `before` and `after` are the objective of both profiles on the cases of the search in the final test; None if there
    was none. `test_before` and `test_after` are those on the test set; None if it was not run. `obstacle` says why a
    gain is not shown for new cases, and what to do. `smallest_gain` is the smallest gain that these cases could have
    shown, given their noise; None if that was not measured. `runs` are the case runs behind each result; see
    `describe_runs`. `validation_use` is what the search had learned from validation when its cases were tested for new
    cases. A profile that was accepted in a run without a final test `is_untested`.
    """

    verdict: Verdict
    scope: Scope | None = None
    reasons: tuple[str, ...] = ()
    results: tuple[FinalTestResult, ...] = ()
    before: float | None = None
    after: float | None = None
    test_before: float | None = None
    test_after: float | None = None
    obstacle: str = ""
    tried: int = 0
    cases: int = 0
    smallest_gain: float | None = None
    runs: tuple[PairedRuns, ...] = ()
    validation_use: ValidationUse | None = None
    is_untested: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether the final test shows the gain, for new cases or for the validation cases only."""
        return self.verdict in ("improved", "improved_on_validation")

    @property
    def adopts(self) -> bool:
        """Whether the accepted profile is adopted: its gain is shown, or the user wanted no test."""
        return self.is_shown or self.is_untested
