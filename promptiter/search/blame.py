"""BlameFinder: from an evaluation to the surfaces that its failures come from.

It is the backward half of a pass: place the losses, attribute them to surfaces, check the blame, merge it per surface.
`BackpropRounds` calls it on the train set and on re-run failed cases; `PatchProposer` turns its report into patches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptiter.backprop.blame_check import weight_gradients
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.support_aggregator import SupportAggregator, rank
from promptiter.concurrency import run_together
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.surface_reads import collect_reads, find_unread
from promptiter.grouping import group_by
from promptiter.profile import Profile
from promptiter.runlog.events import Phase
from promptiter.runlog.results import PassResult, TraceBlame
from promptiter.search.gradient_check import GradientCheck, ReplayContext
from promptiter.search.priority import order_by_priority
from promptiter.search.stage_calls import StageCalls
from promptiter.search.step_examples import EvaluatedRuns
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    Aggregator,
    AttributeRequest,
    Attributor,
    BackwardResult,
    BlameChecks,
    Peer,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss, LossHint

MAX_PARALLEL_TRACES = 32
"""Maximum number of traces attributed at the same time."""

MIN_CASE_SHARE = 0.1
"""A signal needs support from at least this share of the cases; less may be a model that does not always comply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReport:
    """What BlameFinder found in one evaluation. PatchProposer reads it, and so does the next pass.

    `signals` have enough support for a patch; `gradients` are all of them, by surface.
    """

    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    runs: EvaluatedRuns
    signals: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]

    @property
    def largest_share(self) -> float:
        """The support of the best supported signal, as a share of the cases."""
        return max((signal.support for signal in self.signals), default=0.0) / max(1, len(self.evaluation.cases))


class BlameFinder:
    """Finds the surfaces behind failures, for all passes of one run."""

    def __init__(
        self,
        session: Session,
        attributor: Attributor,
        aggregator: Aggregator,
        *,
        calls: StageCalls,
        min_support: float,
        check: GradientCheck | None = None,
    ) -> None:
        self.session = session
        self.attributor = attributor
        self.aggregator = aggregator
        self.calls = calls
        self.min_support = min_support
        self.check = check

    async def find(
        self,
        evaluation: Evaluation,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
        known: BlameReport | None = None,
        patched: frozenset[str] = frozenset(),
    ) -> BlameReport:
        """Report where the failures of an evaluation come from.

        `known` is the report of the round's first pass: a later pass must reach a share of its largest support.
        Surfaces that are already `patched` get no signal.
        """
        session, request = self.session, self.session.request
        runs = EvaluatedRuns.of(evaluation, eval_set, session.trace)

        async def extract() -> tuple[CaseLoss, ...]:
            await session.restore_traces(evaluation, eval_set, profile)
            return extract_losses(
                evaluation,
                eval_set,
                session.trace,
                placements=request.loss_placements,
                hints=_select_hints(eval_set, request.hints),
            )

        async def attribute() -> tuple[TraceBlame, ...]:
            await session.restore_traces(evaluation, eval_set, profile)
            return await self._attribute(losses, runs, profile)

        key = [eval_set.id, profile.digest, len(evaluation.rows)]
        losses = await session.record("losses", tuple[CaseLoss, ...], extract, request=key, phase=phase)
        blames = await session.record("backward", tuple[TraceBlame, ...], attribute, request=key, phase=phase)
        gradients = _group_by_surface(blames, without=patched)
        if self.check is not None and known is None:
            gradients = await self._check_gradients(gradients, evaluation, eval_set, profile, phase=phase)
        merged: PassResult = await session.record(
            "aggregation",
            PassResult,
            lambda: self._merge(gradients, profile, evaluation, losses, known),
            request=key,
            phase=phase,
        )
        self.calls.has_worked = self.calls.has_worked or bool(merged.signals)
        return BlameReport(
            profile=profile,
            evaluation=evaluation,
            eval_set=eval_set,
            runs=runs,
            signals=merged.signals,
            gradients=gradients,
        )

    async def _attribute(
        self, losses: Sequence[CaseLoss], runs: EvaluatedRuns, profile: Profile
    ) -> tuple[TraceBlame, ...]:
        peers = await asyncio.to_thread(runs.select_peers) if losses else ()
        slots = asyncio.Semaphore(MAX_PARALLEL_TRACES)

        async def attribute(case_loss: CaseLoss) -> TraceBlame:
            async with slots:
                return await self._attribute_trace(case_loss, peers, profile)

        blames = await run_together(attribute(loss) for loss in losses)
        errors = [each.error for each in blames if each.error] or [
            result.error for each in blames for result in each.results if result.error
        ]
        if errors and not any(result.gradients for each in blames for result in each.results):
            self.calls.fail(f"{type(self.attributor).__name__} failed and blamed no surface: {errors[0]}")
        return tuple(blames)

    async def _check_gradients(
        self,
        gradients: dict[str, tuple[SurfaceGradient, ...]],
        evaluation: Evaluation,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
    ) -> dict[str, tuple[SurfaceGradient, ...]]:
        """Check a sample of the gradients; those whose correction does not move the score lose weight."""
        session, check = self.session, self.check
        assert check is not None

        async def replay() -> BlameChecks:
            await session.restore_traces(evaluation, eval_set, profile)
            runs = ReplayContext(
                agent=session.agent,
                evaluator=session.evaluator,
                eval_set=eval_set,
                evaluation=evaluation,
                profile=profile,
            )
            blame = [gradient for each in gradients.values() for gradient in each]
            found = await check.check(blame, runs, rng=session.rng)
            checks = tuple(replace(each, reason=session.redact(each.reason)) for each in found.checks)
            return replace(found, checks=checks)

        key = [eval_set.id, profile.digest, len(evaluation.rows), check.most]
        found: BlameChecks = await session.record("gradient_check", BlameChecks, replay, request=key, phase=phase)
        session.evaluations.paid += found.replays
        return weight_gradients(gradients, found.checks)

    async def _attribute_trace(self, case_loss: CaseLoss, peers: tuple[Peer, ...], profile: Profile) -> TraceBlame:
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
        results, error = await self.calls.call_or_error(lambda: self.attributor.attribute(request))
        kept = tuple(self._drop_invalid(result, request) for result in results or ())
        return replace(blame, results=kept, error=error)

    def _drop_invalid(self, result: BackwardResult, request: AttributeRequest) -> BackwardResult:
        """Drop gradients on surfaces that are not targets or were not read, and on steps that the trace lacks."""
        steps, case = {step.id for step in request.trace.steps}, request.case_loss
        unread_here = find_unread(request.targets, [collect_reads([request.trace])])
        gradients = tuple(
            replace(gradient, case_id=case.case_id, repeat=case.repeat, turn=case.turn)
            for gradient in result.gradients
            if gradient.surface_id in request.targets - unread_here and gradient.step_id in steps
        )
        dropped = result.dropped + len(result.gradients) - len(gradients)
        error = None if result.error is None else self.session.redact(result.error)
        return replace(result, gradients=gradients, dropped=dropped, error=error)

    async def _merge(
        self,
        gradients: dict[str, tuple[SurfaceGradient, ...]],
        profile: Profile,
        evaluation: Evaluation,
        losses: Sequence[CaseLoss],
        known: BlameReport | None,
    ) -> PassResult:
        failed = len({loss.case_id for loss in losses})

        async def merge(surface_id: str) -> AggregateResult:
            request = AggregateRequest(
                surface=profile.surface(surface_id, self.session.snapshot),
                gradients=gradients[surface_id],
                failed_cases=failed,
                all_cases=len(evaluation.cases),
            )
            merged, error = await self.calls.call_or_error(lambda: self.aggregator.aggregate(request))
            counted = await SupportAggregator().aggregate(request)
            if merged is None:
                return replace(counted, error=error)
            return replace(merged, surface_id=surface_id, case_ids=merged.case_ids or counted.case_ids)

        signals = await run_together(merge(surface_id) for surface_id in gradients)
        largest = self.min_support * known.largest_share if known is not None else 0.0
        least = max(MIN_CASE_SHARE, largest) * len(evaluation.cases)
        kept, below_support = (
            order_by_priority(each, evaluation.rows, unsure=self.session.validator.untrusted_nodes)
            for each in rank(signals, min_share=self.min_support, least=least)
        )
        return PassResult(signals=kept, below_support=below_support)


def _group_by_surface(
    blames: Sequence[TraceBlame], *, without: frozenset[str]
) -> dict[str, tuple[SurfaceGradient, ...]]:
    """All gradients by surface, worst severity first, in an order that does not depend on timing."""
    gradients = [gradient for blame in blames for result in blame.results for gradient in result.gradients]
    gradients.sort(key=lambda g: (g.surface_id, g.severity, g.case_id, g.repeat, g.step_id, g.text))
    found = group_by(gradients, lambda gradient: gradient.surface_id)
    return {surface_id: tuple(each) for surface_id, each in found.items() if surface_id not in without}


def _select_hints(eval_set: EvalSet, hints: Sequence[LossHint]) -> tuple[LossHint, ...]:
    """The hints for cases of this set. A re-run has only some of the train cases."""
    known = {case.id for case in eval_set.cases}
    return tuple(hint for hint in hints if hint.case_id in known)
