"""PatchProposer: one patch per signal, recorded, and reviewed if there is a reviewer.

It is the second half of a pass: `BackpropRounds` gives it the report of `BlameFinder` and validates what it proposes.
"""

from __future__ import annotations

from dataclasses import replace

from promptiter.backprop.lint import Linter
from promptiter.backprop.patch_writing import (
    PatchAttempt,
    PatchWriter,
    collect_patches,
    describe_total_failure,
    lint_patch,
)
from promptiter.backprop.record import PatchesWritten
from promptiter.engine.review import ReviewRequest
from promptiter.engine.session import Session
from promptiter.profile import Profile, SurfacePatch
from promptiter.search.blame import BlameReport
from promptiter.search.rejections import Rejections
from promptiter.search.stage_failures import StageFailures
from promptiter.stages.contracts import AggregateResult, Optimizer, Rejection


class PatchProposer:
    """Proposes the patches of one run. `rejected` holds what was tried or refused so far; optimizers see it."""

    def __init__(self, session: Session, optimizer: Optimizer, *, failures: StageFailures) -> None:
        self.rejected = Rejections()
        self._session = session
        self._optimizer = optimizer
        self._failures = failures
        self._linter = Linter(session.train.cases)

    async def propose(self, report: BlameReport) -> PatchesWritten:
        """Propose patches for the blamed surfaces; the result also has what was refused."""
        if not report.signals:
            return PatchesWritten(blamed_in=report.round)
        key = [report.profile.digest, [signal.surface_id for signal in report.signals], self.rejected.count]
        result = await self._session.record(PatchesWritten, lambda: self._propose(report), request=key)
        if result.patches or result.refused:
            self._failures.mark_working("optimizer")
        self.rejected.add(result.refused)
        return result

    async def _propose(self, report: BlameReport) -> PatchesWritten:
        session = self._session
        await session.restore_traces(report.evaluation, report.eval_set, report.profile)
        writer = PatchWriter(
            optimizer=self._optimizer,
            structure=session.snapshot,
            profile=report.profile,
            traces=report.traces,
            linter=self._linter,
            redact=session.redact,
            find_rejected=self.rejected.for_surface,
        )
        attempts = await writer.write(report.signals, report.gradients)
        self._failures.handle("optimizer", describe_total_failure(attempts, self._optimizer))
        reviewed = [
            await self._review_attempt(each, signal, report.profile)
            for each, signal in zip(attempts, report.signals, strict=True)
        ]
        return replace(collect_patches(reviewed), blamed_in=report.round)

    async def _review_attempt(self, attempt: PatchAttempt, signal: AggregateResult, profile: Profile) -> PatchAttempt:
        if attempt.patch is None:
            return attempt
        answer = await self._review(attempt.patch, signal, profile)
        if isinstance(answer, Rejection):
            return replace(attempt, patch=None, refused=(*attempt.refused, answer))
        return replace(attempt, patch=answer)

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
        return lint_patch(self._linter, edited, surface, rules=("limits", "placeholder", "no_op", "empty")) or edited
