"""Ablation: removes parts of the accepted profile that do not help, before the final test.

A part is a surface that differs from the initial profile. It is removed if the profile without it is no worse on the
train cases, so that nothing is learned from validation. Both are run at the same time, on repeats that no decision has
seen. Parts are removed one at a time, because of two parts with the same effect one must stay. The last part always
stays: the final test decides about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TypeVar

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.surface_reads import may_touch
from promptiter.policies.evidence import Evidence, leave_out_lost_pairs
from promptiter.runlog.results import Ablation

Part = TypeVar("Part")

_NO_LOSS = 1e-12


async def ablate(active: ActiveRun) -> Ablation | None:
    """Remove parts that do not help from the accepted profile. Returns None if it has fewer than two parts."""
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
        """Return train cases that may read a part: as many as validation has, the same for all parts if they can be."""
        active = self.active
        known, unsure = active.evaluations.reads, active.validator.untrusted_nodes
        case_ids = [case.id for case in active.train.cases]
        Random(f"{active.seed} ablation").shuffle(case_ids)
        affected = [each for each in case_ids if each not in known or may_touch(known[each], (part,), unsure=unsure)]
        return tuple(affected[: len(active.validation.cases)])

    async def measure_losses(self, left: tuple[str, ...]) -> dict[str, float]:
        """Return what the profile with these parts loses without each of them, if a train case can show that.

        A part that seems useless gets as many repeats again, because good parts often seem useless by chance.
        """
        losses = await self._compare(left, left)
        again = await self._compare(left, [part for part, loss in losses.items() if loss <= _NO_LOSS])
        return losses | {part: (losses[part] + loss) / 2 for part, loss in again.items()}

    async def _compare(self, left: tuple[str, ...], parts: Iterable[str]) -> dict[str, float]:
        """Run the profile with and without each of these parts, on repeats that were not used before."""
        parts = [part for part in parts if self.cases[part]]
        if not parts:
            return {}
        repeats = self.active.validator.reserve_repeats(self.active.validator.repeats)
        cases = {case_id for part in parts for case_id in self.cases[part]}
        whole, *others = await self.active.evaluations.evaluate_many(
            [
                self._build_request(left, cases, repeats),
                *(
                    self._build_request([each for each in left if each != part], self.cases[part], repeats)
                    for part in parts
                ),
            ]
        )
        found = {part: self._compute_loss(whole, rest) for part, rest in zip(parts, others, strict=True)}
        return {part: loss for part, loss in found.items() if loss is not None}

    def _build_request(self, parts: Collection[str], case_ids: Collection[str], repeats: range) -> EvaluationRequest:
        train, removed = self.active.train, tuple(part for part in self.all if part not in parts)
        cases = tuple(case for case in train.cases if case.id in case_ids)
        return EvaluationRequest(
            eval_set=train,
            profile=self.whole.reset(removed, to=self.initial, snapshot=self.active.snapshot),
            phase="ablation",
            runs=list_case_runs(replace(train, cases=cases), repeats),
            without=removed,
        )

    def _compute_loss(self, whole: Evaluation, rest: Evaluation) -> float | None:
        """Return the mean loss over the cases of `rest`; None if it is unknown."""
        cases = {row.case_id for row in rest.rows}
        same = replace(whole, rows=tuple(row for row in whole.rows if row.case_id in cases))
        accepted, candidate = leave_out_lost_pairs(rest, same)
        return Evidence(accepted=accepted, candidate=candidate, objective=self.active.request.objective).gain
