"""BlameFinder: from an evaluation to the surfaces that its failures come from.

It is the first half of a pass: place the losses, attribute them to surfaces, check the blame, merge it per surface. The
work is that of `BackwardPass`; here each part is recorded, so that a resumed run does not repeat it. `BackpropRounds`
calls it on the train set and on re-run failed cases; `PatchProposer` turns its report into patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from promptiter.backprop.record import GradientsChecked, GradientsMerged, LossesAttributed, LossesExtracted
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.runlog.events import Phase
from promptiter.search.gradient_check import GradientCheck, ReplayContext
from promptiter.search.priority import order_by_priority
from promptiter.search.stage_failures import StageFailures
from promptiter.stages.contracts import AggregateResult, Aggregator, Attributor, SurfaceGradient
from promptiter.stages.losses import LossHint


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReport:
    """What BlameFinder found in one evaluation. PatchProposer reads it, and so does the next pass.

    `round` is the one that it was made in; a later round may use it. `signals` have enough support for a patch;
    `gradients` are all of them, by surface. `dropped` answers of the blaming stage were thrown away.
    """

    round: int
    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    traces: JudgedTraces
    signals: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]
    dropped: int = 0

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
        failures: StageFailures,
        min_support: float,
        check: GradientCheck | None = None,
    ) -> None:
        self.session = session
        self.attributor = attributor
        self.aggregator = aggregator
        self.failures = failures
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

        async def extract() -> LossesExtracted:
            await session.restore_traces(evaluation, eval_set, profile)
            hints = _select_hints(eval_set, request.hints)
            losses = await extract_losses(
                evaluation, eval_set, session.trace, placements=request.loss_placements, hints=hints
            )
            return LossesExtracted(losses=losses)

        async def attribute() -> LossesAttributed:
            await session.restore_traces(evaluation, eval_set, profile)
            blames = await work.attribute(losses, self.attributor)
            self.failures.handle("backwarder", describe_failed_attribution(blames, self.attributor))
            return LossesAttributed(blames=blames)

        async def merge() -> GradientsMerged:
            merged = await work.merge(
                gradients,
                self.aggregator,
                failed_cases=count_cases(losses),
                all_cases=len(evaluation.cases),
                min_support=self.min_support,
                min_case_share=max(MIN_CASE_SHARE, 0.0 if known is None else self.min_support * known.largest_share),
            )
            self.failures.handle("aggregator", describe_failed_merge(merged, self.aggregator))
            kept, below_support = (
                order_by_priority(each, evaluation.rows) for each in (merged.signals, merged.below_support)
            )
            return GradientsMerged(signals=kept, below_support=below_support)

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
        gradients = group_by_surface(attributed.blames, without=patched)
        if self.check is not None and known is None:
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
            gradients=gradients,
            dropped=sum(blame.dropped for blame in attributed.blames),
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
        session, check = self.session, self.check
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
            found = await check.check(blame, runs, rng=session.rng)
            checks = tuple(replace(each, reason=session.redact(each.reason)) for each in found.checks)
            return GradientsChecked(checks=checks, replays=found.replays)

        key = [eval_set.id, profile.digest, len(evaluation.rows), check.most]
        found = await session.record(GradientsChecked, replay, request=key, phase=phase)
        session.count_replays(found.replays)
        return weight_gradients(gradients, found.checks)


def _select_hints(eval_set: EvalSet, hints: Sequence[LossHint]) -> tuple[LossHint, ...]:
    """The hints for cases of this set. A re-run has only some of the train cases."""
    known = {case.id for case in eval_set.cases}
    return tuple(hint for hint in hints if hint.case_id in known)
