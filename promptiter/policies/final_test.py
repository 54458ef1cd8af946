"""The final test of a run, its verdict and the evidence for it.

The search accepts candidates leniently. At the end, parts of the accepted profile that do not help are removed, the
rest and the initial profile are run again, and one significance test decides. A gain that it does not show is not
adopted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import FinalTestResult, Scope
from promptiter.evaluation.stats.validation_use import ValidationUse
from promptiter.numbers import is_number
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
class FinalTest:
    """How a run tests its gain: with `repeats` runs of each case and profile before each of three looks.

    The false-positive rate of the test is the run's `alpha`. A run that shows no gain is `underpowered`, rather than
    `no_evidence`, if its cases are too few or too noisy to show `min_detectable_gain`. `ablate` removes parts that do
    not help before the test.
    """

    repeats: int = 2
    min_detectable_gain: float = 0.1
    ablate: bool = True

    def __post_init__(self) -> None:
        if not is_number(self.repeats, least=1) or self.repeats != int(self.repeats):
            raise SetupError(f"repeats of the final test is {self.repeats!r}; give a whole number of at least 1")
        gain = self.min_detectable_gain
        if not is_number(gain, least=0) or gain == 0 or gain > 1:
            raise SetupError(f"min_detectable_gain is {gain!r}; give a number above 0 and at most 1, such as 0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The verdict of a run. `reasons` describe the evidence, the most important first.

    `before` and `after` are the objective of both profiles on the cases of the search in the final test; None if there
    was none. `test_before` and `test_after` are those on the test set; None if it was not run. `obstacle` says why a
    gain is not shown for new cases, and what to do. `smallest_gain` is
    the smallest gain that these cases could have shown, given their noise; None if that was not measured. `runs` are
    the case runs behind each result; see `describe_runs`. `validation_use` is what validation had told the search
    when its cases were tested for new cases. A profile that was accepted in a run without a final test `is_untested`.
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
