"""Ablation: removes parts of the accepted profile that do not help, before the final test.

A part is a surface that differs from the initial profile. It is removed if the profile without it is no worse on
identical repeats. Parts are removed one at a time, because of two parts with the same effect one must stay. The last
part always stays: the final test decides about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.policies.evidence import Evidence
from promptiter.profile import Profile
from promptiter.runlog.results import Ablation

Part = TypeVar("Part")

_NO_LOSS = 1e-12


async def ablate(session: ActiveRun) -> Ablation | None:
    """Remove parts that do not help from the accepted profile. Returns None if it has fewer than two parts."""
    profiles = _PartialProfiles(session)
    if len(profiles.parts) < 2:
        return None
    losses: dict[str, float] = {}
    dropped: list[str] = []
    left = profiles.parts
    while len(left) > 1:
        now = {part: await profiles.measure_loss(left, part) for part in left}
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


class _PartialProfiles:
    """The accepted profile with some of its parts, each combination run once, on the repeats of the first record.

    A part that seems useless there gets as many repeats again, because good parts often seem useless by chance.
    """

    def __init__(self, session: ActiveRun) -> None:
        self.session = session
        self.whole = session.accepted
        self.initial = session.baseline
        changes = self.initial.profile.changes(self.whole.profile, session.snapshot)
        self.parts = tuple(change.surface_id for change in changes)
        repeats = session.validator.repeats
        self.first, self.again = range(repeats), session.validator.reserve_repeats(repeats)
        self.known: dict[tuple[frozenset[str], range], Evaluation] = {}
        rows = self.whole.validation.rows
        if rows and all(row.repeat in self.first for row in rows):
            self.known[frozenset(self.parts), self.first] = self.whole.validation

    async def measure_loss(self, left: tuple[str, ...], part: str) -> float:
        """Return what the profile with these parts loses without one of them."""
        seen = await self._measure_loss(left, part, self.first)
        return seen if seen > 0 else (seen + await self._measure_loss(left, part, self.again)) / 2

    async def _measure_loss(self, left: tuple[str, ...], part: str, repeats: range) -> float:
        whole = await self.evaluate(left, repeats)
        rest = await self.evaluate(tuple(each for each in left if each != part), repeats, compared_with=(whole, part))
        gain = Evidence(accepted=rest, candidate=whole, objective=self.session.request.objective).gain
        return gain or 0.0

    async def evaluate(
        self, parts: tuple[str, ...], repeats: range, *, compared_with: tuple[Evaluation, str] | None = None
    ) -> Evaluation:
        """Evaluate the profile with these parts on these repeats. Unaffected cases take the rows of `compared_with`."""
        session, name = self.session, (frozenset(parts), repeats)
        if name not in self.known:
            record, changed = self.whole.validation, self.parts
            if compared_with is not None:
                record, changed = compared_with[0], (compared_with[1],)
            affected = session.validator.find_affected_cases(record.rows, changed)
            cases = tuple(case for case in session.validation.cases if case.id in affected)
            request = EvaluationRequest(
                eval_set=session.validation,
                profile=self._build_profile(parts),
                phase="ablation",
                runs=list_case_runs(replace(session.validation, cases=cases), repeats),
                kept=[row for row in record.rows if row.case_id not in affected],
                without=self._list_removed(parts),
            )
            self.known[name] = await session.evaluations.evaluate(request)
        return self.known[name]

    def _list_removed(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for part in self.parts if part not in parts)

    def _build_profile(self, parts: tuple[str, ...]) -> Profile:
        return self.whole.profile.reset(
            self._list_removed(parts), to=self.initial.profile, snapshot=self.session.snapshot
        )
