"""Ablation: parts of the working profile that do no good go, before anything is claimed of it.

A part is a surface that differs from the profile that the run started with. It goes if the profile without it is no
worse on identical repeats; one at a time, because of two parts that do the same each can go, but not both. The last
part stays: whether that is any good is what the claim tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from promptiter.engine.session import Session
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.policies.evidence import Evidence
from promptiter.profile import Profile
from promptiter.runlog.results import Ablation

Part = TypeVar("Part")

_NO_LOSS = 1e-12


async def ablate(session: Session) -> Ablation | None:
    """Take out what does no good; from then on the rest is the working profile. None: it has one part at most."""
    working = _Working(session)
    if len(working.parts) < 2:
        return None
    losses: dict[str, float] = {}
    dropped: list[str] = []
    left = working.parts
    while len(left) > 1:
        now = {part: await working.loss(left, part) for part in left}
        losses |= now
        gone = choose_part_to_drop(now)
        if gone is None:
            break
        dropped.append(gone)
        left = tuple(part for part in left if part != gone)
    found = Ablation(losses=losses, dropped=tuple(dropped))
    if dropped:
        session.continue_from(working.profile_with(left), await working.evaluation(left, working.first))
    return found


def choose_part_to_drop(losses: Mapping[Part, float]) -> Part | None:
    """The part with the smallest loss, the first of several, if the profile is no worse without it."""
    if not losses:
        return None
    part = min(losses, key=lambda each: losses[each])
    return part if losses[part] <= _NO_LOSS else None


class _Working:
    """The working profile with some of its parts only, each combination run once on the repeats of the first record.

    A part that seems useless there is looked at on as many repeats once more: by chance, many a good part seems so.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.whole = session.accepted
        self.initial = session.baseline
        changes = self.initial.profile.changes(self.whole.profile, session.snapshot)
        self.parts = tuple(change.surface_id for change in changes)
        repeats = session.comparisons.repeats
        self.first, self.again = range(repeats), session.comparisons.next_repeats(repeats)
        self.known: dict[tuple[frozenset[str], range], Evaluation] = {}
        rows = self.whole.validation.rows
        if rows and all(row.repeat in self.first for row in rows):
            self.known[frozenset(self.parts), self.first] = self.whole.validation

    async def loss(self, left: tuple[str, ...], part: str) -> float:
        """What the profile with these parts loses without one of them."""
        seen = await self._loss(left, part, self.first)
        return seen if seen > 0 else (seen + await self._loss(left, part, self.again)) / 2

    async def _loss(self, left: tuple[str, ...], part: str, repeats: range) -> float:
        whole = await self.evaluation(left, repeats)
        rest = await self.evaluation(tuple(each for each in left if each != part), repeats, beside=(whole, part))
        gain = Evidence(baseline=rest, candidate=whole, objective=self.session.request.objective).gain
        return gain or 0.0

    async def evaluation(
        self, parts: tuple[str, ...], repeats: range, *, beside: tuple[Evaluation, str] | None = None
    ) -> Evaluation:
        """The profile with these parts on such repeats. Cases that cannot differ have the rows of the one `beside`."""
        session, name = self.session, (frozenset(parts), repeats)
        if name not in self.known:
            record, changed = (self.whole.validation, self.parts) if beside is None else (beside[0], (beside[1],))
            touched = session.comparisons.touched(record.rows, changed)
            cases = tuple(case for case in session.validation.cases if case.id in touched)
            self.known[name] = await session.evaluations.evaluate(
                session.validation,
                self.profile_with(parts),
                phase="ablation",
                runs=list_case_runs(replace(session.validation, cases=cases), repeats),
                kept=[row for row in record.rows if row.case_id not in touched],
                without=self._left_out(parts),
            )
        return self.known[name]

    def _left_out(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for part in self.parts if part not in parts)

    def profile_with(self, parts: tuple[str, ...]) -> Profile:
        return self.whole.profile.reset(self._left_out(parts), to=self.initial.profile, snapshot=self.session.snapshot)
