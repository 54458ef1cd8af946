"""Evidence: what a candidate is decided on, and what can be said of it.

Repeats of a case count from 0, in the order in which they were run, and are the same under both profiles. So what was
seen at a look is always a fixed part of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation, Objective, get_worst_value
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.policies.combine import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceDecision:
    """What a policy says of a candidate. `delta` is the gain over the accepted profile, None if there is no figure.

    It is the gain on validation; on train, if the matter was settled there before validation was run.
    """

    accepted: bool
    delta: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreEvidence:
    """A policy wants so many more repeats of these cases, under both profiles, before it decides; no cases: of all.

    `on` says of which set. Validation that was not run yet is run with the repeats of the run, or with these if they
    are more.
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
    """One case under both profiles, in figures of the objective: higher is better, a loss counts negative."""

    case_id: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a policy decides on: the accepted profile (`baseline`) and the candidate, evaluated on the same cases.

    `tried` counts the candidates of the run so far, this one included; `protected` are the cases that must hold;
    `opening` is how many repeats of each case the first look at validation has. `train` is the same on the train cases,
    if a policy asked for it; one that opens there may see it before the candidate has any row here. `characters` is the
    length of all texts that may change, under either profile, if it is known. `gained` is what the accepted candidates
    before this one gained together.

    What is told of cases rests on the repeats that all of them have: more repeats of some, which look bad so far, would
    favour the candidate, for chance does not strike twice. A policy that asks for such repeats finds them in the rows.
    """

    baseline: Evaluation
    candidate: Evaluation
    objective: Objective = "mean_score"
    round: int = 0
    tried: int = 1
    protected: frozenset[str] = frozenset()
    opening: int = 1
    train: Evidence | None = None
    characters: tuple[int, int] | None = None
    gained: float = 0.0

    @property
    def has_validation(self) -> bool:
        """Whether the candidate was run on validation yet."""
        return bool(self.candidate.rows)

    @cached_property
    def common(self) -> Evidence:
        """The same with the repeats alone that all cases have; a case that was not run at all has nothing to share."""
        drawn: dict[tuple[str, str], set[int]] = {}
        for arm, evaluation in (("baseline", self.baseline), ("candidate", self.candidate)):
            for row in evaluation.rows:
                drawn.setdefault((arm, row.case_id), set()).add(row.repeat)
        shared = set.intersection(*drawn.values()) if drawn else set()
        if not shared or all(repeats == shared for repeats in drawn.values()):
            return self
        return self._with(shared)

    def first(self, repeats: int) -> Evidence:
        """The same with the first repeats alone."""
        return self._with(range(repeats))

    def _with(self, repeats: Container[int]) -> Evidence:
        baseline, candidate = (
            replace(each, rows=tuple(row for row in each.rows if row.repeat in repeats))
            for each in (self.baseline, self.candidate)
        )
        return replace(self, baseline=baseline, candidate=candidate)

    @cached_property
    def gain(self) -> float | None:
        """How much the objective rises, case by case; None if one of the two profiles has no figure.

        Left out of the mean, a failed run would flatter the prompt that made it fail. So a run that could not be scored
        counts here as the worst: 0, a loss of 1, or the lowest figure of any case if that is lower. This holds for both
        profiles alike: losing a case is a loss, mending one is a gain, and what neither could score changes nothing.
        Rounded to 12 digits, so that 0.7 after 0.2 is 0.5.
        """
        seen = self.common
        if None in (seen.baseline.objective(self.objective), seen.candidate.objective(self.objective)):
            return None
        total = math.fsum(delta.change for delta in self._all_deltas)
        return round(total / len(self._all_deltas), 12) + 0.0  # no -0.0

    @cached_property
    def deltas(self) -> tuple[CaseDelta, ...]:
        """The cases scored under both profiles, by id. With several repeats, a failed one counts as the worst."""
        scored = _scored(self.common.baseline) & _scored(self.common.candidate)
        return tuple(delta for delta in self._all_deltas if delta.case_id in scored)

    @property
    def new_passes(self) -> tuple[str, ...]:
        return tuple(sorted(_passed(self.common.candidate) - _passed(self.common.baseline)))

    @property
    def new_fails(self) -> tuple[str, ...]:
        """The cases that passed and no longer do, because they fail or could not be scored."""
        return tuple(sorted(_passed(self.common.baseline) - _passed(self.common.candidate)))

    @property
    def lost(self) -> tuple[str, ...]:
        """The cases that only the accepted profile could score."""
        return tuple(sorted(_scored(self.common.baseline) - _scored(self.common.candidate)))

    @property
    def mended(self) -> tuple[str, ...]:
        """The cases that only the candidate could score."""
        return tuple(sorted(_scored(self.common.candidate) - _scored(self.common.baseline)))

    @cached_property
    def problem(self) -> str | None:
        """Why no policy may accept a candidate on this evidence, in words; None if one may."""
        if self.train is not None and (self.train.problem is not None or not self.has_validation):
            return f"on train, {self.train.problem}" if self.train.problem is not None else None
        seen = self.common
        for name, evaluation in (("the candidate", seen.candidate), ("the accepted profile", seen.baseline)):
            if not evaluation.is_reliable:
                share, limit = evaluation.errored_fraction, evaluation.max_errored_fraction
                return f"{name} is unreliable: {share:.1%} of its runs or scores failed, the limit is {limit:.1%}"
            if evaluation.objective(self.objective) is None:
                return f"{name} has no {self.objective}: none of its {len(evaluation.cases)} cases could be scored"
        return None

    def accept(self, reason: str) -> AcceptanceDecision:
        return AcceptanceDecision(accepted=True, delta=self._delta, reason=reason)

    def reject(self, reason: str) -> AcceptanceDecision:
        return AcceptanceDecision(accepted=False, delta=self._delta, reason=reason)

    @property
    def _delta(self) -> float | None:
        return self.train.gain if self.train is not None and not self.has_validation else self.gain

    @cached_property
    def _all_deltas(self) -> tuple[CaseDelta, ...]:
        seen = self.common
        before, after = _figures(seen.baseline, self.objective), _figures(seen.candidate, self.objective)
        worst = _worst(self.objective, (value for value, _ in (*before.values(), *after.values())))
        return tuple(
            CaseDelta(
                case_id=case_id,
                before=_counted(before, case_id, worst=worst),
                after=_counted(after, case_id, worst=worst),
            )
            for case_id in sorted({*before, *after})
        )


def pair_scores(
    baseline: Evaluation, candidate: Evaluation, objective: Objective = "mean_score"
) -> tuple[PairedScores, ...]:
    """Each case under both profiles, repeat by repeat, in figures of the objective; by case id, in the order of the
    repeats.

    This is what the exact tests of `promptiter.evaluation.stats` ask for. A repeat that could not be scored counts as
    the worst, as in `Evidence.gain`; one that only one of the profiles ran does not count, for it has nothing beside
    it.
    """
    before, after = _drawn(baseline, objective), _drawn(candidate, objective)
    known = (
        value for repeats in (*before.values(), *after.values()) for value in repeats.values() if value is not None
    )
    worst = _worst(objective, known)
    found = []
    for case_id in sorted({*before, *after}):
        one, other = before.get(case_id, {}), after.get(case_id, {})
        common = sorted(one.keys() & other.keys())
        if not common:
            raise SetupError(
                f"case {case_id!r} has no repeat under both profiles; run both on the same cases and repeats"
            )
        found.append(
            PairedScores(case_id=case_id, before=_counting(one, common, worst), after=_counting(other, common, worst))
        )
    return tuple(found)


def _drawn(evaluation: Evaluation, objective: Objective) -> dict[str, dict[int, float | None]]:
    """The objective of each single run, by case and repeat."""
    found: dict[str, dict[int, float | None]] = {}
    for row in evaluation.rows:
        found.setdefault(row.case_id, {})[row.repeat] = replace(evaluation, rows=(row,)).objective(objective)
    return found


def _counting(arm: Mapping[int, float | None], repeats: Iterable[int], worst: float) -> tuple[float, ...]:
    return tuple(worst if (value := arm[repeat]) is None else value for repeat in repeats)


def _worst(objective: Objective, figures: Iterable[float]) -> float:
    return min([get_worst_value(objective), *figures])


def _figures(evaluation: Evaluation, objective: Objective) -> dict[str, tuple[float, float]]:
    """Of each case the objective of its runs alone, and the share of them that could be scored."""
    found = {}
    for case_id, group in groupby(evaluation.rows, key=lambda row: row.case_id):
        rows = tuple(group)
        value = replace(evaluation, rows=rows).objective(objective)
        # The pass rate settles by itself what a failed run is worth: the case passes by its other runs, or fails.
        share = 1.0 if objective == "pass_rate" else sum(row.is_scored for row in rows) / len(rows)
        found[case_id] = _UNSCORED if value is None else (value, share)
    return found


def _counted(figures: Mapping[str, tuple[float, float]], case_id: str, *, worst: float) -> float:
    value, share = figures.get(case_id, _UNSCORED)
    return share * value + (1.0 - share) * worst


_UNSCORED = (0.0, 0.0)


def _scored(evaluation: Evaluation) -> set[str]:
    return {case.case_id for case in evaluation.cases if case.is_scored}


def _passed(evaluation: Evaluation) -> set[str]:
    return {case.case_id for case in evaluation.cases if case.passed}
