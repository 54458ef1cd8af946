"""What happened to the case runs of a final test, for each profile: failed, lost to an outage, or not new.

A run in which the agent failed counts with the worst score. A run that an outage lost says nothing about a profile, so
it is left out under both. A run whose answers were all in a shared cache is the repeat of another run, not a new one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.final_test import Scope
from promptiter.wording import plural

MAX_CHANCE = 0.05
"""Profiles differ in their lost runs if outages that hit both alike would rarely be distributed so unevenly."""

_BEFORE, _AFTER = "the initial profile", "the accepted one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeasured:
    """The runs that a cache answered without a call of this run: it had all answers before."""

    from_cache: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRuns:
    """The case runs of one profile."""

    runs: int = 0
    failed: int = 0
    lost: int = 0
    measured: ArmMeasured = field(default=ArmMeasured(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRuns:
    """The runs of both profiles in the final test of one scope. `pairs` is how many the test used of each.

    The change did not reach the `unreached` ones of the `cases`: both profiles had the same answers in all their runs.
    """

    scope: Scope = "these cases"
    before: ArmRuns = ArmRuns()
    after: ArmRuns = ArmRuns()
    pairs: int = 0
    cases: int = 0
    unreached: int = 0


NO_RUNS = PairedRuns()


def count_runs(evaluation: Evaluation) -> ArmRuns:
    """Count the runs of one profile."""
    rows = evaluation.rows
    lost = sum(row.outage is not None for row in rows)
    return ArmRuns(
        runs=len(rows),
        failed=sum(not row.is_scored for row in rows) - lost,
        lost=lost,
        measured=ArmMeasured(from_cache=sum(row.origin == "cache" for row in rows)),
    )


def count_paired_runs(before: Evaluation, after: Evaluation, tested: Evaluation, *, unreached: int) -> PairedRuns:
    """Count the runs that both profiles made. `tested` are those of the first one that have a pair."""
    return PairedRuns(
        before=count_runs(before),
        after=count_runs(after),
        pairs=len(tested.rows),
        cases=len(tested.rows_by_case),
        unreached=unreached,
    )


def describe_runs(tested: Sequence[PairedRuns]) -> tuple[str, ...]:
    """Say what kept runs out of the test, or makes them worth less, as one sentence for each cause and scope."""
    return tuple(sentence for each in tested for sentence in _describe_scope(each))


def describe_failed_runs(tested: PairedRuns, *, before: str = _BEFORE, after: str = _AFTER) -> list[str]:
    """Say which runs failed or were lost under each profile. `before` and `after` are what the profiles are called."""
    found, arms = [], (tested.before, tested.after)
    if any(arm.failed for arm in arms):
        counts = _compare(tested, [arm.failed for arm in arms], before, after)
        found.append(f"{counts} failed and count with the worst score")
    if any(arm.lost for arm in arms):
        counts = _compare_lost(tested, before, after)
        found.append(f"{counts}; {tested.pairs} of {arms[0].runs} pairs of runs were tested")
    if _is_uneven(tested.before.lost, tested.after.lost):
        found.append(_UNEVEN)
    return found


def describe_uneven_outages(tested: Sequence[PairedRuns]) -> tuple[str, ...]:
    """Say how many runs each profile lost, as one sentence for each scope in which one lost more than chance explains.

    `describe_runs` says the same, among others.
    """
    uneven = (each for each in tested if _is_uneven(each.before.lost, each.after.lost))
    return tuple(f"{each.scope}: {_compare_lost(each)}; {_UNEVEN}" for each in uneven)


_UNEVEN = "outages hit one profile more often than the other: find the cause before you rely on the result"


def _describe_scope(tested: PairedRuns) -> list[str]:
    found = []
    if tested.unreached:
        reached = f"the change reached {tested.cases - tested.unreached} of {plural(tested.cases, 'case')}"
        found.append(f"{reached}; the others had the same answers under both profiles, and their noise was not tested")
    found += describe_failed_runs(tested)
    cached = [arm.measured.from_cache for arm in (tested.before, tested.after)]
    if any(cached):
        counts = _compare(tested, cached, _BEFORE, _AFTER)
        found.append(f"{counts} are not new: a shared cache had all their answers")
    return [f"{tested.scope}: {sentence}" for sentence in found]


def _compare_lost(tested: PairedRuns, before: str = _BEFORE, after: str = _AFTER) -> str:
    return f"{_compare(tested, [tested.before.lost, tested.after.lost], before, after)} were lost to outages"


def _compare(tested: PairedRuns, counts: Sequence[int], before: str, after: str) -> str:
    """`1 of 12 runs of the initial profile and 3 of 12 of the accepted one`."""
    first, second = counts
    return f"{first} of {tested.before.runs} runs of {before} and {second} of {tested.after.runs} of {after}"


def _is_uneven(before: int, after: int) -> bool:
    """Whether a fair coin for each lost run would rarely distribute them this unevenly (two-sided sign test)."""
    total, fewer = before + after, min(before, after)
    tail = sum(math.comb(total, count) for count in range(fewer + 1)) / 2**total
    return total > 0 and 2 * tail <= MAX_CHANCE
