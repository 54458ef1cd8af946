"""NonInferior: accepts a candidate that is as good and takes less. The policy of all goals other than the score.

    acceptance = NonInferior(0.05, "usd")

It is lenient: the observed mean loss must be within the margin, and the proof is left to the final test. Losses add
up: the candidates accepted in a run must stay within the margin together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import pstdev
from typing import get_args

from promptiter.errors import SetupError
from promptiter.evaluation.mean_usage import MeanUsage, average_common_usage
from promptiter.evaluation.result import get_worst_value
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ComposablePolicy
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence, has_noise
from promptiter.policies.goals import MARGIN, Figure

MAX_STANDARD_ERRORS = 1.64
"""A loss beyond the margin by more than this number of standard errors is not taken for noise."""


@dataclass(frozen=True, slots=True, repr=False)
class NonInferior(ComposablePolicy):
    """Accepts a candidate whose `figure` is lower and whose loss is within `margin`, since the start of the run too.

    The figure is dollars or tokens per case run. A loss that may be run noise gets more repeats, up to `max_repeats` of
    each case, unless the repeats show no noise.
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
        if _height_above_worst(evidence) <= self.margin:
            return evidence.reject(f"the accepted profile scores too low to lose the margin of {self.margin:g}")
        before, after = (
            self._read_figure(each) for each in average_common_usage(evidence.accepted, evidence.candidate)
        )
        if before is None or after is None:
            whose = "the accepted profile" if before is None else "the candidate"
            what = "dollars" if self.figure == "usd" else "tokens"
            return evidence.reject(f"the {what} of {whose} are unknown, so a saving cannot be shown")
        saved = f"{before:,.1f} to {after:,.1f} tokens" if self.figure == "tokens" else f"${before:.3g} to ${after:.3g}"
        if after >= before:
            return evidence.reject(f"{saved} per run: nothing is saved")
        total = round(min(evidence.gain, evidence.accepted_gain + evidence.gain), 12)
        loss = f"gain {evidence.gain:+.3f}" + (f", {total:+.3f} since the start" if total < evidence.gain else "")
        if total >= -self.margin:
            return evidence.accept(f"{loss} is within the margin {self.margin:g}; {saved} per run")
        if self._may_be_noise(evidence, beyond=-self.margin - total):
            return MoreEvidence(repeats=1, reason=f"{loss} is beyond the margin {self.margin:g}, but may be noise")
        return evidence.reject(f"{loss} is beyond the margin {self.margin:g}")

    def _read_figure(self, usage: MeanUsage) -> float | None:
        return usage.usd if self.figure == "usd" else usage.tokens

    def _may_be_noise(self, evidence: Evidence, *, beyond: float) -> bool:
        arms = (evidence.accepted, evidence.candidate)
        repeats = min(len(rows) for arm in arms for rows in arm.rows_by_case.values())
        if repeats >= self.max_repeats or (repeats > 1 and not any(map(has_noise, arms))):
            return False
        changes = [delta.change for delta in evidence.deltas]
        return bool(changes) and beyond <= MAX_STANDARD_ERRORS * pstdev(changes) / math.sqrt(len(changes))


def _height_above_worst(evidence: Evidence) -> float:
    """How far the accepted profile is above the worst value."""
    return (evidence.accepted.objective(evidence.objective) or 0.0) - get_worst_value(evidence.objective)
