"""BlameFinder: from an evaluation to the surfaces that its failures come from.

It is the first half of a pass: place the losses, attribute them to surfaces, check the blame, merge it per surface. The
work is that of `BackwardPass`; here each part is recorded, so that a resumed run does not repeat it. `BackpropRounds`
calls it on the train set and on re-run failed cases; `PatchProposer` turns its report into patches.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from promptiter.backprop.backward_pass import (
    MIN_CASE_SHARE,
    BackwardPass,
    count_cases,
    describe_failed_attribution,
    describe_failed_merge,
    group_by_surface,
)
from promptiter.backprop.blame_check import weight_gradients
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.record import (
    NO_BLAME,
    GradientsChecked,
    GradientsMerged,
    LossesAttributed,
    LossesExtracted,
    StagesMeasured,
    describe_no_blame,
)
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.runlog.events import Phase
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.priority import order_by_priority
from promptiter.search.replays import ReplayContext
from promptiter.search.stage_failures import StageFailures
from promptiter.stages.contracts import AggregateResult, Aggregator, Attributor, SurfaceGradient
from promptiter.stages.losses import CaseLoss, LossHint

FEW_FAILURES = 0.2
"""If at most this share of the cases failed, a slip or two on validation may hide that a patch fixed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReport:
    """What BlameFinder found in one evaluation. PatchProposer reads it, and so does the next pass.

    `round` is the one that it was made in; a later round may use it. `signals` have enough support to be patched first,
    `weak` ones less. `gradients` are all of them, by surface. `dropped` answers of the blaming stage were thrown away.
    `no_blame` says why, if there are no gradients.
    """

    round: int
    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    traces: JudgedTraces
    signals: tuple[AggregateResult, ...] = ()
    weak: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]
    dropped: int = 0
    no_blame: str = NO_BLAME

    @property
    def has_few_failures(self) -> bool:
        return self._count_failed() <= FEW_FAILURES * len(self.evaluation.cases)

    def scale_support(self, cases: int, *, min_support: float) -> float:
        """The least support of a signal that is not weak, if some of the failed cases are blamed again.

        It is that of a signal that all failed cases would give enough support.
        """
        return self._compute_least(min_support) * cases / max(cases, self._count_failed())

    def has_in_few_cases(self, signal: AggregateResult, *, min_support: float) -> bool:
        """Whether a signal of a later pass has only cases of a weak one, so that it still is: it had too few cases."""
        least = self._compute_least(min_support)
        few = (set(each.case_ids) for each in self.weak if each.surface_id == signal.surface_id)
        return any(len(cases) < least and cases.issuperset(signal.case_ids) for cases in few)

    def _count_failed(self) -> int:
        return sum(not case.passed for case in self.evaluation.cases)

    def _compute_least(self, min_support: float) -> float:
        """The least support of a signal that is not weak."""
        largest = max((signal.support for signal in self.signals), default=0.0)
        return max(MIN_CASE_SHARE * len(self.evaluation.cases), min_support * largest)


@dataclass(frozen=True, slots=True)
class BlameFinder:
    """Finds the surfaces behind failures, for all passes of one run."""

    session: Session
    attributor: Attributor
    aggregator: Aggregator
    _: KW_ONLY
    failures: StageFailures
    min_support: float
    check: GradientCheck | None = None

    async def find(
        self,
        evaluation: Evaluation,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
        known: BlameReport | None = None,
        only: Container[tuple[str, str]] | None = None,
    ) -> BlameReport:
        """Report where the failures of an evaluation come from.

        `known` is the report that the round started from; what a later pass finds is measured by it. If blame is
        confirmed, `only` that of these surfaces in these cases counts, however little support it has.
        """
        session, ledger = self.session, self.session.evaluator.gateway.ledger

        async def extract() -> LossesExtracted:
            return LossesExtracted(losses=await extract_case_losses(session, evaluation, eval_set, profile))

        async def attribute() -> LossesAttributed:
            await session.restore_traces(evaluation, eval_set, profile)
            before = ledger.snapshot()
            blames = await work.attribute(losses, self.attributor)
            self.failures.handle("backwarder", describe_failed_attribution(blames, self.attributor))
            return LossesAttributed(blames=blames, measured=StagesMeasured.between(before, ledger.snapshot()))

        async def merge() -> GradientsMerged:
            before = ledger.snapshot()
            merged = await work.merge(
                gradients,
                self.aggregator,
                failed_cases=count_cases(losses),
                all_cases=len(evaluation.cases),
                min_support=self.min_support if only is None else 0.0,
                min_case_share=least / max(1, len(evaluation.cases)) if only is None else 0.0,
            )
            self.failures.handle("aggregator", describe_failed_merge(merged, self.aggregator))
            still_weak = [each for each in merged.signals if is_still_weak(each)]
            kept = [each for each in merged.signals if each not in still_weak]
            return GradientsMerged(
                signals=order_by_priority(kept, evaluation.rows),
                below_support=order_by_priority([*still_weak, *merged.below_support], evaluation.rows),
                measured=StagesMeasured.between(before, ledger.snapshot()),
            )

        def is_still_weak(signal: AggregateResult) -> bool:
            return known is not None and known.has_in_few_cases(signal, min_support=self.min_support)

        count = len(evaluation.cases)
        least = MIN_CASE_SHARE * count if known is None else known.scale_support(count, min_support=self.min_support)
        key = [eval_set.id, profile.digest, len(evaluation.rows)]
        losses = (await session.record(LossesExtracted, extract, request=key, phase=phase)).losses
        traces = JudgedTraces(judge_traces(evaluation, eval_set, self.session.trace, losses=losses))
        work = BackwardPass(
            structure=session.snapshot,
            profile=profile,
            targets=session.targets,
            traces=traces,
            redact=session.redact,
            evaluation=evaluation.number,
        )
        attributed = await session.record(LossesAttributed, attribute, request=key, phase=phase)
        if any(blame.gradients for blame in attributed.blames):
            self.failures.mark_working("backwarder")
        gradients = group_by_surface(attributed.blames)
        if only is not None:
            gradients = _select_gradients(gradients, only)
        elif self.check is not None and known is None:
            gradients = await self._check_gradients(gradients, evaluation, eval_set, profile, phase=phase)
        merged = await session.record(GradientsMerged, merge, request=key, phase=phase)
        signals = (*merged.signals, *merged.below_support)
        if any(signal.error is None for signal in signals):
            self.failures.mark_working("aggregator")
        return BlameReport(
            round=session.round,
            profile=profile,
            evaluation=evaluation,
            eval_set=eval_set,
            traces=traces,
            signals=merged.signals,
            weak=tuple(signal for signal in merged.below_support if signal.text),
            gradients=gradients,
            dropped=sum(blame.dropped for blame in attributed.blames),
            no_blame=describe_no_blame(attributed.blames),
        )

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
        session, check, ledger = self.session, self.check, self.session.evaluator.gateway.ledger
        assert check is not None

        async def replay() -> GradientsChecked:
            await session.restore_traces(evaluation, eval_set, profile)
            runs = ReplayContext(
                agent=session.agent,
                evaluator=session.evaluator,
                eval_set=eval_set,
                evaluation=evaluation,
                profile=profile,
            )
            blame = [gradient for each in gradients.values() for gradient in each]
            before = ledger.snapshot()
            found = await check.check(blame, runs, rng=session.rng)
            checks = tuple(replace(each, reason=session.redact(each.reason)) for each in found.checks)
            measured = StagesMeasured.between(before, ledger.snapshot())
            return GradientsChecked(checks=checks, replays=found.replays, measured=measured)

        key = [eval_set.id, profile.digest, len(evaluation.rows), check.most]
        found = await session.record(GradientsChecked, replay, request=key, phase=phase)
        session.count_replays(found.replays)
        return weight_gradients(gradients, found.checks)


def _select_gradients(
    gradients: Mapping[str, tuple[SurfaceGradient, ...]], only: Container[tuple[str, str]]
) -> dict[str, tuple[SurfaceGradient, ...]]:
    """The gradients of these surfaces in these cases."""
    kept = {
        surface_id: tuple(gradient for gradient in each if (surface_id, gradient.case_id) in only)
        for surface_id, each in gradients.items()
    }
    return {surface_id: each for surface_id, each in kept.items() if each}


async def extract_case_losses(
    session: Session, evaluation: Evaluation, eval_set: EvalSet, profile: Profile
) -> tuple[CaseLoss, ...]:
    """The losses of an evaluation of this run, placed as its request says."""
    await session.restore_traces(evaluation, eval_set, profile)
    request = session.request
    return await extract_losses(
        evaluation,
        eval_set,
        session.trace,
        placements=request.loss_placements,
        hints=_select_hints(eval_set, request.hints),
    )


def _select_hints(eval_set: EvalSet, hints: Sequence[LossHint]) -> tuple[LossHint, ...]:
    """The hints for cases of this set. A re-run has only some of the train cases."""
    known = {case.id for case in eval_set.cases}
    return tuple(hint for hint in hints if hint.case_id in known)
