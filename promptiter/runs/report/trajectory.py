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
from promptiter.profile import Profile
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult

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


_Measured: TypeAlias = tuple[TrajectoryPoint, _Spread]


class Trajectory:
    """Collects the points of a run: its rounds are added in order. What could not be scored is left out."""

    def __init__(self, result: RunResult) -> None:
        self._result = result
        self._objective = result.objective
        self._searched: list[_Measured] = []
        self._last_round = 0

    def add(self, each: RoundResult) -> None:
        self._last_round = each.round
        for candidate in each.candidates:
            for point, spread in _measure(candidate.validation, self._objective):
                reason = "" if candidate.decision is None else candidate.decision.reason
                found = replace(point, round=each.round, kind=_name_kind(candidate), reason=reason)
                self._searched.append((found, spread))

    @property
    def points(self) -> tuple[TrajectoryPoint, ...]:
        """The points in the order in which they were measured: the baseline, the candidates, the final test."""
        measured = [*self._measure_baseline(), *self._searched, *self._measure_final_test()]
        freedom = sum(spread.freedom for _, spread in measured)
        squares = math.fsum(spread.std**2 * spread.freedom for _, spread in measured)
        typical = math.sqrt(squares / freedom) if freedom else None
        return tuple(replace(point, noise=_estimate_noise(spread, typical)) for point, spread in measured)

    def _measure_baseline(self) -> Iterator[_Measured]:
        yield from _measure(_find(self._result, "baseline", self._result.initial_profile.digest), self._objective)

    def _measure_final_test(self) -> Iterator[_Measured]:
        """Both profiles of the final test, on the cases of the search and on the test set."""
        phases: tuple[tuple[str, PointPhase], ...] = (("final_test", "final test"), ("test", "test set"))
        profiles: tuple[tuple[Profile, PointKind], ...] = (
            (self._result.initial_profile, "baseline"),
            (self._result.working_profile, "accepted"),
        )
        for phase, name in phases:
            for profile, kind in profiles:
                for point, spread in _measure(_find(self._result, phase, profile.digest), self._objective):
                    yield replace(point, round=self._last_round, phase=name, kind=kind), spread


def _estimate_noise(spread: _Spread, typical: float | None) -> float | None:
    std = spread.std if spread.freedom else typical
    return None if std is None else INTERVAL_95 * std / math.sqrt(spread.runs)


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


def _find(result: RunResult, phase: str, profile: str) -> Evaluation | None:
    """The evaluation of a profile outside of rounds; the final test may have several."""
    found = (each for each in result.evaluations if each.phase == phase and each.profile_digest == profile)
    return merge_evaluations(found)


def _name_kind(candidate: CandidateResult) -> PointKind:
    if candidate.decision is None:
        return "undecided"
    return "accepted" if candidate.decision.accepted else "rejected"


def _measure(evaluation: Evaluation | None, objective: Objective) -> Iterator[_Measured]:
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
