"""The record of coordinate descent: its trials and phases, and the events that they are built from.

A numeric batch is one round with a trial per candidate; a textual trial is a round of its own. The facts are the
details of the round: `result.rounds[n].details` is a `TrialDetails`. What a trial scored on validation is not here,
because the search does not see it: that is in the candidate of the round with the same digest, `candidate.evaluations`
and `candidate.decision`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import Literal, TypeAlias

from promptiter.backprop.record import BackpropDetails, StagesMeasured
from promptiter.evaluation.result import Evaluation, Objective, get_best_value
from promptiter.runlog.details import DetailsPayload, RoundDetails, round_details
from promptiter.runlog.events import event_type
from promptiter.runlog.results import RoundResult
from promptiter.stages.diagnosis import Diagnosis, EditType, TextEdit
from promptiter.stages.optimizer import Rejection
from traces.model import Json

PhaseKind: TypeAlias = Literal["numeric", "textual", "examples"]

TrialOutcome: TypeAlias = Literal[
    "accepted", "no_gain", "noise", "holdout", "unreliable", "failed", "low_confidence", "no_edit", "repeated"
]
"""How a trial ended. It gained nothing on train, or no more than the noise there; or validation did not confirm it
(`holdout`). Too many of its runs failed (`unreliable`), or it has no figure at all (`failed`). It was not run, because
the critic was not confident, no usable edit was written (`no_edit`), or the candidate was tried before (`repeated`)."""

PhaseEnd: TypeAlias = Literal["max_trials", "patience", "converged", "exhausted", "stopped"]
"""Why a phase ended: its own limits, no promising point left to try, nothing left to fix, or the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFigures:
    """The loss of a profile on train: the mean and standard deviation of its sweeps, one sweep per repeat.

    The loss is the best value of the objective minus its value: `1 - score`, or the weighted loss. Runs and scores that
    failed are `errored` and left out; if they are too many, the figures are not `is_reliable`. `evaluation` is the
    number of the evaluation. `metrics` are the means of the metrics.
    """

    mean: float
    std: float
    runs: tuple[float, ...]
    errored: int = 0
    is_reliable: bool = True
    evaluation: int | None = None
    pass_rate: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisDensity:
    """How dense the good and the bad trials of a study are around the value of one axis."""

    value: Json
    good: float
    bad: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProposal:
    """A point that a study proposed, by surface. `number` counts the trials of the study from 0; `seed` is that of its
    sampler.

    Once the study models its `observations`, `quantile` is the share of good trials, `candidates_evaluated` how many
    points were compared, `score` the ratio of good to bad density at this point, `expected_improvement` what it may
    gain, in units of the loss, and `axes` has the densities of each axis. Random points have none of these.
    """

    study_id: str
    number: int
    params: Mapping[str, Json]
    seed: int | None = None
    observations: int = 0
    quantile: float | None = None
    candidates_evaluated: int | None = None
    score: float | None = None
    expected_improvement: float | None = None
    axes: Mapping[str, AxisDensity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedEdit:
    """An edit of one text: its type, why, and how many lines it adds and removes."""

    surface_id: str
    edit_type: EditType = "replace"
    rationale: str = ""
    summary: str = ""
    lines_added: int = 0
    lines_removed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextualProposal:
    """The diagnoses of a textual trial, by surface, and its edits. `critic` and `applier` are models, or empty."""

    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    edits: tuple[AppliedEdit, ...] = ()
    critic: str = ""
    applier: str = ""

    @property
    def confidence(self) -> float:
        """The highest confidence of the diagnoses."""
        return max((each.confidence for each in self.diagnoses.values()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMeasured:
    """What the train runs of a trial took: seconds, and dollars if they are known.

    `stages` are the calls of its critic, applier or stages. Validation is not included: its rows say what it took.
    """

    duration_s: float = 0.0
    cost_usd: float | None = 0.0
    stages: StagesMeasured = field(default_factory=StagesMeasured)

    def __add__(self, other: TrialMeasured) -> TrialMeasured:
        costs = (self.cost_usd, other.cost_usd)
        return TrialMeasured(
            duration_s=round(self.duration_s + other.duration_s, 3),
            cost_usd=None if None in costs else sum(each for each in costs if each is not None),
            stages=self.stages + other.stages,
        )

    @staticmethod
    def of(evaluation: Evaluation) -> TrialMeasured:
        """What the runs of an evaluation took."""
        costs = [row.usage.cost_usd for row in evaluation.rows]
        return TrialMeasured(
            duration_s=round(sum(row.measured.duration_s for row in evaluation.rows), 3),
            cost_usd=None if None in costs else sum(each for each in costs if each is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial. `number` counts those of the run from 1, `place` those of its phase. 0 is the initial profile.

    `surfaces` are those that were to change, `changed` those whose value differs from that of the `parent`. `candidate`
    is the digest of the profile; None if there is none. `before` are the figures of the parent, the accepted profile,
    and `train` those of the candidate. `gain` is how much lower the loss is, `noise_bar` what it must reach on train.
    """

    number: int
    place: int
    cycle: int
    phase: PhaseKind
    parent: str
    surfaces: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    candidate: str | None = None
    numeric: NumericProposal | None = None
    textual: TextualProposal | None = None
    before: LossFigures
    train: LossFigures | None = None
    gain: float | None = None
    noise_bar: float | None = None
    outcome: TrialOutcome
    reason: str = ""
    measured: TrialMeasured = field(default_factory=TrialMeasured)

    @property
    def is_accepted(self) -> bool:
        return self.outcome == "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """A phase that ended. `gain` is how much it lowered the loss on train: that of its first profile minus its last's.

    `attempts` and `accepted` count its trials; `axes` counts the accepted trials that changed each surface.
    """

    cycle: int
    phase: PhaseKind
    study_id: str = ""
    attempts: int = 0
    accepted: int = 0
    gain: float = 0.0
    ended: PhaseEnd
    reason: str = ""
    first: LossFigures
    last: LossFigures
    axes: Mapping[str, int] = field(default_factory=dict)


@round_details("coordinate_descent")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialDetails(BackpropDetails):
    """The trials of a round, and the passes of its backward pass, if it made one.

    `started` is the phase that began with this round, `ended` the one that ended with it.
    """

    trials: tuple[Trial, ...] = ()
    started: PhaseStarted | None = None
    ended: PhaseResult | None = None


@event_type("phase_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted(DetailsPayload):
    """The start of a phase, in its first round. `first` are the figures of the accepted profile on train.

    In the first phase of a run that is the initial profile: trial 0.
    """

    cycle: int
    phase: PhaseKind
    study_id: str = ""
    first: LossFigures
    measured: TrialMeasured = field(default_factory=TrialMeasured)

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        return replace(_widen(details), started=self)


@event_type("points")
@dataclass(frozen=True, slots=True, kw_only=True)
class PointsAsked(DetailsPayload):
    """The points that a study proposed for a batch. A resumed run uses these, whatever the sampler proposes now."""

    points: tuple[NumericProposal, ...]

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        return _widen(details)


@event_type("diagnosis")
@dataclass(frozen=True, slots=True, kw_only=True)
class TextsDiagnosed(DetailsPayload):
    """What the critic of a textual trial says, by surface. `problem` is why a diagnosis is missing."""

    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    problem: str = ""
    measured: StagesMeasured = field(default_factory=StagesMeasured)

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        known = _widen(details)
        return replace(known, measured=known.measured + self.measured)


@event_type("edits")
@dataclass(frozen=True, slots=True, kw_only=True)
class TextsEdited(DetailsPayload):
    """What the applier of a textual trial wrote, by surface. `refused` texts are not tried, `problem` says why."""

    edits: Mapping[str, TextEdit] = field(default_factory=dict)
    refused: tuple[Rejection, ...] = ()
    problem: str = ""
    measured: StagesMeasured = field(default_factory=StagesMeasured)

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        known = _widen(details)
        return replace(known, measured=known.measured + self.measured)


@event_type("trial")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished(DetailsPayload):
    """The end of a trial, after its decision."""

    trial: Trial

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        known = _widen(details)
        return replace(known, trials=(*known.trials, self.trial))


@event_type("phase_ended")
@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded(DetailsPayload):
    """The end of a phase, in its last round."""

    phase: PhaseResult

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        return replace(_widen(details), ended=self.phase)


def get_trials(result: RoundResult) -> tuple[Trial, ...]:
    """The trials of a round; none if another search made it."""
    return result.details.trials if isinstance(result.details, TrialDetails) else ()


def list_phases(rounds: Iterable[RoundResult]) -> Iterator[PhaseResult]:
    """The phases that ended, in their order."""
    for each in rounds:
        if isinstance(each.details, TrialDetails) and each.details.ended is not None:
            yield each.details.ended


def measure_loss(evaluation: Evaluation, objective: Objective) -> LossFigures | None:
    """The figures of an evaluation; None if no sweep of it has a value."""
    best = get_best_value(objective)
    repeats = sorted({row.repeat for row in evaluation.rows})
    sweeps = [
        replace(evaluation, rows=tuple(row for row in evaluation.rows if row.repeat == repeat)) for repeat in repeats
    ]
    values = [value for each in sweeps if (value := each.objective(objective)) is not None]
    if not values:
        return None
    runs = tuple(round(best - value, 12) + 0.0 for value in values)
    return LossFigures(
        mean=round(fmean(runs), 12),
        std=round(pstdev(runs), 12),
        runs=runs,
        errored=sum(not row.is_scored for row in evaluation.rows),
        is_reliable=evaluation.is_reliable,
        evaluation=evaluation.number,
        pass_rate=evaluation.pass_rate,
        metrics=evaluation.metric_means,
    )


def _widen(details: RoundDetails | None) -> TrialDetails:
    if isinstance(details, TrialDetails):
        return details
    if isinstance(details, BackpropDetails):
        return TrialDetails(passes=details.passes, blamed_in=details.blamed_in, measured=details.measured)
    return TrialDetails()
