"""Pairing: the repeats of each case under two profiles, matched so that they can be compared."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.policies.evidence import find_worst


def renumber_repeats(
    accepted: Evaluation, candidate: Evaluation, *, unaffected: frozenset[str]
) -> tuple[Evaluation, Evaluation]:
    """Number the repeats of each case from 0. An unaffected case gets its first run in every repeat.

    Unaffected cases cannot differ between the profiles, so their run-to-run noise must not hide what does.
    """
    repeats = max((len(rows) for rows in accepted.rows_by_case.values()), default=0)

    def renumber(arm: Evaluation) -> Evaluation:
        found = []
        for case_id, rows in arm.rows_by_case.items():
            again = rows[:1] * repeats if case_id in unaffected else rows
            found += [replace(row, repeat=repeat) for repeat, row in enumerate(again)]
        return replace(arm, rows=tuple(found))

    return renumber(accepted), renumber(candidate)


def pair_scores(
    accepted: Evaluation, candidate: Evaluation, objective: Objective = "mean_score"
) -> tuple[PairedScores, ...]:
    """Return the objective of each case under both profiles, repeat by repeat, for the tests of `evaluation.stats`.

    A repeat that could not be scored counts as the worst value, as in `Evidence.gain`. A repeat that only one profile
    ran is left out; see `leave_out_lost_pairs`.
    """
    before, after = (
        {(row.case_id, row.repeat): arm.summarize(row.case_id, (row,)).objective(objective) for row in arm.rows}
        for arm in (accepted, candidate)
    )
    common = sorted(before.keys() & after.keys())
    if unpaired := {case_id for case_id, _ in before.keys() ^ after.keys()} - {case_id for case_id, _ in common}:
        raise SetupError(
            f"case {min(unpaired)!r} has no repeat under both profiles; run both on the same cases and repeats"
        )
    worst = find_worst(objective, (value for value in (*before.values(), *after.values()) if value is not None))
    position = {repeat: number for number, repeat in enumerate(sorted({repeat for _, repeat in common}))}
    found = []
    for case_id, group in groupby(common, key=itemgetter(0)):
        runs = list(group)
        first, second = (
            tuple(worst if (value := arm[run]) is None else value for run in runs) for arm in (before, after)
        )
        numbers = tuple(position[repeat] for _, repeat in runs)
        is_complete = numbers == tuple(range(len(runs)))
        found.append(PairedScores(case_id=case_id, before=first, after=second, numbers=() if is_complete else numbers))
    return tuple(found)


def leave_out_lost_pairs(accepted: Evaluation, candidate: Evaluation) -> tuple[Evaluation, Evaluation]:
    """Return both without the case runs that an outage lost under either profile.

    An outage says nothing about a profile. Leaving the run out under both keeps the comparison fair, because otherwise
    the other profile would be scored on repeats that this one does not have.
    """
    lost = {(row.case_id, row.repeat) for arm in (accepted, candidate) for row in arm.rows if row.outage is not None}
    if not lost:
        return accepted, candidate
    first, second = (
        replace(arm, rows=tuple(row for row in arm.rows if (row.case_id, row.repeat) not in lost))
        for arm in (accepted, candidate)
    )
    return first, second
