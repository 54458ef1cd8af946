"""NonInferior: keeps a candidate that is as good and takes less. The rule of goals besides the score.

    acceptance = NonInferior(0.05, "usd")

It keeps leniently: the mean loss that was seen must be within the margin; what may be claimed is tested once, at the
end. Losses add up: ten steps that lose a little each must together stay within the margin, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import pstdev
from typing import get_args

from promptiter.errors import SetupError
from promptiter.evaluation.mean_usage import MeanUsage, average_common_usage
from promptiter.evaluation.result import CaseRow, Evaluation, get_worst_value
from promptiter.policies.acceptance import Policy
from promptiter.policies.combine import is_number
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence
from promptiter.policies.goals import MARGIN, Figure

SURE = 1.64
"""A loss beyond the margin by so many of its standard errors is no accident."""


@dataclass(frozen=True, slots=True, repr=False)
class NonInferior(Policy):
    """Accepts a candidate within `margin` of the accepted profile and of the run's first, whose `figure` is lower.

    The figure is dollars or tokens per run. A loss that may be run noise is looked at again, with up to `max_repeats`
    repeats of each case, unless the repeats show that there is none.
    """

    margin: float = MARGIN
    figure: Figure = "tokens"
    max_repeats: int = 3

    def __post_init__(self) -> None:
        if not is_number(self.margin, least=0):
            raise SetupError(f"margin is {self.margin!r}; give a number that is not negative, such as 0.05")
        if self.figure not in get_args(Figure):
            raise SetupError(f"figure is {self.figure!r}; give one of {', '.join(get_args(Figure))}")
        if not is_number(self.max_repeats, least=1):
            raise SetupError(f"max_repeats is {self.max_repeats!r}; give 1 or more")

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        if _height(evidence) <= self.margin:
            return evidence.reject(f"the accepted profile has no quality to lose: all of it is within {self.margin:g}")
        before, after = (self._of(each) for each in average_common_usage(evidence.baseline, evidence.candidate))
        if before is None or after is None:
            whose = "the accepted profile" if before is None else "the candidate"
            what = "dollars" if self.figure == "usd" else "tokens"
            return evidence.reject(f"the {what} of {whose} are unknown, so nothing is known to be saved")
        saved = f"{before:,.1f} to {after:,.1f} tokens" if self.figure == "tokens" else f"${before:.3g} to ${after:.3g}"
        if after >= before:
            return evidence.reject(f"{saved} per run: nothing is saved")
        in_all = round(min(evidence.gain, evidence.gained + evidence.gain), 12)
        loss = f"gain {evidence.gain:+.3f}" + (f", {in_all:+.3f} since the start" if in_all < evidence.gain else "")
        if in_all >= -self.margin:
            return evidence.accept(f"{loss} is within the margin {self.margin:g}; {saved} per run")
        if self._may_be_noise(evidence, beyond=-self.margin - in_all):
            return MoreEvidence(repeats=1, reason=f"{loss} is beyond the margin {self.margin:g}, but may be noise")
        return evidence.reject(f"{loss} is beyond the margin {self.margin:g}")

    def _of(self, taken: MeanUsage) -> float | None:
        return taken.usd if self.figure == "usd" else taken.tokens

    def _may_be_noise(self, evidence: Evidence, *, beyond: float) -> bool:
        arms = (evidence.baseline, evidence.candidate)
        drawn = min(len(rows) for arm in arms for rows in _repeats(arm).values())
        if drawn >= self.max_repeats or (drawn > 1 and not any(map(has_noise, arms))):
            return False
        changes = [delta.change for delta in evidence.deltas]
        return bool(changes) and beyond <= SURE * pstdev(changes) / math.sqrt(len(changes))


def _height(evidence: Evidence) -> float:
    """How far the accepted profile is above the worst."""
    return (evidence.baseline.objective(evidence.objective) or 0.0) - get_worst_value(evidence.objective)


def has_noise(evaluation: Evaluation) -> bool:
    """Whether some case scored differently in two of its repeats."""
    return any(
        len({tuple(score.value for score in row.scores) for row in rows}) > 1 for rows in _repeats(evaluation).values()
    )


def _repeats(evaluation: Evaluation) -> dict[str, list[CaseRow]]:
    found: dict[str, list[CaseRow]] = {}
    for row in evaluation.rows:
        found.setdefault(row.case_id, []).append(row)
    return found
