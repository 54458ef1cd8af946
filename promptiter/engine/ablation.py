"""Ablation: removes parts of the accepted profile that do not help, before the final test.

A part is a surface that differs from the initial profile. It is removed if the profile without it is no worse on the
train cases, so that nothing is learned from validation. Both are run at the same time, on repeats that no decision has
seen. Parts are removed one at a time, because of two parts with the same effect one must stay. The last part always
stays: the final test decides about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from random import Random
from statistics import fmean
from typing import TypeVar

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.permutation import sign_flip
from promptiter.evaluation.surface_reads import may_touch
from promptiter.policies.evidence import Evidence
from promptiter.policies.pairing import leave_out_lost_pairs
from promptiter.runlog.payloads import AblationFinished
from promptiter.runlog.results import Ablation

Part = TypeVar("Part")

_NO_LOSS = 1e-12

_CLEAR, _FEWEST_CLEAR = 0.05, 5
"""A loss is clear at this p-value of a sign-flip test over cases, and the fewest cases that can reach it."""


async def ablate(active: ActiveRun) -> None:
    """Remove parts that do not help, as far as the budget allows without what is reserved for the final test."""
    try:
        found = await _find_useless_parts(active)
    except BudgetEndedError as ended:
        await active.record_budget_end(ended)
    else:
        if found is not None:
            await active.note(AblationFinished(ablation=found))


async def _find_useless_parts(active: ActiveRun) -> Ablation | None:
    """Find parts of the accepted profile that do not help. Returns None if it has fewer than two parts."""
    parts = _Parts(active)
    left = parts.all
    if len(left) < 2:
        return None
    losses: dict[str, float] = {}
    dropped: list[str] = []
    while len(left) > 1:
        now = await parts.measure_losses(left)
        losses |= now
        useless = choose_part_to_drop(now)
        if useless is None:
            break
        dropped.append(useless)
        left = tuple(part for part in left if part != useless)
    return Ablation(losses=losses, dropped=tuple(dropped))


def choose_part_to_drop(losses: Mapping[Part, float]) -> Part | None:
    """Return the part with the smallest loss, the first of equals, if the profile is no worse without it."""
    if not losses:
        return None
    part = min(losses, key=lambda each: losses[each])
    return part if losses[part] <= _NO_LOSS else None


class _Parts:
    """The parts of the accepted profile, and what it loses without them."""

    def __init__(self, active: ActiveRun) -> None:
        self.active = active
        self.whole = active.accepted.profile
        self.initial = active.baseline.profile
        self.all = tuple(change.surface_id for change in self.initial.changes(self.whole, active.snapshot))
        self.cases = {part: self._choose_cases(part) for part in self.all}

    def _choose_cases(self, part: str) -> tuple[str, ...]:
        """Return train cases that may read a part: as many as validation has, the same for all parts if they can be.

        Those that failed in the run come in turn with the others: they can show that a part helps, and may be few.
        """
        active = self.active
        known, unsure = active.evaluations.reads, active.validator.untrusted_nodes
        case_ids = [case.id for case in active.train.cases]
        Random(f"{active.seed} ablation").shuffle(case_ids)
        affected = [each for each in case_ids if each not in known or may_touch(known[each], (part,), unsure=unsure)]
        failed = [each for each in affected if each in active.evaluations.failed]
        others = [each for each in affected if each not in active.evaluations.failed]
        in_turn = (each for pair in zip_longest(failed, others) for each in pair if each is not None)
        return tuple(islice(in_turn, len(active.validation.cases)))

    async def measure_losses(self, left: tuple[str, ...]) -> dict[str, float]:
        """Return what the profile with these parts loses without each of them, if a train case can show that.

        Half of the cases are enough for a part whose loss they show clearly. If a loss is not clear, the cases that got
        worse are run again, and only that counts for them: a model that slips makes some cases worse each time. A part
        that seems useless gets as many repeats again, because good parts often seem useless by chance.
        """
        repeats = self._reserve_repeats()
        halves = {part: _split(self.cases[part]) for part in left}
        found = await self._compare(left, {part: first for part, (first, _) in halves.items()}, repeats)
        open_parts = {part: halves[part][1] for part, changes in found.items() if not _is_clear(changes)}
        rest = await self._compare(left, open_parts, repeats)
        found = await self._confirm(left, {part: changes | rest.get(part, {}) for part, changes in found.items()})
        losses = {part: fmean(changes.values()) for part, changes in found.items()}
        useless = {part: self.cases[part] for part, loss in losses.items() if loss <= _NO_LOSS}
        repeated = await self._compare(left, useless, self._reserve_repeats() if useless else range(0))
        again = await self._confirm(left, repeated)
        return losses | {part: (losses[part] + fmean(changes.values())) / 2 for part, changes in again.items()}

    async def _confirm(
        self, left: tuple[str, ...], found: Mapping[str, Mapping[str, float]]
    ) -> dict[str, dict[str, float]]:
        """The changes of cases; of a loss that is not clear, the cases that got worse are run again."""
        doubtful = {
            part: [case_id for case_id, change in changes.items() if change > _NO_LOSS]
            for part, changes in found.items()
            if fmean(changes.values()) > _NO_LOSS and not _is_clear(changes)
        }
        confirmed = await self._compare(left, doubtful, self._reserve_repeats() if doubtful else range(0))
        return {part: {**changes, **confirmed.get(part, {})} for part, changes in found.items()}

    def _reserve_repeats(self) -> range:
        return self.active.validator.reserve_repeats(self.active.validator.repeats)

    async def _compare(
        self, left: tuple[str, ...], cases_of: Mapping[str, Collection[str]], repeats: range
    ) -> dict[str, dict[str, float]]:
        """Run the profile with and without each part on its cases, and return by how much each case gets worse."""
        cases_of = {part: cases for part, cases in cases_of.items() if cases}
        if not cases_of:
            return {}
        all_cases = {case_id for cases in cases_of.values() for case_id in cases}
        whole, *others = await self.active.evaluations.evaluate_many(
            [
                self._build_request(left, all_cases, repeats),
                *(
                    self._build_request([each for each in left if each != part], cases, repeats)
                    for part, cases in cases_of.items()
                ),
            ]
        )
        found = {part: self._list_losses(whole, rest) for part, rest in zip(cases_of, others, strict=True)}
        return {part: losses for part, losses in found.items() if losses}

    def _build_request(self, parts: Collection[str], case_ids: Collection[str], repeats: range) -> EvaluationRequest:
        train, kept, wanted = self.active.train, frozenset(parts), frozenset(case_ids)
        removed = tuple(part for part in self.all if part not in kept)
        cases = tuple(case for case in train.cases if case.id in wanted)
        return EvaluationRequest(
            eval_set=train,
            profile=self.whole.reset(removed, to=self.initial, snapshot=self.active.snapshot),
            phase="ablation",
            runs=list_case_runs(replace(train, cases=cases), repeats),
            without=removed,
        )

    def _list_losses(self, whole: Evaluation, rest: Evaluation) -> dict[str, float]:
        """Return by how much each case of `rest` is worse than under the whole profile; empty if that is unknown."""
        cases = {row.case_id for row in rest.rows}
        same = replace(whole, rows=tuple(row for row in whole.rows if row.case_id in cases))
        accepted, candidate = leave_out_lost_pairs(rest, same)
        evidence = Evidence(accepted=accepted, candidate=candidate, objective=self.active.request.objective)
        return {} if evidence.gain is None else {delta.case_id: delta.change for delta in evidence.all_deltas}


def _split(cases: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split cases in two halves, unless half of them could not show a loss clearly."""
    half = (len(cases) + 1) // 2
    return (cases[:half], cases[half:]) if half >= _FEWEST_CLEAR else (cases, ())


def _is_clear(changes: Mapping[str, float]) -> bool:
    return sign_flip([*changes.values()]).p_value <= _CLEAR
