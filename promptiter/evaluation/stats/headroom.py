"""Headroom: whether there is anything to win on these cases, before money is spent on a search.

Three signs: failing cases that pass in some repeats, so the agent can solve them; what a stronger model or the teacher
reaches; and metrics that every run meets, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from promptiter.evaluation.result import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderResult:
    """What another model, or the teacher, reaches on these cases, or the problem that kept it from being measured."""

    name: str
    evaluation: Evaluation | None = None
    problem: str | None = None

    @property
    def passed(self) -> frozenset[str]:
        """The ids of the cases that pass."""
        return (
            frozenset(case.case_id for case in self.evaluation.cases if case.passed) if self.evaluation else frozenset()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Which cases pass in every repeat, in some and in none, and what the best repeat of each case adds up to.

    `mean` and `best_of_repeats` are of the objective; higher is better.
    """

    always: tuple[str, ...]
    sometimes: tuple[str, ...]
    never: tuple[str, ...]
    mean: float
    best_of_repeats: float
    saturated: tuple[str, ...] = ()
    never_met: tuple[str, ...] = ()
    reached: tuple[ContenderResult, ...] = ()

    @property
    def failing(self) -> tuple[str, ...]:
        """The cases that fail in at least one repeat."""
        return tuple(sorted((*self.sometimes, *self.never)))


def find_headroom(
    passed: dict[str, Sequence[bool]],
    figures: Sequence[Sequence[float]],
    *,
    saturated: Sequence[str] = (),
    never_met: Sequence[str] = (),
    reached: Sequence[ContenderResult] = (),
) -> Headroom:
    """The headroom of cases, from whether each repeat passed, by case id, and the objective of each repeat."""
    return Headroom(
        always=tuple(case_id for case_id, runs in passed.items() if all(runs)),
        sometimes=tuple(case_id for case_id, runs in passed.items() if any(runs) and not all(runs)),
        never=tuple(case_id for case_id, runs in passed.items() if not any(runs)),
        mean=fmean(map(fmean, figures)),
        best_of_repeats=fmean(map(max, figures)),
        saturated=tuple(saturated),
        never_met=tuple(never_met),
        reached=tuple(reached),
    )
