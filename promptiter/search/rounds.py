"""BackpropRounds: the default search. Each round runs, blames, patches, re-runs and validates until a policy stops it.

All blamed surfaces change together, and only those. Blame by a model is checked first: if correcting a step does not
move the score, its gradients lose weight. Before paying for validation, the failed train cases are re-run with the
patches: this reveals faults that were hidden behind others, and they are patched in the same round. After a rejection
the next round continues from what failed with the rejected candidate, or reuses the train results and the blame; the
optimizer sees what was rejected, and what failed with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from promptiter.backprop.backward_pass import MIN_SUPPORT, as_attributor, find_blaming_stage
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.record import NO_TRACE, describe_dropped
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count, is_number
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.registry import OFFLINE_STAGES
from promptiter.runlog.results import RunShape
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.minibatches import MINIBATCH, Minibatches
from promptiter.search.propose import EMPHASES, PatchProposer
from promptiter.search.round_proposal import RoundProposal, RoundProposer
from promptiter.search.session_examples import find_teacher_problems
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_model, find_model_problems, find_stage_problems
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder, BatchAttributor
from promptiter.stages.optimizer import Optimizer
from promptiter.stages.roles import check_stages
from promptiter.structure import StructureSnapshot

MAX_PASSES = 3
"""Maximum number of passes from losses to patches in a round."""

MOST_RERUN = 12
"""Maximum number of failed train cases that are re-run with the patches."""

MOST_IN_A_ROW = 2
"""If rounds have several candidates, after this number of rejections one starts from an earlier accepted profile."""

DEAD_END = "accepted, but no further change to it was"
"""What optimizers learn of the accepted values when a round starts from an earlier profile."""

NO_TRACES = (
    "the scorer returned no traces, which backprop rounds need to find the cause of a low score; "
    "return ScoredProfile(scores=..., traces=...), or give the engine a search that needs none"
)


class BackpropRounds:
    """The search by attribution, aggregation and optimization. Stages default to those that need no model.

    Signals with at least `min_support` of the largest support are patched first. The others are patched if nothing
    else is left, or once a candidate was rejected, and only if a repeat of their cases confirms them. If there are more
    than twice `minibatch` train cases, a round starts with this number of them, and runs more if few of them fail; None
    runs all. If a model optimizes, the first pass of a round writes `width` candidates from the same evidence, each
    with another emphasis, and continues with the one that does best on the failed train cases; after two rejections it
    starts from an earlier accepted profile. `check` verifies blame: by default the blame of models is checked, without
    calling one; None disables the check. The `teacher` is a stronger model. Where no run of a train case passes, it
    runs the case in place of the models of the nodes; what it passes becomes few-shot examples.
    """

    def __init__(
        self,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        passes: int = MAX_PASSES,
        most_rerun: int = MOST_RERUN,
        min_support: float = MIN_SUPPORT,
        minibatch: int | None = MINIBATCH,
        width: int = 1,
        check: GradientCheck | Literal["auto"] | None = "auto",
        teacher: str | None = None,
    ) -> None:
        check_stages(backwarder=backwarder, aggregator=aggregator, optimizer=optimizer)
        check_count(passes, "passes")
        check_count(most_rerun, "most_rerun", least=0)
        if minibatch is not None:
            check_count(minibatch, "minibatch")
        check_count(width, "width")
        if width > len(EMPHASES):
            raise SetupError(f"width is {width!r}; give a number from 1 to {len(EMPHASES)}")
        if not is_number(min_support, least=0) or min_support > 1:
            raise SetupError(f"min_support is {min_support!r}; give a number from 0 to 1")
        self.backwarder = backwarder
        self.attributor = as_attributor(backwarder)
        self.aggregator = aggregator or SupportAggregator()
        self.optimizer: Optimizer = optimizer or OFFLINE_STAGES.get("optimizer")()
        self.passes = passes
        self.most_rerun = most_rerun
        self.min_support = min_support
        self.minibatch = minibatch
        self.width = width if find_model(self.optimizer) is not None else 1
        if check == "auto":
            check = None if find_model(find_blaming_stage(self.attributor)) is None else GradientCheck()
        self.check = check
        self.teacher = teacher

    async def search(self, session: Session) -> None:
        failures = StageFailures(session)
        finder = BlameFinder(
            session, self.attributor, self.aggregator, failures=failures, min_support=self.min_support, check=self.check
        )
        batches = Minibatches(session, size=self.minibatch)
        patcher = PatchProposer(session, self.optimizer, failures=failures, teacher=self.teacher)
        proposer = RoundProposer(
            session, finder, patcher, passes=self.passes, most_rerun=self.most_rerun, width=self.width
        )
        known: BlameReport | None = None
        unfinished: RoundProposal | None = None
        earlier: list[BlameReport] = []
        in_a_row = 0
        while not await session.should_stop():
            await session.begin_round()
            if known is None:
                profile = session.accepted.profile
                cases, forward = await batches.evaluate(profile)
                if session.shape == "scorer" and not any(row.trace_digests for row in forward.rows):
                    raise SetupError(NO_TRACES)
                known = await finder.find(forward, cases, profile, phase="train")
            proposal = await proposer.propose(known, unfinished)
            has_helped = proposer.has_helped(proposal, known)
            decision = await _decide(session, known, proposal, proposer.tried, has_helped=has_helped)
            await session.complete_round()
            if decision is not None and decision.accepted:
                earlier.append(known)
                known, unfinished, in_a_row = None, None, 0
                patcher.rejected.forget_all_but_vetoes()
                continue
            if decision is not None:
                patcher.rejected.add_candidate(proposal.patches, decision.reason, rerun=proposal.rerun)
                is_new = unfinished is None and proposal.is_unfinished
                unfinished, in_a_row = proposal if is_new and not has_helped else None, in_a_row + 1
            if self.width > 1 and earlier and (decision is None or in_a_row >= MOST_IN_A_ROW):
                known, unfinished, in_a_row = earlier.pop(), None, 0
                accepted = known.profile.build_patches(session.accepted.profile, session.snapshot, reason="accepted")
                patcher.rejected.add_candidate(accepted, DEAD_END)
            elif decision is None:
                return

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        correctors = self.check.correctors if self.check is not None else ()
        return SearchOutline(
            passes=self.passes,
            minibatch=self.minibatch,
            width=self.width,
            max_rerun=self.most_rerun,
            max_checked=self.check.most if self.check is not None else 0,
            corrector=next((model for each in correctors if (model := find_model(each)) is not None), None),
            backwarder=find_model(find_blaming_stage(self.attributor)),
            blamed_per_call=_find_blamed_per_call(self.attributor),
            aggregator=find_model(self.aggregator),
            optimizer=find_model(self.optimizer),
            teacher=self.teacher,
        )

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line for each model of a stage that cannot be called or has no price, and each missing program."""
        correctors = self.check.correctors if self.check is not None else ()
        stages = (find_blaming_stage(self.attributor), self.aggregator, self.optimizer, *correctors)
        return [*find_stage_problems(stages, gateway), *find_model_problems(self.teacher, gateway)]

    def find_target_problems(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> list[str]:
        """Say why this run could not use the teacher."""
        return find_teacher_problems(self.teacher, snapshot, targets, shape=shape)


async def _decide(
    session: Session, known: BlameReport, proposal: RoundProposal, tried: set[str], *, has_helped: bool
) -> AcceptanceDecision | None:
    """Validate the candidate, unless it was tried before or does not even help the train cases it was made from.

    A candidate for few cases is validated twice before it is rejected.
    None if there is nothing left to try: no patch was written, or the last values were rejected before.
    """
    if not proposal.patches:
        if not proposal.refused:
            if reason := "; ".join(proposal.notes) or _explain_no_blame(known):
                await session.skip_round(reason)
            return None
        refusals = "; ".join(dict.fromkeys(f"{each.surface_id}: {each.reason}" for each in proposal.refused))
        decision = await session.skip_round(f"every patch was refused: {refusals}")
        last = {each.surface_id: each.kind for each in proposal.refused}
        return None if set(last.values()) == {"repeated"} else decision
    patches, parents = proposal.patches, (known.profile,)
    if proposal.rerun is not None and not has_helped:
        reason = f"the {len(proposal.rerun.cases.cases)} failed train cases that were run again did no better"
        return await session.reject(patches, reason, parents=parents)
    candidate = session.candidate(patches, parent=known.profile)
    if candidate.digest in tried:
        return await session.reject(patches, "this candidate was tried before", parents=parents)
    tried.add(candidate.digest)
    decision = await session.validate(patches, parents=parents)
    if decision.accepted or not proposal.is_for_few_cases:
        return decision
    return await session.validate(patches, parents=parents)  # few cases can show it, so one comparison says little


def _explain_no_blame(known: BlameReport) -> str | None:
    """Why nothing is blamed although cases failed."""
    rows = known.evaluation.rows
    if known.gradients or not any(row.error is None and not row.passed for row in rows):
        return None
    if known.dropped:
        return describe_dropped(known.dropped)
    return known.no_blame if any(row.trace_digests for row in rows) else NO_TRACE


def _find_blamed_per_call(attributor: Attributor) -> Literal["step", "trace", "batch"]:
    if isinstance(attributor, StepwiseAttributor):
        return "step"
    return "batch" if isinstance(attributor, BatchAttributor) else "trace"
