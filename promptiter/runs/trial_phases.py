"""The phases and trials of coordinate descent for reports: what each phase gained, and which surfaces gained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from promptiter.backprop.trial_record import (
    NumericProposal,
    PhaseEnd,
    PhaseKind,
    PhaseResult,
    Trial,
    TrialDetails,
    TrialOutcome,
)
from promptiter.runlog.results import RoundResult
from promptiter.wording import join_names
from traces.model import Json

MOST_VALUES = 4
"""Maximum number of values of a point that a row names."""

PHASE_ENDS: Mapping[PhaseEnd, str] = {
    "max_trials": "all its trials were made",
    "patience": "no candidate was accepted for a while",
    "converged": "no promising point was left",
    "exhausted": "nothing was left to try",
    "stopped": "the run stopped",
}
"""Why a phase ended, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """One phase. `gain` is how much it lowered the loss on train, `before` the loss at its start."""

    cycle: int
    phase: PhaseKind
    first_round: int
    trials: int = 0
    accepted: int = 0
    before: float = 0.0
    gain: float = 0.0
    ended: PhaseEnd = "stopped"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSummary:
    """One surface: the trials that changed it, and its share of their gains. What changed together shares equally."""

    surface_id: str
    trials: int = 0
    accepted: int = 0
    gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """One trial in words. `loss` is that on train, `best` the lowest accepted loss after it.

    `why` is what the study or the critic says for the proposal, `reason` why it was accepted or not.
    """

    round: int
    number: int
    cycle: int
    phase: PhaseKind
    place: int
    proposal: str
    loss: float | None
    std: float | None
    gain: float | None
    noise_bar: float | None
    best: float
    outcome: TrialOutcome
    reason: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescentSummary:
    """The phases, surfaces and trials of coordinate descent. Other searches have none."""

    phases: tuple[PhaseSummary, ...] = ()
    axes: tuple[AxisSummary, ...] = ()
    trials: tuple[TrialSummary, ...] = ()


class TrialPhases:
    """Collects phases and trials, round by round."""

    def __init__(self) -> None:
        self._phases: list[PhaseSummary] = []
        self._axes: dict[str, AxisSummary] = {}
        self._trials: list[TrialSummary] = []

    def add(self, each: RoundResult) -> None:
        details = each.details
        if not isinstance(details, TrialDetails):
            return
        if (started := details.started) is not None:
            self._phases.append(
                PhaseSummary(
                    cycle=started.cycle, phase=started.phase, first_round=each.round, before=started.first.mean
                )
            )
        best = started.first.mean if started is not None else self._trials[-1].best if self._trials else 0.0
        for trial in details.trials:
            best = trial.train.mean if trial.is_accepted and trial.train is not None else best
            self._count(trial)
            self._trials.append(_build_row(trial, each.round, best))
        if details.ended is not None and self._phases:
            self._phases[-1] = _complete(self._phases[-1], details.ended)

    def summarize(self) -> DescentSummary:
        axes = sorted(self._axes.values(), key=lambda axis: (-axis.gain, axis.surface_id))
        return DescentSummary(phases=tuple(self._phases), axes=tuple(axes), trials=tuple(self._trials))

    def _count(self, trial: Trial) -> None:
        gain = trial.gain if trial.is_accepted and trial.gain is not None else 0.0
        if self._phases:
            phase = self._phases[-1]
            self._phases[-1] = replace(
                phase,
                trials=phase.trials + 1,
                accepted=phase.accepted + trial.is_accepted,
                gain=round(phase.gain + gain, 12),
            )
        for surface_id in trial.changed:
            axis = self._axes.get(surface_id, AxisSummary(surface_id=surface_id))
            self._axes[surface_id] = replace(
                axis,
                trials=axis.trials + 1,
                accepted=axis.accepted + trial.is_accepted,
                gain=round(axis.gain + gain / len(trial.changed), 12),
            )


def describe_trial(trial: Trial) -> str:
    """What a trial changes: the values of a point, or the texts; both in a joint move."""
    if trial.numeric is not None:
        changed = {name: trial.numeric.params[name] for name in trial.changed if name in trial.numeric.params}
        values = describe_values(changed or trial.numeric.params)
        texts = [name for name in trial.changed if name not in trial.numeric.params]
        return f"{join_names(texts, limit=MOST_VALUES)} with {values}" if texts else values
    return join_names(list(trial.changed or trial.surfaces), limit=MOST_VALUES)


def explain_proposal(trial: Trial) -> str:
    """What the critic found, and why a study proposed a point; empty for random points."""
    diagnoses = () if trial.textual is None else trial.textual.diagnoses.values()
    found = [f"{each.failing_pattern} (confidence {each.confidence:.2g})" for each in diagnoses]
    if trial.numeric is not None and trial.numeric.score is not None:
        found.append(_explain_point(trial.numeric, trial.numeric.score))
    return "; ".join(found)


def _explain_point(point: NumericProposal, score: float) -> str:
    ranked = sorted(point.axes.items(), key=lambda each: -each[1].good / max(each[1].bad, 1e-12))
    named = [f"{_name_axis(name)} {each.good:.2g} to {each.bad:.2g}" for name, each in ranked[:MOST_VALUES]]
    return f"density of good to bad trials {score:.3g}; by axis: {', '.join(named)}"


def describe_values(params: Mapping[str, Json]) -> str:
    """`top_k 3, temperature 0.25`."""
    values = [f"{_name_axis(name)} {_format_value(value)}" for name, value in params.items()]
    return join_names(values, limit=MOST_VALUES)


def _complete(phase: PhaseSummary, result: PhaseResult) -> PhaseSummary:
    return replace(phase, ended=result.ended, reason=result.reason, gain=result.gain)


def _build_row(trial: Trial, number: int, best: float) -> TrialSummary:
    return TrialSummary(
        round=number,
        number=trial.number,
        cycle=trial.cycle,
        phase=trial.phase,
        place=trial.place,
        proposal=describe_trial(trial),
        loss=None if trial.train is None else trial.train.mean,
        std=None if trial.train is None else trial.train.std,
        gain=trial.gain,
        noise_bar=trial.noise_bar,
        best=best,
        outcome=trial.outcome,
        reason=trial.reason,
        why=explain_proposal(trial),
    )


def _name_axis(surface_id: str) -> str:
    """The part of a surface id that tells it from others of its node."""
    kind, _, part = surface_id.partition("#")[2].partition(".")
    return part or kind


def _format_value(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
