"""Evidence: two evaluations of the same cases that an acceptance policy decides on, and the figures they give.

Repeats of a case are numbered from 0 in the order of their runs, the same under both profiles, so the rows of an
earlier look are always a fixed part of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation, Objective, get_worst_value
from promptiter.numbers import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceDecision:
    """A policy's decision on a candidate. `delta` is the gain over the accepted profile, None if it is unknown.

    It is the gain on validation, or on train if the policy decided before validation was run.
    """

    accepted: bool
    delta: float | None
    reason: str

    @property
    def without_figures(self) -> AcceptanceDecision:
        """Whether the candidate was accepted, and nothing else that validation says."""
        reason = f"{'accepted' if self.accepted else 'not accepted'} on validation"
        return AcceptanceDecision(accepted=self.accepted, delta=None, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreEvidence:
    """A policy's request for more repeats of these cases, or of all if none are named, under both profiles.

    `on` is the eval set. If validation has not run yet, it runs with the repeats of the run, or with these if they are
    more.
    """

    cases: tuple[str, ...] = ()
    repeats: int = 1
    on: Literal["validation", "train"] = "validation"
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(sorted(set(self.cases))))
        if not is_number(self.repeats, least=1):
            raise SetupError(f"a policy asks for {self.repeats!r} more repeats; give 1 or more")


Answer: TypeAlias = AcceptanceDecision | MoreEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDelta:
    """One case under both profiles, in values of the objective: higher is better, a loss is negative."""

    case_id: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a policy decides on: the accepted profile and the candidate, evaluated on the same cases.

    `candidates_tried` counts the candidates of the run, including this one. `protected` cases must still pass.
    `first_look_repeats` is the number of repeats in the first look at validation. `train` is the evidence on the train
    cases, if a policy asked for it, perhaps before there is any on validation. `characters` is the length of all texts
    that may change under each profile, if known. `accepted_gain` is the total gain of the candidates accepted before.

    All figures use only the repeats that every case has. Extra repeats of cases that look bad so far would favour the
    candidate, because bad luck rarely repeats. A policy that asks for such repeats finds them in the rows.
    """

    accepted: Evaluation
    candidate: Evaluation
    objective: Objective = "mean_score"
    round: int = 0
    candidates_tried: int = 1
    protected: frozenset[str] = frozenset()
    first_look_repeats: int = 1
    train: Evidence | None = None
    characters: tuple[int, int] | None = None
    accepted_gain: float = 0.0

    @property
    def has_validation(self) -> bool:
        """Whether the candidate has run on validation."""
        return bool(self.candidate.rows)

    @cached_property
    def common(self) -> Evidence:
        """This evidence with only the repeats that all cases have. Cases that were not run are ignored."""
        repeats: dict[tuple[str, str], set[int]] = {}
        for arm, evaluation in (("accepted", self.accepted), ("candidate", self.candidate)):
            for row in evaluation.rows:
                repeats.setdefault((arm, row.case_id), set()).add(row.repeat)
        shared = set.intersection(*repeats.values()) if repeats else set()
        if not shared or all(each == shared for each in repeats.values()):
            return self
        return self._select_repeats(shared)

    def first_repeats(self, count: int) -> Evidence:
        """Return this evidence with only the first repeats."""
        return self._select_repeats(range(count))

    def _select_repeats(self, repeats: Container[int]) -> Evidence:
        accepted, candidate = (
            replace(each, rows=tuple(row for row in each.rows if row.repeat in repeats))
            for each in (self.accepted, self.candidate)
        )
        return replace(self, accepted=accepted, candidate=candidate)

    @cached_property
    def gain(self) -> float | None:
        """The mean rise of the objective over the cases; None if one of the two profiles has no value.

        Leaving failed runs out of the mean would favour the prompt that made them fail. So a run that could not be
        scored counts as the worst value: 0, a loss of 1, or the lowest value of any case if that is lower. This holds
        for both profiles: a newly failing case is a loss, a fixed one a gain, and a case that neither could score
        changes nothing. Rounded to 12 digits, so that 0.7 - 0.2 is 0.5.
        """
        seen = self.common
        if None in (seen.accepted.objective(self.objective), seen.candidate.objective(self.objective)):
            return None
        total = math.fsum(delta.change for delta in self.all_deltas)
        return round(total / len(self.all_deltas), 12) + 0.0  # not -0.0

    @cached_property
    def deltas(self) -> tuple[CaseDelta, ...]:
        """The cases scored under both profiles, by id. A failed repeat counts as the worst value."""
        scored = _list_scored(self.common.accepted) & _list_scored(self.common.candidate)
        return tuple(delta for delta in self.all_deltas if delta.case_id in scored)

    @property
    def new_passes(self) -> tuple[str, ...]:
        return tuple(sorted(_list_passed(self.common.candidate) - _list_passed(self.common.accepted)))

    @property
    def new_fails(self) -> tuple[str, ...]:
        """The cases that no longer pass: they fail or could not be scored."""
        return tuple(sorted(_list_passed(self.common.accepted) - _list_passed(self.common.candidate)))

    @property
    def newly_unscored(self) -> tuple[str, ...]:
        """The cases that only the accepted profile could score."""
        return tuple(sorted(_list_scored(self.common.accepted) - _list_scored(self.common.candidate)))

    @property
    def newly_scored(self) -> tuple[str, ...]:
        """The cases that only the candidate could score."""
        return tuple(sorted(_list_scored(self.common.candidate) - _list_scored(self.common.accepted)))

    @cached_property
    def problem(self) -> str | None:
        """Why no policy may accept a candidate on this evidence; None if a policy may."""
        if self.train is not None and (self.train.problem is not None or not self.has_validation):
            return f"on train, {self.train.problem}" if self.train.problem is not None else None
        seen = self.common
        for name, evaluation in (("the candidate", seen.candidate), ("the accepted profile", seen.accepted)):
            if not evaluation.is_reliable:
                share, limit = evaluation.errored_fraction, evaluation.max_errored_fraction
                return f"{name} is unreliable: {share:.1%} of its runs or scores failed, the limit is {limit:.1%}"
            if evaluation.objective(self.objective) is None:
                return f"{name} has no {self.objective}: none of its {len(evaluation.cases)} cases could be scored"
        return None

    def accept(self, reason: str) -> AcceptanceDecision:
        return self.accept_if(True, reason)

    def reject(self, reason: str) -> AcceptanceDecision:
        return self.accept_if(False, reason)

    def accept_if(self, condition: bool, reason: str) -> AcceptanceDecision:
        """Return a decision on the candidate with its gain, on train if validation has not run."""
        gain = self.train.gain if self.train is not None and not self.has_validation else self.gain
        return AcceptanceDecision(accepted=condition, delta=gain, reason=reason)

    @cached_property
    def all_deltas(self) -> tuple[CaseDelta, ...]:
        """All cases, by id. One that could not be scored counts as the worst value."""
        seen = self.common
        before, after = _score_cases(seen.accepted, self.objective), _score_cases(seen.candidate, self.objective)
        worst = find_worst(self.objective, (value for value, _ in (*before.values(), *after.values())))
        return tuple(
            CaseDelta(
                case_id=case_id,
                before=_average(before, case_id, worst=worst),
                after=_average(after, case_id, worst=worst),
            )
            for case_id in sorted({*before, *after})
        )


def has_noise(evaluation: Evaluation) -> bool:
    """Whether some case scored differently in two of its repeats."""
    repeats = evaluation.rows_by_case.values()
    return any(len({tuple(score.value for score in row.scores) for row in rows}) > 1 for rows in repeats)


def find_worst(objective: Objective, figures: Iterable[float]) -> float:
    """The worst value of an objective: 0, a loss of 1, or the lowest of these figures if that is lower."""
    return min([get_worst_value(objective), *figures])


def _score_cases(evaluation: Evaluation, objective: Objective) -> dict[str, tuple[float, float]]:
    """Return, for each case, the objective of its runs and the share of them that could be scored."""
    found = {}
    for case in evaluation.cases:
        value, rows = case.objective(objective), evaluation.rows_by_case[case.case_id]
        # The pass rate already covers failed runs: the case passes by its other runs, or it fails.
        share = 1.0 if objective == "pass_rate" else sum(row.is_scored for row in rows) / len(rows)
        found[case.case_id] = _UNSCORED if value is None else (value, share)
    return found


def _average(figures: Mapping[str, tuple[float, float]], case_id: str, *, worst: float) -> float:
    value, share = figures.get(case_id, _UNSCORED)
    return share * value + (1.0 - share) * worst


_UNSCORED = (0.0, 0.0)


def _list_scored(evaluation: Evaluation) -> set[str]:
    return {case.case_id for case in evaluation.cases if case.is_scored}


def _list_passed(evaluation: Evaluation) -> set[str]:
    return {case.case_id for case in evaluation.cases if case.passed}
