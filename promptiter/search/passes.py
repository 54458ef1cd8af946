"""One pass from losses to patches: place the losses, carry them back, merge them per surface, write the patches.

What a stage fails on is skipped and written down; a stage that fails on everything ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from promptiter.backprop.checks import BlameChecks, weighted
from promptiter.backprop.lint import Linter
from promptiter.backprop.loss import CaseLoss, LossHint, extract_losses
from promptiter.backprop.stages import (
    AggregateRequest,
    AggregateResult,
    Aggregator,
    AttributeRequest,
    Attributor,
    BackwardResult,
    Optimizer,
    OptimizeRequest,
    Peer,
    Rejection,
    SurfaceGradient,
)
from promptiter.backprop.support import SupportAggregator, rank
from promptiter.engine.events import Phase
from promptiter.engine.records import PassResult, TraceBlame
from promptiter.engine.review import ReviewRequest
from promptiter.engine.session import Session
from promptiter.errors import BudgetEndedError, SetupError, StageError, UnexpectedCallError
from promptiter.evaluation.case import EvalSet
from promptiter.evaluation.reads import reads_of, unread
from promptiter.evaluation.result import Evaluation
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.search.examples import Runs
from promptiter.search.gradient_check import GradientCheck, Replays
from promptiter.search.rejections import Rejections
from promptiter.search.worth import most_worth_first
from promptiter.structure import Surface

TRACES_AT_ONCE = 32
SLIPS = 0.1
"""What less than this share of the cases shows may be chance: a model that does not always obey is not to be mended."""

ATTEMPTS = 2
"""So often the optimizer is asked for one patch, when lint refuses the first."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one pass found out about a profile: its runs, and the signals that deserve a patch, with their gradients."""

    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    runs: Runs
    signals: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]

    @property
    def largest_share(self) -> float:
        """The support of the best supported signal, as a share of the cases."""
        return max((signal.support for signal in self.signals), default=0.0) / max(1, len(self.evaluation.cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    patch: SurfacePatch | None = None
    refused: tuple[Rejection, ...] = ()
    note: str = ""
    has_failed: bool = False


class Passes:
    """The passes of one run. `rejected` is what was tried or refused so far; optimizers hear of it."""

    def __init__(
        self,
        session: Session,
        attributor: Attributor,
        aggregator: Aggregator,
        optimizer: Optimizer,
        *,
        min_support: float,
        check: GradientCheck | None = None,
    ) -> None:
        self.session = session
        self.attributor = attributor
        self.aggregator = aggregator
        self.optimizer = optimizer
        self.min_support = min_support
        self.check = check
        self.rejected = Rejections()
        self._has_worked = False
        self._linter = Linter(session.train.cases)

    async def find(
        self,
        evaluation: Evaluation,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
        known: Found | None = None,
        patched: frozenset[str] = frozenset(),
    ) -> Found:
        """Where the failures of an evaluation come from. A later pass is held against what the first one knew.

        Surfaces that are `patched` already get no signal.
        """
        session, request = self.session, self.session.request
        runs = Runs.of(evaluation, eval_set, session.trace)

        async def losses_of() -> tuple[CaseLoss, ...]:
            await session.restore_traces(evaluation, eval_set, profile)
            return extract_losses(
                evaluation, eval_set, session.trace, targets=request.loss_targets, hints=_for(eval_set, request.hints)
            )

        async def blames_of() -> tuple[TraceBlame, ...]:
            await session.restore_traces(evaluation, eval_set, profile)
            return await self._blame(losses, runs, profile)

        asked = [eval_set.id, profile.digest, len(evaluation.rows)]
        losses = await session.record("losses", tuple[CaseLoss, ...], losses_of, request=asked, phase=phase)
        blames = await session.record("backward", tuple[TraceBlame, ...], blames_of, request=asked, phase=phase)
        gradients = _by_surface(blames, without=patched)
        if self.check is not None and known is None:
            gradients = await self._checked(gradients, evaluation, eval_set, profile, phase=phase)
        merged: PassResult = await session.record(
            "aggregation",
            PassResult,
            lambda: self._merge(gradients, profile, evaluation, losses, known),
            request=asked,
            phase=phase,
        )
        self._has_worked = self._has_worked or bool(merged.signals)
        return Found(
            profile=profile,
            evaluation=evaluation,
            eval_set=eval_set,
            runs=runs,
            signals=merged.signals,
            gradients=gradients,
        )

    async def propose(self, found: Found) -> PassResult:
        """Patches for the blamed surfaces, and what was refused."""
        if not found.signals:
            return PassResult()
        asked = [found.profile.digest, [signal.surface_id for signal in found.signals], self.rejected.count]
        result: PassResult = await self.session.record(
            "patches", PassResult, lambda: self._propose(found), request=asked
        )
        self.rejected.add(result.refused)
        return result

    async def _blame(self, losses: Sequence[CaseLoss], runs: Runs, profile: Profile) -> tuple[TraceBlame, ...]:
        peers = await asyncio.to_thread(runs.peers) if losses else ()
        slots = asyncio.Semaphore(TRACES_AT_ONCE)

        async def one(case_loss: CaseLoss) -> TraceBlame:
            async with slots:
                return await self._blame_one(case_loss, peers, profile)

        blames = await _all_of([partial(one, loss) for loss in losses])
        errors = [each.error for each in blames if each.error] or [
            result.error for each in blames for result in each.results if result.error
        ]
        if errors and not any(result.gradients for each in blames for result in each.results):
            self._fail(f"{type(self.attributor).__name__} blamed nothing and failed: {errors[0]}")
        return tuple(blames)

    async def _checked(
        self,
        gradients: dict[str, tuple[SurfaceGradient, ...]],
        evaluation: Evaluation,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
    ) -> dict[str, tuple[SurfaceGradient, ...]]:
        """The gradients as a check of some of them leaves them: with less weight where the score did not move."""
        session, check = self.session, self.check
        assert check is not None, "whoever checks has a check"

        async def checks_of() -> BlameChecks:
            await session.restore_traces(evaluation, eval_set, profile)
            runs = Replays(
                agent=session.agent,
                evaluator=session.evaluator,
                eval_set=eval_set,
                evaluation=evaluation,
                profile=profile,
            )
            blame = [gradient for each in gradients.values() for gradient in each]
            found = await check.check(blame, runs, rng=session.rng)
            told = tuple(replace(each, reason=session.redacted(each.reason)) for each in found.checks)
            return replace(found, checks=told)

        asked = [eval_set.id, profile.digest, len(evaluation.rows), check.most]
        found: BlameChecks = await session.record("gradient_check", BlameChecks, checks_of, request=asked, phase=phase)
        session.evaluations.paid += found.replays
        return weighted(gradients, found.checks)

    def _fail(self, told: str) -> None:
        """A stage that never worked ends the run; what a stage achieved before is not lost by a later failure."""
        if not self._has_worked:
            raise StageError(told)
        self.session.report(told)

    async def _blame_one(self, case_loss: CaseLoss, peers: tuple[Peer, ...], profile: Profile) -> TraceBlame:
        session = self.session
        request = AttributeRequest(
            case_loss=case_loss,
            trace=session.trace(case_loss.trace_digest),
            snapshot=session.snapshot,
            profile=profile,
            targets=session.targets,
            peers=tuple(peer for peer in peers if peer.case_id != case_loss.case_id),
        )
        blame = TraceBlame(case_id=case_loss.case_id, draw=case_loss.draw, turn=case_loss.turn)
        results, error = await self._or_error(lambda: self.attributor.attribute(request))
        kept = tuple(self._kept(result, request) for result in results or ())
        return replace(blame, results=kept, error=error)

    def _kept(self, result: BackwardResult, request: AttributeRequest) -> BackwardResult:
        """A result without gradients on what is no target, was read nowhere or did not happen."""
        steps, case = {step.id for step in request.trace.steps}, request.case_loss
        unread_here = unread(request.targets, [reads_of([request.trace])])
        gradients = tuple(
            replace(gradient, case_id=case.case_id, draw=case.draw, turn=case.turn)
            for gradient in result.gradients
            if gradient.surface_id in request.targets - unread_here and gradient.step_id in steps
        )
        dropped = result.dropped + len(result.gradients) - len(gradients)
        error = None if result.error is None else self.session.redacted(result.error)
        return replace(result, gradients=gradients, dropped=dropped, error=error)

    async def _merge(
        self,
        gradients: dict[str, tuple[SurfaceGradient, ...]],
        profile: Profile,
        evaluation: Evaluation,
        losses: Sequence[CaseLoss],
        known: Found | None,
    ) -> PassResult:
        failed = len({loss.case_id for loss in losses})

        async def one(surface_id: str) -> AggregateResult:
            request = AggregateRequest(
                surface=self._surface(surface_id, profile),
                gradients=gradients[surface_id],
                failed_cases=failed,
                all_cases=len(evaluation.cases),
            )
            merged, error = await self._or_error(lambda: self.aggregator.aggregate(request))
            counted = await SupportAggregator().aggregate(request)
            if merged is None:
                return replace(counted, error=error)
            return replace(merged, surface_id=surface_id, case_ids=merged.case_ids or counted.case_ids)

        signals = await _all_of([partial(one, surface_id) for surface_id in gradients])
        largest = self.min_support * known.largest_share if known is not None else 0.0
        least = max(SLIPS, largest) * len(evaluation.cases)
        kept, left = (
            most_worth_first(each, evaluation.rows, unsure=self.session.comparisons.unsure)
            for each in rank(signals, min_share=self.min_support, least=least)
        )
        return PassResult(signals=kept, left=left)

    async def _propose(self, found: Found) -> PassResult:
        await self.session.restore_traces(found.evaluation, found.eval_set, found.profile)
        written = await _all_of([partial(self._write, found, signal) for signal in found.signals])
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
            self._fail(f"{type(self.optimizer).__name__} wrote nothing and failed: {notes[0]}")
        return PassResult(patches=PatchSet(tuple(patches)), refused=tuple(refused), notes=notes)

    async def _write(self, found: Found, signal: AggregateResult) -> _Written:
        """A patch that lint has nothing against, and what was refused on the way."""
        surface = self._surface(signal.surface_id, found.profile)
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
            answer, error = await self._or_error(partial(self.optimizer.optimize, request))
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
        reviewer = self.session.reviewer
        if reviewer is None:
            return patch
        surface = self._surface(patch.surface_id, profile)
        answer = await reviewer.review(ReviewRequest(surface=surface, patch=patch, signal=signal))
        if answer.action == "veto":
            told = f"vetoed in review: {answer.reason or 'no reason given'}"
            return Rejection(surface_id=surface.id, value=patch.value, reason=told, kind="vetoed")
        if answer.action == "approve":
            return patch
        told = f"edited in review: {answer.reason}" if answer.reason else "edited in review"
        edited = replace(patch, value=answer.value, reason=f"{patch.reason} ({told})")
        return self._linted(edited, surface, rules=("limits", "placeholder", "no_op", "empty")) or edited

    def _surface(self, surface_id: str, profile: Profile) -> Surface:
        """A surface with its current value."""
        snapshot = self.session.snapshot
        return replace(snapshot.surface(surface_id), value=profile.value(surface_id, snapshot))

    def _siblings(self, surface: Surface, profile: Profile) -> tuple[Surface, ...]:
        others = self.session.snapshot.surfaces_of(surface.node_id)
        return tuple(self._surface(each.id, profile) for each in others if each.id != surface.id)

    def _description(self, node_id: str) -> str:
        return next((node.description for node in self.session.snapshot.nodes if node.id == node_id), "")

    async def _or_error(self, call: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
        """What a stage answers, or why it could not; what is not that stage's fault is raised."""
        try:
            return await call(), None
        except (BudgetEndedError, UnexpectedCallError, SetupError):
            raise
        except Exception as error:  # noqa: BLE001 - a stage may be the user's own; what it fails on is skipped
            return None, self.session.redacted(f"{type(error).__name__}: {error}")


def _by_surface(blames: Sequence[TraceBlame], *, without: frozenset[str]) -> dict[str, tuple[SurfaceGradient, ...]]:
    """All gradients by surface, the worst first, in an order that does not depend on timing."""
    found: dict[str, list[SurfaceGradient]] = {}
    for blame in blames:
        for result in blame.results:
            for gradient in result.gradients:
                if gradient.surface_id in without:
                    continue
                found.setdefault(gradient.surface_id, []).append(gradient)
    return {
        surface_id: tuple(sorted(found[surface_id], key=lambda g: (g.severity, g.case_id, g.draw, g.step_id, g.text)))
        for surface_id in sorted(found)
    }


def _for(eval_set: EvalSet, hints: Sequence[LossHint]) -> tuple[LossHint, ...]:
    """The hints on cases of this set; a re-run has only some of them."""
    known = {case.id for case in eval_set.cases}
    return tuple(hint for hint in hints if hint.case_id in known)


async def _all_of(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """All at once, in their order; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
