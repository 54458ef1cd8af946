"""BackwardPass: from the losses of traces to gradients, and from gradients to signals, one for each blamed surface.

A stage that fails on one trace or surface skips it. `PatchWriter` in `patch_writing` writes patches from the signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from promptiter.backprop.earlier_turns import move_to_turn_before
from promptiter.backprop.edge_trust import has_guesses, trust_steps
from promptiter.backprop.judged_traces import JudgedTraces
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.record import GradientsMerged, TraceBlame
from promptiter.backprop.stage_calls import (
    Redact,
    call_attributor,
    call_batch_attributor,
    call_or_error,
    call_stage,
    check_surface_id,
)
from promptiter.backprop.support_aggregator import SupportAggregator, rank
from promptiter.concurrency import run_together
from promptiter.evaluation.surface_reads import collect_reads, find_unread
from promptiter.grouping import group_by
from promptiter.profile import Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    Aggregator,
    AttributeRequest,
    Attributor,
    Backwarder,
    BackwardResult,
    BatchAttributor,
    Peer,
    SignalPoint,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names
from traces import Step

MAX_PARALLEL_TRACES = 32
"""Maximum number of traces attributed at the same time."""

MAX_NAMES = 5
"""Maximum number of names in a note."""

MIN_SUPPORT = 0.25
"""A surface is patched first if its signal has at least this share of the largest support."""

MIN_CASE_SHARE = 0.1
"""A signal needs support from this share of the cases, too; less may be a model that does not always comply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPass:
    """From the losses of one profile's traces to signals. In a run, `evaluation` is the number of their evaluation."""

    structure: StructureSnapshot
    profile: Profile
    targets: frozenset[str]
    traces: JudgedTraces
    redact: Redact
    evaluation: int | None = None
    concurrency: int = MAX_PARALLEL_TRACES

    async def attribute(self, losses: Sequence[CaseLoss], attributor: Attributor) -> tuple[TraceBlame, ...]:
        """Attribute the losses of each trace to surfaces. A failure affects only its trace or batch.

        If nothing is to blame for a failed turn of a conversation, the answers before it are, the last one first.
        """
        peers = await self.traces.select_peers() if losses else ()
        blames: list[TraceBlame] = []
        while losses:
            found = await self._attribute(losses, peers, attributor)
            blames += found
            unexplained = [loss for loss, blame in zip(losses, found, strict=True) if blame.has_no_cause]
            moved = [await move_to_turn_before(each, self.traces) for each in unexplained]
            losses = [each for each in moved if each is not None]
        return tuple(blames)

    async def _attribute(
        self, losses: Sequence[CaseLoss], peers: tuple[Peer, ...], attributor: Attributor
    ) -> list[TraceBlame]:
        if isinstance(attributor, BatchAttributor):
            batches = [losses[first : first + self.concurrency] for first in range(0, len(losses), self.concurrency)]
            return [each for batch in batches for each in await self._attribute_batch(batch, peers, attributor)]
        slots = asyncio.Semaphore(self.concurrency)

        async def attribute(case_loss: CaseLoss) -> TraceBlame:
            async with slots:
                return await self._attribute_trace(case_loss, peers, attributor)

        return await run_together(attribute(loss) for loss in losses)

    async def merge(
        self,
        gradients: Mapping[str, tuple[SurfaceGradient, ...]],
        aggregator: Aggregator,
        *,
        failed_cases: int,
        all_cases: int,
        min_support: float = MIN_SUPPORT,
        min_case_share: float = MIN_CASE_SHARE,
    ) -> GradientsMerged:
        """Merge the gradients of each surface into a signal. `min_case_share` of all cases must support it."""
        criteria = self.traces.criteria

        async def merge(surface_id: str) -> AggregateResult:
            request = AggregateRequest(
                surface=self.profile.surface(surface_id, self.structure),
                gradients=gradients[surface_id],
                failed_cases=failed_cases,
                all_cases=all_cases,
                criteria=criteria,
            )
            merged, error = await call_or_error(partial(_aggregate, aggregator, request), self.redact)
            if merged is None:
                return replace(await SupportAggregator().aggregate(request), error=error)
            support, case_ids = merged.support, merged.case_ids
            if not support or not case_ids:
                counted = await SupportAggregator().aggregate(request)
                support, case_ids = support or counted.support, case_ids or counted.case_ids
            points = merged.points or (_build_only_point(merged.text, request.gradients),)
            found = (merged.surface_id, merged.case_ids, merged.support, merged.points)
            if found == (surface_id, case_ids, support, points):
                return merged
            return replace(merged, surface_id=surface_id, case_ids=case_ids, support=support, points=points)

        if type(aggregator) is SupportAggregator:  # which answers at once, without a task for each surface
            signals = [await merge(surface_id) for surface_id in gradients]
        else:
            signals = await run_together(merge(surface_id) for surface_id in gradients)
        kept, below_support = rank(signals, min_share=min_support, least=min_case_share * all_cases)
        return GradientsMerged(signals=kept, below_support=below_support)

    async def explain_no_blame(self, losses: Sequence[CaseLoss]) -> tuple[str, ...]:
        """Say that the failed traces are of another agent, or never read a target, if so: then nothing is blamed."""
        traces = [await self.traces.load((each.case_id, each.repeat, each.turn)) for each in losses]
        ran = sorted({step.node_id for trace in traces for step in trace.steps})
        nodes = [node.id for node in self.structure.nodes]
        if traces and not set(ran) & set(nodes):
            named = " and ".join(join_names(each, limit=MAX_NAMES) for each in (ran, nodes))
            return (f"no node of the traces is one of the structure; they have {named}",)
        if traces and find_unread(self.targets, [collect_reads([trace]) for trace in traces]) == self.targets:
            return (f"no failed trace reads {join_names(sorted(self.targets), limit=MAX_NAMES)}",)
        return ()

    async def _attribute_trace(
        self, case_loss: CaseLoss, peers: tuple[Peer, ...], attributor: Attributor
    ) -> TraceBlame:
        request = await self._build_request(case_loss, peers)
        results, error = await call_or_error(partial(call_attributor, attributor, request), self.redact)
        return self._build_blame(request, results or (), error)

    async def _attribute_batch(
        self, losses: Sequence[CaseLoss], peers: tuple[Peer, ...], attributor: BatchAttributor
    ) -> list[TraceBlame]:
        requests = [await self._build_request(case_loss, peers) for case_loss in losses]
        answers, error = await call_or_error(partial(call_batch_attributor, attributor, requests), self.redact)
        found = answers if answers is not None else [[]] * len(requests)
        return [self._build_blame(request, results, error) for request, results in zip(requests, found, strict=True)]

    async def _build_request(self, case_loss: CaseLoss, peers: tuple[Peer, ...]) -> AttributeRequest:
        return AttributeRequest(
            case_loss=case_loss,
            trace=await self.traces.load((case_loss.case_id, case_loss.repeat, case_loss.turn)),
            snapshot=self.structure,
            profile=self.profile,
            targets=self.targets,
            peers=tuple(peer for peer in peers if peer.case_id != case_loss.case_id),
        )

    def _build_blame(
        self, request: AttributeRequest, results: Iterable[BackwardResult], error: str | None
    ) -> TraceBlame:
        case_loss, steps = request.case_loss, {step.id: step for step in request.trace.steps}
        trust: dict[str, float] = {}
        if has_guesses(request.trace):
            trust = trust_steps(request.trace, (loss.step_id for loss in case_loss.losses))
        return TraceBlame(
            case_id=case_loss.case_id,
            repeat=case_loss.repeat,
            turn=case_loss.turn,
            results=tuple(self._drop_invalid(result, request, steps, trust) for result in results),
            error=error,
        )

    def _drop_invalid(
        self, result: BackwardResult, request: AttributeRequest, steps: Mapping[str, Step], trust: Mapping[str, float]
    ) -> BackwardResult:
        """Drop gradients on surfaces that are not targets or that their step did not read, and of other cases.

        Those that were carried back over guessed edges lose weight: see `trust_steps`.
        """
        case = request.case_loss
        within = "" if self.evaluation is None else f"{self.evaluation}/"
        run = f"{within}{case.case_id}~{case.repeat}~{case.turn}"
        gradients = tuple(
            replace(
                gradient,
                case_id=case.case_id,
                repeat=case.repeat,
                turn=case.turn,
                id=f"{run}/{gradient.step_id}/{number}",
                trust=trust.get(gradient.step_id, 1.0),
                confidence=gradient.confidence * trust.get(gradient.step_id, 1.0),
            )
            for number, gradient in enumerate(result.gradients)
            if gradient.surface_id in request.targets
            and gradient.case_id in ("", case.case_id)
            and _may_have_read(steps.get(gradient.step_id), gradient.surface_id)
        )
        dropped = result.dropped + len(result.gradients) - len(gradients)
        error = None if result.error is None else self.redact(result.error)
        return BackwardResult(
            step_id=result.step_id,
            gradients=gradients,
            packets=result.packets,
            dropped=dropped,
            error=error,
            note=result.note,
            diagnosis=self.redact(result.diagnosis),
        )


def _may_have_read(step: Step | None, surface_id: str) -> bool:
    """Whether there is such a step, and it read the surface or its reads are unknown."""
    return step is not None and (step.surface_reads is None or surface_id in step.surface_reads)


async def _aggregate(aggregator: Aggregator, request: AggregateRequest) -> AggregateResult:
    merged = await call_stage(aggregator.aggregate, request, returns=AggregateResult)
    check_surface_id(merged.surface_id, asked=request.surface.id, method=aggregator.aggregate)
    return merged


def _build_only_point(text: str, gradients: Sequence[SurfaceGradient]) -> SignalPoint:
    """The point of a signal that is one text: it rests on all gradients."""
    return SignalPoint(
        text=text,
        case_ids=tuple(dict.fromkeys(gradient.case_id for gradient in gradients)),
        gradient_ids=tuple(gradient.id for gradient in gradients),
    )


def group_by_surface(blames: Sequence[TraceBlame]) -> dict[str, tuple[SurfaceGradient, ...]]:
    """All gradients by surface, worst severity first, in an order that does not depend on timing."""
    gradients = [gradient for blame in blames for gradient in blame.gradients]
    gradients.sort(key=lambda g: (g.surface_id, g.severity, g.case_id, g.repeat, g.step_id, g.text))
    found = group_by(gradients, lambda gradient: gradient.surface_id)
    return {surface_id: tuple(each) for surface_id, each in found.items()}


def as_attributor(stage: Backwarder | Attributor | None) -> Attributor:
    """The stage as an Attributor; by default the one that needs no model."""
    if stage is None:
        stage = OFFLINE_STAGES.get("attributor")()
    return stage if isinstance(stage, Attributor) else StepwiseAttributor(stage)


def count_cases(losses: Iterable[CaseLoss]) -> int:
    return len({loss.case_id for loss in losses})


def find_blaming_stage(attributor: Attributor) -> Backwarder | Attributor:
    """The stage that blames: of a walk, its Backwarder."""
    return attributor.backwarder if isinstance(attributor, StepwiseAttributor) else attributor


def describe_failed_attribution(blames: Sequence[TraceBlame], attributor: Attributor) -> str | None:
    """Say that the attributor failed, if that is why no surface is blamed."""
    errors = [each.error for each in blames if each.error] or [
        result.error for each in blames for result in each.results if result.error
    ]
    if not errors or any(each.gradients for each in blames):
        return None
    return f"{type(find_blaming_stage(attributor)).__name__} failed and blamed no surface: {errors[0]}"


def describe_failed_merge(merged: GradientsMerged, aggregator: Aggregator) -> str | None:
    """Say that the aggregator failed, if it did so on every surface."""
    errors = [signal.error for signal in (*merged.signals, *merged.below_support)]
    if not errors or None in errors:
        return None
    return f"{type(aggregator).__name__} failed and merged no gradients: {errors[0]}"
