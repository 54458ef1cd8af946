"""MeasuredEffect: what a run measured of a change, and what it was measured for: seldom one hunk alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.runlog.results import RunResult
from promptiter.runs.lineage import AcceptedChange
from promptiter.wording import plural

EffectScope: TypeAlias = Literal["hunk", "candidate", "surface"]
"""What was measured: a candidate that changes this hunk only, a candidate with other changes, or a whole surface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEffect:
    """What was measured of a candidate on validation, or of a surface by the ablation on train cases.

    `delta` is the gain over the profile that was accepted before, or what the ablation lost without the change; None if
    unknown. `surfaces` and `hunks` are how many the candidate changed. Of the validation cases, some pass only before
    or only after.
    """

    scope: EffectScope
    round: int | None = None
    delta: float | None = None
    reason: str = ""
    surfaces: int = 1
    hunks: int = 1
    newly_passed: tuple[str, ...] = ()
    newly_failed: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What the figures are for, in words."""
        if self.scope == "surface":
            return "all changes of this surface together"
        if self.scope == "hunk":
            return "this change alone"
        changes = f"{plural(self.hunks, 'change')} in {plural(self.surfaces, 'surface')}"
        return f"the candidate of round {self.round}: {changes} together"


def measure_candidate(change: AcceptedChange, *, hunks: int) -> MeasuredEffect:
    """The effect of a candidate with this number of hunks, by its decision."""
    candidate, decision = change.candidate, change.candidate.decision
    before = {} if change.compared is None else {each.case_id: each.passed for each in change.compared.cases}
    after = {} if candidate.validation is None else {each.case_id: each.passed for each in candidate.validation.cases}
    both = sorted(before.keys() & after.keys())
    return MeasuredEffect(
        scope="hunk" if hunks == 1 else "candidate",
        round=change.round.round,
        delta=None if decision is None else decision.delta,
        reason="" if decision is None else decision.reason,
        surfaces=len(candidate.patches),
        hunks=hunks,
        newly_passed=tuple(each for each in both if after[each] and not before[each]),
        newly_failed=tuple(each for each in both if before[each] and not after[each]),
    )


def measure_surface(result: RunResult, surface_id: str) -> MeasuredEffect | None:
    """The loss without the change of a surface, if the ablation measured it."""
    if result.ablation is None or surface_id not in result.ablation.losses:
        return None
    reason = "the ablation on train cases, which decides what is kept; not an estimate of the effect"
    return MeasuredEffect(scope="surface", delta=result.ablation.losses[surface_id], reason=reason)
