"""The record of an iteration of a search that chooses parents, changes some components, and screens the child.

A search that keeps a pool of candidates, such as GEPA, makes one iteration per round. Its facts are the details of the
round: `result.rounds[n].details` is an `IterationDetails`, with the passes of a backward pass, if the search made one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.record import BackpropDetails, StagesMeasured
from promptiter.evaluation.result import Evaluation, Objective, get_best_value
from promptiter.runlog.details import DetailsPayload, RoundDetails, round_details
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.results import RoundResult
from promptiter.stages.optimizer import Rejection

IterationKind: TypeAlias = Literal["reflective", "merge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration. Candidates are named by their digests, and numbered in the order in which the pool took them.

    `parents` are the numbers of those that it started from: one, or two of a merge. `components` are the surfaces that
    were to change. `minibatch` are the cases of the screening, by id, and `parent_scores` and `candidate_scores` their
    scores; a merge has one list of parent scores per parent. `validation_score` is the mean on validation, if the
    candidate passed the screening; then it has a `pool_number`, and `is_best` if no other scores higher.
    `skipped` says why there is no candidate, `error` is why a reflection failed.
    """

    number: int
    kind: IterationKind = "reflective"
    parents: tuple[int, ...] = ()
    components: tuple[str, ...] = ()
    candidate: str | None = None
    minibatch: tuple[str, ...] = ()
    parent_scores: tuple[tuple[float, ...], ...] = ()
    candidate_scores: tuple[float, ...] = ()
    validation_score: float | None = None
    validation_scores: Mapping[str, float] = field(default_factory=dict)
    pool_number: int | None = None
    is_best: bool = False
    front: tuple[int, ...] = ()
    skipped: str = ""
    error: str = ""


@round_details("iterations")
@dataclass(frozen=True, slots=True, kw_only=True)
class IterationDetails(BackpropDetails):
    """The iteration of a round, and the passes of its backward pass. `iteration` is None if it did not end."""

    iteration: Iteration | None = None
    refused: tuple[Rejection, ...] = ()


def score_cases(evaluation: Evaluation, objective: Objective) -> dict[str, float]:
    """The scores of cases as an iteration has them: the objective from 0 to 1. What could not be scored counts 0."""
    best = get_best_value(objective)
    values = {each.case_id: each.objective(objective) for each in evaluation.cases}
    return {case_id: 0.0 if value is None else 1.0 + value - best for case_id, value in values.items()}


def get_iteration(result: RoundResult) -> Iteration | None:
    """The iteration of a round; None if another search made it, or it did not end."""
    return result.details.iteration if isinstance(result.details, IterationDetails) else None


def get_reflection(result: RoundResult) -> StagesMeasured:
    """What the calls of a round to blame and to write new texts cost, of whichever model; nothing if it made none."""
    return result.details.measured if isinstance(result.details, BackpropDetails) else StagesMeasured()


@event_type("reflection")
@dataclass(frozen=True, slots=True, kw_only=True)
class TextsProposed(DetailsPayload):
    """The new texts of a reflection, by surface. `refused` texts are not tried; `notes` say why others are missing.

    `failed` are the surfaces for which the model gave no usable answer.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    measured: StagesMeasured = field(default_factory=StagesMeasured)

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        known = _widen(details)
        return replace(known, measured=known.measured + self.measured, refused=(*known.refused, *self.refused))


@event_type("iteration")
@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFinished(DetailsPayload):
    """The end of an iteration."""

    iteration: Iteration

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        return replace(_widen(details), iteration=self.iteration)


@event_type("search_stop")
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStopChecked(Payload):
    """Whether a stop condition of the search's own holds: its name, or empty if none does."""

    reason: str = ""


def _widen(details: RoundDetails | None) -> IterationDetails:
    if isinstance(details, IterationDetails):
        return details
    if isinstance(details, BackpropDetails):
        return IterationDetails(passes=details.passes, blamed_in=details.blamed_in, measured=details.measured)
    return IterationDetails()
