"""Patching: a patch for each surface that deserves one, by the optimizer; lint and people look it through."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial

from promptiter.backprop.lint import Linter
from promptiter.engine.review import ReviewRequest
from promptiter.engine.session import Session
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.results import PassResult
from promptiter.search.blame_report import Found
from promptiter.search.rejections import Rejections
from promptiter.search.stage_calls import StageCalls, all_of
from promptiter.stages.contracts import AggregateResult, Optimizer, OptimizeRequest, Rejection
from promptiter.structure import Surface

ATTEMPTS = 2
"""So often the optimizer is asked for one patch, when lint refuses the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    patch: SurfacePatch | None = None
    refused: tuple[Rejection, ...] = ()
    note: str = ""
    has_failed: bool = False


class Patching:
    """The patches of one run. `rejected` is what was tried or refused so far; optimizers hear of it."""

    def __init__(self, session: Session, optimizer: Optimizer, calls: StageCalls) -> None:
        self.rejected = Rejections()
        self._session = session
        self._optimizer = optimizer
        self._calls = calls
        self._linter = Linter(session.train.cases)

    async def propose(self, found: Found) -> PassResult:
        """Patches for the blamed surfaces, and what was refused."""
        if not found.signals:
            return PassResult()
        asked = [found.profile.digest, [signal.surface_id for signal in found.signals], self.rejected.count]
        result: PassResult = await self._session.record(
            "patches", PassResult, lambda: self._propose(found), request=asked
        )
        self.rejected.add(result.refused)
        return result

    async def _propose(self, found: Found) -> PassResult:
        await self._session.restore_traces(found.evaluation, found.eval_set, found.profile)
        written = await all_of([partial(self._write, found, signal) for signal in found.signals])
        refused = [rejection for each in written for rejection in each.refused]
        patches: list[SurfacePatch] = []
        for signal, each in zip(found.signals, written, strict=True):
            reviewed = await self._reviewed(each.patch, signal, found.profile) if each.patch else None
            if isinstance(reviewed, Rejection):
                refused.append(reviewed)
            elif reviewed is not None:
                patches.append(reviewed)
        notes = tuple(each.note for each in written if each.note)
        if not patches and not refused and any(each.has_failed for each in written):
            self._calls.fail(f"{type(self._optimizer).__name__} wrote nothing and failed: {notes[0]}")
        return PassResult(patches=PatchSet(tuple(patches)), refused=tuple(refused), notes=notes)

    async def _write(self, found: Found, signal: AggregateResult) -> _Written:
        """A patch that lint has nothing against, and what was refused on the way."""
        surface = found.profile.surface(signal.surface_id, self._session.snapshot)
        before = self.rejected.of(surface.id)
        request = OptimizeRequest(
            surface=surface,
            signal=signal,
            node_description=self._description(surface.node_id),
            siblings=self._siblings(surface, found.profile),
            failing=found.runs.failing(found.gradients[surface.id]),
            passing=found.runs.passing(found.gradients[surface.id]),
            rejected=before,
        )
        refused: tuple[Rejection, ...] = ()
        for _ in range(ATTEMPTS):
            request = replace(request, rejected=before + refused)
            answer, error = await self._calls.or_error(partial(self._optimizer.optimize, request))
            if answer is None or answer.patch is None:
                note = error or (answer.reason if answer is not None else "")
                return _Written(refused=refused, note=f"{surface.id}: {note}", has_failed=error is not None)
            patch = replace(answer.patch, surface_id=surface.id)
            rejection = self._linted(patch, surface, tried=request.rejected)
            if rejection is None:
                return _Written(patch=patch, refused=refused)
            refused += (rejection,)
        return _Written(refused=refused)

    def _linted(
        self,
        patch: SurfacePatch,
        surface: Surface,
        *,
        tried: Sequence[Rejection] = (),
        rules: Container[str] | None = None,
    ) -> Rejection | None:
        """Why a patch is not worth paying for; what was tried only together with others may be tried again."""
        alone = [rejection for rejection in tried if rejection.kind != "tried_together"]
        problems = self._linter.problems(patch, surface=surface, rejected=alone)
        told = "; ".join(problem.message for problem in problems if rules is None or problem.rule in rules)
        if not told:
            return None
        return Rejection(surface_id=surface.id, value=patch.value, reason=told, kind="refused")

    async def _reviewed(
        self, patch: SurfacePatch, signal: AggregateResult, profile: Profile
    ) -> SurfacePatch | Rejection:
        """The patch as a person wants it, or their veto. Without a reviewer it stays as it is."""
        reviewer = self._session.reviewer
        if reviewer is None:
            return patch
        surface = profile.surface(patch.surface_id, self._session.snapshot)
        answer = await reviewer.review(ReviewRequest(surface=surface, patch=patch, signal=signal))
        if answer.action == "veto":
            told = f"vetoed in review: {answer.reason or 'no reason given'}"
            return Rejection(surface_id=surface.id, value=patch.value, reason=told, kind="vetoed")
        if answer.action == "approve":
            return patch
        told = f"edited in review: {answer.reason}" if answer.reason else "edited in review"
        edited = replace(patch, value=answer.value, reason=f"{patch.reason} ({told})")
        return self._linted(edited, surface, rules=("limits", "placeholder", "no_op", "empty")) or edited

    def _siblings(self, surface: Surface, profile: Profile) -> tuple[Surface, ...]:
        others = self._session.snapshot.surfaces_of(surface.node_id)
        return tuple(profile.surface(each.id, self._session.snapshot) for each in others if each.id != surface.id)

    def _description(self, node_id: str) -> str:
        return next((node.description for node in self._session.snapshot.nodes if node.id == node_id), "")
