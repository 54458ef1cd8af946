"""One pass from losses to patches: place the losses, carry them back, check the blame, merge it per surface, patch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from promptiter.backprop.blame_check import weighted
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.support_aggregator import SupportAggregator, rank
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.surface_reads import collect_reads, find_unread
from promptiter.profile import Profile
from promptiter.runlog.events import Phase
from promptiter.runlog.results import PassResult, TraceBlame
from promptiter.search.blame_report import Found
from promptiter.search.gradient_check import GradientCheck, Replays
from promptiter.search.priority import most_worth_first
from promptiter.search.propose import Patching
from promptiter.search.stage_calls import StageCalls, all_of
from promptiter.search.step_examples import Runs
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    Aggregator,
    AttributeRequest,
    Attributor,
    BackwardResult,
    BlameChecks,
    Optimizer,
    Peer,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss, LossHint

TRACES_AT_ONCE = 32
SLIPS = 0.1
"""What less than this share of the cases shows may be chance: a model that does not always obey is not to be mended."""


class Passes:
    """The passes of one run: `find` says where failures come from, and `patching` writes what may mend them."""

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
        self.min_support = min_support
        self.check = check
        self.calls = StageCalls(session)
        self.patching = Patching(session, optimizer, self.calls)

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
                evaluation,
                eval_set,
                session.trace,
                placements=request.loss_placements,
                hints=_for(eval_set, request.hints),
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
        self.calls.has_worked = self.calls.has_worked or bool(merged.signals)
        return Found(
            profile=profile,
            evaluation=evaluation,
            eval_set=eval_set,
            runs=runs,
            signals=merged.signals,
            gradients=gradients,
        )

    async def _blame(self, losses: Sequence[CaseLoss], runs: Runs, profile: Profile) -> tuple[TraceBlame, ...]:
        peers = await asyncio.to_thread(runs.peers) if losses else ()
        slots = asyncio.Semaphore(TRACES_AT_ONCE)

        async def one(case_loss: CaseLoss) -> TraceBlame:
            async with slots:
                return await self._blame_one(case_loss, peers, profile)

        blames = await all_of([partial(one, loss) for loss in losses])
        errors = [each.error for each in blames if each.error] or [
            result.error for each in blames for result in each.results if result.error
        ]
        if errors and not any(result.gradients for each in blames for result in each.results):
            self.calls.fail(f"{type(self.attributor).__name__} blamed nothing and failed: {errors[0]}")
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
        blame = TraceBlame(case_id=case_loss.case_id, repeat=case_loss.repeat, turn=case_loss.turn)
        results, error = await self.calls.or_error(lambda: self.attributor.attribute(request))
        kept = tuple(self._kept(result, request) for result in results or ())
        return replace(blame, results=kept, error=error)

    def _kept(self, result: BackwardResult, request: AttributeRequest) -> BackwardResult:
        """A result without gradients on what is no target, was read nowhere or did not happen."""
        steps, case = {step.id for step in request.trace.steps}, request.case_loss
        unread_here = find_unread(request.targets, [collect_reads([request.trace])])
        gradients = tuple(
            replace(gradient, case_id=case.case_id, repeat=case.repeat, turn=case.turn)
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
                surface=profile.surface(surface_id, self.session.snapshot),
                gradients=gradients[surface_id],
                failed_cases=failed,
                all_cases=len(evaluation.cases),
            )
            merged, error = await self.calls.or_error(lambda: self.aggregator.aggregate(request))
            counted = await SupportAggregator().aggregate(request)
            if merged is None:
                return replace(counted, error=error)
            return replace(merged, surface_id=surface_id, case_ids=merged.case_ids or counted.case_ids)

        signals = await all_of([partial(one, surface_id) for surface_id in gradients])
        largest = self.min_support * known.largest_share if known is not None else 0.0
        least = max(SLIPS, largest) * len(evaluation.cases)
        kept, left = (
            most_worth_first(each, evaluation.rows, unsure=self.session.comparisons.unsure)
            for each in rank(signals, min_share=self.min_support, least=least)
        )
        return PassResult(signals=kept, left=left)


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
        surface_id: tuple(sorted(found[surface_id], key=lambda g: (g.severity, g.case_id, g.repeat, g.step_id, g.text)))
        for surface_id in sorted(found)
    }


def _for(eval_set: EvalSet, hints: Sequence[LossHint]) -> tuple[LossHint, ...]:
    """The hints on cases of this set; a re-run has only some of them."""
    known = {case.id for case in eval_set.cases}
    return tuple(hint for hint in hints if hint.case_id in known)
