"""PatchProposer: asks the optimizer for one patch per signal; lint and a reviewer, if there is one, check each patch.

It is the second half of a pass: `BackpropRounds` gives it the report of `BlameFinder` and validates what it proposes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial

from promptiter.backprop.lint import Linter
from promptiter.concurrency import run_together
from promptiter.engine.review import ReviewRequest
from promptiter.engine.session import Session
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.results import PassResult
from promptiter.search.blame import BlameReport
from promptiter.search.rejections import Rejections
from promptiter.search.stage_calls import StageCalls
from promptiter.stages.contracts import AggregateResult, Optimizer, OptimizeRequest, Rejection
from promptiter.structure import Surface

MAX_ATTEMPTS = 2
"""Maximum number of optimizer calls per patch: lint may refuse the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchAttempt:
    """What the optimizer wrote for one signal: a patch, or a note that says why there is none."""

    patch: SurfacePatch | None = None
    refused: tuple[Rejection, ...] = ()
    note: str = ""
    has_failed: bool = False


class PatchProposer:
    """Proposes the patches of one run. `rejected` holds what was tried or refused so far; optimizers see it."""

    def __init__(self, session: Session, optimizer: Optimizer, *, calls: StageCalls) -> None:
        self.rejected = Rejections()
        self._session = session
        self._optimizer = optimizer
        self._calls = calls
        self._linter = Linter(session.train.cases)

    async def propose(self, report: BlameReport) -> PassResult:
        """Propose patches for the blamed surfaces; the result also has what was refused."""
        if not report.signals:
            return PassResult()
        key = [report.profile.digest, [signal.surface_id for signal in report.signals], self.rejected.count]
        result: PassResult = await self._session.record(
            "patches", PassResult, lambda: self._propose(report), request=key
        )
        self.rejected.add(result.refused)
        return result

    async def _propose(self, report: BlameReport) -> PassResult:
        await self._session.restore_traces(report.evaluation, report.eval_set, report.profile)
        attempts = await run_together(self._write_patch(report, signal) for signal in report.signals)
        refused = [rejection for each in attempts for rejection in each.refused]
        patches: list[SurfacePatch] = []
        for signal, each in zip(report.signals, attempts, strict=True):
            reviewed = await self._review(each.patch, signal, report.profile) if each.patch else None
            if isinstance(reviewed, Rejection):
                refused.append(reviewed)
            elif reviewed is not None:
                patches.append(reviewed)
        notes = tuple(each.note for each in attempts if each.note)
        if not patches and not refused and any(each.has_failed for each in attempts):
            self._calls.fail(f"{type(self._optimizer).__name__} failed and wrote no patch: {notes[0]}")
        return PassResult(patches=PatchSet(tuple(patches)), refused=tuple(refused), notes=notes)

    async def _write_patch(self, report: BlameReport, signal: AggregateResult) -> PatchAttempt:
        """Ask for a patch until lint passes it; each refusal is shown to the optimizer."""
        snapshot = self._session.snapshot
        surface = report.profile.surface(signal.surface_id, snapshot)
        before = self.rejected.for_surface(surface.id)
        request = OptimizeRequest(
            surface=surface,
            signal=signal,
            node_description=next((node.description for node in snapshot.nodes if node.id == surface.node_id), ""),
            siblings=self._find_siblings(surface, report.profile),
            failing=report.runs.collect_failing(report.gradients[surface.id]),
            passing=report.runs.collect_passing(report.gradients[surface.id]),
            rejected=before,
        )
        refused: tuple[Rejection, ...] = ()
        for _ in range(MAX_ATTEMPTS):
            request = replace(request, rejected=before + refused)
            answer, error = await self._calls.call_or_error(partial(self._optimizer.optimize, request))
            if answer is None or answer.patch is None:
                note = error or (answer.reason if answer is not None else "")
                return PatchAttempt(refused=refused, note=f"{surface.id}: {note}", has_failed=error is not None)
            patch = replace(answer.patch, surface_id=surface.id)
            rejection = self._lint(patch, surface, tried=request.rejected)
            if rejection is None:
                return PatchAttempt(patch=patch, refused=refused)
            refused += (rejection,)
        return PatchAttempt(refused=refused)

    def _lint(
        self,
        patch: SurfacePatch,
        surface: Surface,
        *,
        tried: Sequence[Rejection] = (),
        rules: Container[str] | None = None,
    ) -> Rejection | None:
        """Why lint refuses a patch, or None. A value that was only tried together with others may be tried again."""
        alone = [rejection for rejection in tried if rejection.kind != "tried_together"]
        problems = self._linter.find_problems(patch, surface=surface, rejected=alone)
        reason = "; ".join(problem.message for problem in problems if rules is None or problem.rule in rules)
        if not reason:
            return None
        return Rejection(surface_id=surface.id, value=patch.value, reason=reason, kind="refused")

    async def _review(self, patch: SurfacePatch, signal: AggregateResult, profile: Profile) -> SurfacePatch | Rejection:
        """The patch as the reviewer approved or edited it, or their veto. Without a reviewer it stays as it is."""
        reviewer = self._session.reviewer
        if reviewer is None:
            return patch
        surface = profile.surface(patch.surface_id, self._session.snapshot)
        answer = await reviewer.review(ReviewRequest(surface=surface, patch=patch, signal=signal))
        if answer.action == "veto":
            reason = f"vetoed in review: {answer.reason or 'no reason given'}"
            return Rejection(surface_id=surface.id, value=patch.value, reason=reason, kind="vetoed")
        if answer.action == "approve":
            return patch
        remark = f"edited in review: {answer.reason}" if answer.reason else "edited in review"
        edited = replace(patch, value=answer.value, reason=f"{patch.reason} ({remark})")
        return self._lint(edited, surface, rules=("limits", "placeholder", "no_op", "empty")) or edited

    def _find_siblings(self, surface: Surface, profile: Profile) -> tuple[Surface, ...]:
        others = self._session.snapshot.surfaces_of(surface.node_id)
        return tuple(profile.surface(each.id, self._session.snapshot) for each in others if each.id != surface.id)
