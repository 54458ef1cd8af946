"""Ablation: parts of the working profile that do no good go, before anything is claimed of it.

A part is a surface that differs from the profile that the run started with. It goes if the profile without it is no
worse on identical draws; one at a time, because of two parts that do the same each can go, but not both. The last part
stays: whether that is any good is what the claim tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING

from promptiter.engine.evidence import Evidence
from promptiter.evaluation.evaluator import runs_of
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.shares import next_to_drop, shapley_shares
from promptiter.profile import Profile, SurfacePatch
from promptiter.structure import StructureSnapshot

if TYPE_CHECKING:
    from promptiter.engine.session import Session

DRAWS = 2
"""So many draws show whether a profile is worse without a part. One alone lets many a useful part go by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """What the working profile loses without each part, and which parts went because it loses nothing.

    `shares` divides the gain over the first profile fairly among the parts that stay, where all that this takes was
    run anyway; else it is empty.
    """

    losses: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)


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
        gone = next_to_drop(now)
        if gone is None:
            break
        dropped.append(gone)
        left = tuple(part for part in left if part != gone)
    found = Ablation(losses=losses, dropped=tuple(dropped), shares=working.shares(left))
    if dropped:
        session.adopt(working.profile_with(left), await working.evaluation(left))
    return found


def without(profile: Profile, surface_ids: Iterable[str], *, initial: Profile, structure: StructureSnapshot) -> Profile:
    """A profile with the initial values of these surfaces."""
    values = {surface_id: initial.value(surface_id, structure) for surface_id in surface_ids}
    patches = (SurfacePatch(surface_id=name, value=value, reason="taken out") for name, value in values.items())
    return profile.apply(patches, structure)


class _Working:
    """The working profile with some of its parts only, each combination run once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.whole = session.accepted
        self.initial = session.baseline
        changes = self.initial.profile.changes(self.whole.profile, session.snapshot)
        self.parts = tuple(change.surface_id for change in changes)
        self.draws = max(DRAWS, session.comparisons.draws)
        self.known: dict[frozenset[str], Evaluation] = {}

    async def loss(self, left: tuple[str, ...], part: str) -> float:
        """What the profile with these parts loses without one of them."""
        whole = await self.evaluation(left)
        rest = await self.evaluation(tuple(each for each in left if each != part), beside=(whole, part))
        gain = Evidence(baseline=rest, candidate=whole, objective=self.session.request.objective).gain
        return gain or 0.0

    async def evaluation(self, parts: tuple[str, ...], *, beside: tuple[Evaluation, str] | None = None) -> Evaluation:
        """The profile with these parts on the draws that all of them share.

        Cases that cannot differ have the rows of the profile `beside`, which has one part more.
        """
        session, name = self.session, frozenset(parts)
        if name not in self.known:
            record, changed = (self.whole.validation, self.parts) if beside is None else (beside[0], (beside[1],))
            touched = session.comparisons.touched(record.rows, changed)
            cases = tuple(case for case in session.validation.cases if case.id in touched)
            self.known[name] = await session.evaluations.evaluate(
                session.validation,
                self.profile_with(parts),
                phase="ablation",
                runs=runs_of(replace(session.validation, cases=cases), range(self.draws)),
                kept=[row for row in record.rows if row.case_id not in touched],
            )
        return self.known[name]

    def profile_with(self, parts: tuple[str, ...]) -> Profile:
        gone = tuple(part for part in self.parts if part not in parts)
        return without(self.whole.profile, gone, initial=self.initial.profile, structure=self.session.snapshot)

    def shares(self, left: tuple[str, ...]) -> dict[str, float]:
        """Fair shares on the draws of the first profile's record, if all combinations were run on them."""
        known = {**self.known, frozenset[str](): self.initial.validation}
        subsets = chain.from_iterable(combinations(left, size) for size in range(len(left) + 1))
        if any(frozenset(each) not in known for each in subsets):
            return {}
        values = {name: self._value(evaluation) for name, evaluation in known.items()}
        return shapley_shares(left, values.__getitem__)

    def _value(self, evaluation: Evaluation) -> float:
        first = tuple(row for row in evaluation.rows if row.draw < self.session.comparisons.draws)
        return replace(evaluation, rows=first or evaluation.rows).objective(self.session.request.objective) or 0.0
