"""Conclusion: what a run may say at its end, for which cases, and on what evidence.

During the search nothing is claimed: candidates are kept leniently. At the end parts of the working profile that do no
good are taken out, then it runs afresh beside the profile that the run started with, and one test decides. What it
does not show is not adopted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import FinalTestResult, Scope
from promptiter.policies.combine import is_number

Verdict: TypeAlias = Literal["improved", "no_evidence", "underpowered", "overfit_risk", "budget_ended", "invalid_eval"]

FEWEST_CASES = 5
"""On fewer validation cases than this, what was not shown says nothing about whether it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTest:
    """How a run makes its claim: with so many `repeats` of each case and profile before each of its three looks.

    How often a claim may be wrong is the run's `error`. If the cases are too few or too noisy to show
    `min_detectable_gain`, a run that shows nothing is `underpowered` rather than without evidence. `ablate` takes out
    parts that do no good before the claim.
    """

    repeats: int = 2
    min_detectable_gain: float = 0.1
    ablate: bool = True

    def __post_init__(self) -> None:
        if not is_number(self.repeats, least=1):
            raise SetupError(f"repeats of the final test is {self.repeats!r}; give a whole number of at least 1")
        if not is_number(self.min_detectable_gain, least=0) or self.min_detectable_gain == 0:
            raise SetupError(f"min_detectable_gain is {self.min_detectable_gain!r}; give a number above 0, such as 0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a run says at its end. `reasons` are the evidence in words, what counts most first.

    `before` and `after` are the objective of both profiles on the fresh repeats of the claim, None without a claim.
    `smallest_gain` is what these cases could have shown, by their noise; None if that was not measured.
    """

    verdict: Verdict
    scope: Scope | None = None
    reasons: tuple[str, ...] = ()
    results: tuple[FinalTestResult, ...] = ()
    before: float | None = None
    after: float | None = None
    tried: int = 0
    cases: int = 0
    smallest_gain: float | None = None

    @property
    def adopts(self) -> bool:
        """Whether the working profile is adopted."""
        return self.verdict == "improved"
