"""The trajectory of a run: the objective of each profile that was validated or tested, in order, with its noise.

The noise of a score is that between the repeats of a case. A profile that ran once is given the noise of the profiles
of this run that ran more often; without any of these it is unknown.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from io import StringIO
from typing import Literal, TypeAlias

from promptiter.evaluation.result import Evaluation, Objective, merge_evaluations
from promptiter.evaluation.stats.power import pooled_std
from promptiter.runlog.results import CandidateResult, RunResult

PointKind: TypeAlias = Literal["baseline", "accepted", "rejected", "undecided"]
"""Whose score it is: that of the baseline or of a candidate. In the final test, `accepted` is the best candidate."""

PointPhase: TypeAlias = Literal["search", "final test", "test set"]

INTERVAL_95 = 1.96
"""Standard errors on each side of a 95% interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPoint:
    """The objective of one profile on one eval set. A loss is shown as a positive number.

    `noise` is half of the 95% interval that repeating the same runs would give around it; None if it is unknown.
    """

    round: int
    phase: PointPhase
    kind: PointKind
    profile: str
    score: float
    noise: float | None = None
    cases: int = 0
    passed: int = 0
    repeats: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """How much the repeats of an evaluation differ, and the degrees of freedom of that; the number of its runs."""

    std: float
    freedom: int
    runs: int


def trace_trajectory(result: RunResult) -> tuple[TrajectoryPoint, ...]:
    """The points of a run in the order in which they were measured; what could not be scored is left out."""
    measured = list(_measure_all(result))
    freedom = sum(spread.freedom for _, spread in measured)
    squares = math.fsum(spread.std**2 * spread.freedom for _, spread in measured)
    typical = math.sqrt(squares / freedom) if freedom else None

    def estimate_noise(spread: _Spread) -> float | None:
        std = spread.std if spread.freedom else typical
        return None if std is None else INTERVAL_95 * std / math.sqrt(spread.runs)

    return tuple(replace(point, noise=estimate_noise(spread)) for point, spread in measured)


def write_csv(points: Iterable[TrajectoryPoint]) -> str:
    """The content of trajectory.csv. Unknown noise is an empty field."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(TrajectoryPoint)]
    table.writerow(names)
    for each in points:
        values = (getattr(each, name) for name in names)
        table.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def _measure_all(result: RunResult) -> Iterator[tuple[TrajectoryPoint, _Spread]]:
    """The baseline, each candidate on validation, then both profiles of the final test, on validation and test set."""
    baseline, best, objective = result.initial_profile.digest, result.working_profile.digest, result.objective
    yield from _measure(_find(result, "baseline", baseline), objective)
    last = 0
    for each in result.rounds:
        last = each.round
        for candidate in each.candidates:
            for point, spread in _measure(candidate.validation, objective):
                reason = "" if candidate.decision is None else candidate.decision.reason
                yield replace(point, round=each.round, kind=_name_kind(candidate), reason=reason), spread
    phases: tuple[tuple[str, PointPhase], ...] = (("final_test", "final test"), ("test", "test set"))
    profiles: tuple[tuple[str, PointKind], ...] = ((baseline, "baseline"), (best, "accepted"))
    for phase, name in phases:
        for profile, kind in profiles:
            for point, spread in _measure(_find(result, phase, profile), objective):
                yield replace(point, round=last, phase=name, kind=kind), spread


def _find(result: RunResult, phase: str, profile: str) -> Evaluation | None:
    """The evaluation of a profile outside of rounds; the final test may have several."""
    found = (each for each in result.evaluations if each.phase == phase and each.profile_digest == profile)
    return merge_evaluations(found)


def _name_kind(candidate: CandidateResult) -> PointKind:
    if candidate.decision is None:
        return "undecided"
    return "accepted" if candidate.decision.accepted else "rejected"


def _measure(evaluation: Evaluation | None, objective: Objective) -> Iterator[tuple[TrajectoryPoint, _Spread]]:
    """The point of an evaluation, without its noise, and the spread of its repeats; nothing if it has no score."""
    score = None if evaluation is None else evaluation.objective(objective)
    if evaluation is None or score is None:
        return
    repeats = [_score_repeats(evaluation, case_id, objective) for case_id in evaluation.rows_by_case]
    point = TrajectoryPoint(
        round=0,
        phase="search",
        kind="baseline",
        profile=evaluation.profile_digest[:8],
        score=abs(score) if objective == "weighted_loss" else score,
        cases=len(repeats),
        passed=sum(case.passed for case in evaluation.cases),
        repeats=max(map(len, evaluation.rows_by_case.values())),
    )
    freedom = sum(len(each) - 1 for each in repeats if each)
    yield point, _Spread(std=pooled_std(repeats), freedom=freedom, runs=max(1, sum(map(len, repeats))))


def _score_repeats(evaluation: Evaluation, case_id: str, objective: Objective) -> list[float]:
    """The objective in each repeat of a case that could be scored."""
    rows = evaluation.rows_by_case[case_id]
    if len(rows) == 1:  # the common case, and its score does not matter
        return [0.0]
    figures = (evaluation.summarize(case_id, (row,)).objective(objective) for row in rows)
    return [figure for figure in figures if figure is not None]
