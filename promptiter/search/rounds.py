"""BackpropRounds: the default search. Each round runs, blames, patches, re-runs and validates until a policy stops it.

All blamed surfaces change together, and only those. Blame by a model is checked first: if correcting a step does not
move the score, its gradients lose weight. Before paying for validation, the failed train cases are re-run with the
patches: this reveals faults that were hidden behind others, and they are patched in the same round. After a rejection
the next round reuses the train results and the blame, and the optimizer sees what was rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from promptiter.backprop.backward_pass import MIN_SUPPORT, as_attributor, find_blaming_stage
from promptiter.backprop.record import NO_BLAME, NO_TRACE, PatchesWritten, describe_dropped
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.outline import UNKNOWN_MODEL, SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count, is_number
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.profile import PatchSet
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.propose import PatchProposer
from promptiter.search.stage_failures import StageFailures
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder, CallsModel, NamesModel, Optimizer, Rejection
from promptiter.stages.roles import check_stages
from promptiter.wording import join_names
from traces.text import cut

MAX_PASSES = 3
"""Maximum number of passes from losses to patches in a round."""

MOST_RERUN = 12
"""Maximum number of failed train cases that are re-run with the patches."""

MOST_FAILURES, MOST_REASON = 3, 120
"""Maximum number of failed train cases in the reason of a rejection, and of characters that say why one failed."""

NO_TRACES = (
    "the scorer returned no traces, which backprop rounds need to find the cause of a low score; "
    "return ScoredProfile(scores=..., traces=...), or give the engine a search that needs none"
)


class BackpropRounds:
    """The search by attribution, aggregation and optimization. Stages default to those that need no model.

    A surface is patched if its signal has at least `min_support` of the largest support. `check` verifies blame: by
    default the blame of models is checked, without calling one; None disables the check.
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
        check: GradientCheck | Literal["auto"] | None = "auto",
    ) -> None:
        check_stages(backwarder=backwarder, aggregator=aggregator, optimizer=optimizer)
        check_count(passes, "passes")
        check_count(most_rerun, "most_rerun", least=0)
        if not is_number(min_support, least=0) or min_support > 1:
            raise SetupError(f"min_support is {min_support!r}; give a number from 0 to 1")
        self.backwarder = backwarder
        self.attributor = as_attributor(backwarder)
        self.aggregator = aggregator or SupportAggregator()
        self.optimizer: Optimizer = optimizer or OFFLINE_STAGES.get("optimizer")()
        self.passes = passes
        self.most_rerun = most_rerun
        self.min_support = min_support
        if check == "auto":
            check = None if _find_model(find_blaming_stage(self.attributor)) is None else GradientCheck()
        self.check = check

    async def search(self, session: Session) -> None:
        failures = StageFailures(session)
        finder = BlameFinder(
            session, self.attributor, self.aggregator, failures=failures, min_support=self.min_support, check=self.check
        )
        proposer = PatchProposer(session, self.optimizer, failures=failures)
        tried: set[int] = set()
        known: BlameReport | None = None
        while not await session.should_stop():
            await session.begin_round()
            if known is None:
                profile = session.accepted.profile
                forward = await session.evaluate(session.train, profile, phase="train")
                if session.shape == "scorer" and not any(row.trace_digests for row in forward.rows):
                    raise SetupError(NO_TRACES)
                known = await finder.find(forward, session.train, profile, phase="train")
            proposal = await self._propose(session, finder, proposer, known)
            decision = await _decide(session, known, proposal, tried)
            await session.complete_round()
            if decision is None:
                return
            if decision.accepted:
                known = None
                proposer.rejected.forget_all_but_vetoes()
            else:
                proposer.rejected.add(_build_rejections(proposal, decision))

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        correctors = self.check.correctors if self.check is not None else ()
        return SearchOutline(
            passes=self.passes,
            max_rerun=self.most_rerun,
            max_checked=self.check.most if self.check is not None else 0,
            corrector=next((model for each in correctors if (model := _find_model(each)) is not None), None),
            backwarder=_find_model(find_blaming_stage(self.attributor)),
            aggregator=_find_model(self.aggregator),
            optimizer=_find_model(self.optimizer),
        )

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line for each model of a stage that cannot be called, or whose price is unknown."""
        correctors = self.check.correctors if self.check is not None else ()
        stages = (find_blaming_stage(self.attributor), self.aggregator, self.optimizer, *correctors)
        found: list[str] = []
        for each in stages:
            if isinstance(each, CallsModel) and each.model:
                own = each.gateway or gateway
                lines = (*own.find_setup_problems([each.model]), *own.find_unpriced_models([each.model]))
                found.extend(f"{type(each).__name__}: {line}" for line in lines)
        return list(dict.fromkeys(found))

    async def _propose(
        self, session: Session, finder: BlameFinder, proposer: PatchProposer, known: BlameReport
    ) -> RoundProposal:
        """Patch the blamed surfaces, then those that are blamed once these patches are in place."""
        cases = _select_rerun_cases(session.train, known, most=self.most_rerun)
        proposal, report = RoundProposal(), known
        for number in range(1, self.passes + 1):
            new = await proposer.propose(report)
            proposal = proposal.add_pass(new)
            if not new.patches:
                break
            candidate = session.candidate(proposal.patches)
            if number == self.passes:
                break
            rerun = await session.evaluate(cases, candidate, phase="rerun")
            proposal = replace(proposal, rerun=rerun)
            patched = proposal.patches.surface_ids
            if rerun.pass_rate == 1.0 or patched >= session.targets:
                break
            report = await finder.find(rerun, cases, candidate, phase="rerun", known=known, patched=patched)
        return proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProposal:
    """The patches of a round. `rerun` has the failed train cases under all of them; None if they were not re-run.

    `notes` say why blamed surfaces have no patch.
    """

    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    rerun: Evaluation | None = None

    def add_pass(self, new: PatchesWritten) -> RoundProposal:
        return RoundProposal(
            patches=PatchSet((*self.patches, *new.patches)),
            refused=(*self.refused, *new.refused),
            notes=(*self.notes, *new.notes),
            rerun=None if new.patches else self.rerun,
        )


async def _decide(
    session: Session, known: BlameReport, proposal: RoundProposal, tried: set[int]
) -> AcceptanceDecision | None:
    """Validate the candidate, unless it was tried before or does not even help the train cases it was made from.

    None if there is nothing left to try: no patch was written, or only values that were rejected before.
    """
    if not proposal.patches:
        if not proposal.refused:
            if reason := "; ".join(proposal.notes) or _explain_no_blame(known):
                await session.skip_round(reason)
            return None
        refusals = "; ".join(dict.fromkeys(f"{each.surface_id}: {each.reason}" for each in proposal.refused))
        decision = await session.skip_round(f"every patch was refused: {refusals}")
        return None if all(each.kind == "repeated" for each in proposal.refused) else decision
    digest = int(session.candidate(proposal.patches).digest[:16], 16)  # shortened, because a long run keeps all of them
    if digest in tried:
        return await session.reject(proposal.patches, "this candidate was tried before")
    tried.add(digest)
    if proposal.rerun is not None and not _is_improvement(known.evaluation, proposal.rerun, session.request.objective):
        count = len(proposal.rerun.cases)
        reason = f"the {count} failed train cases that were run again did no better"
        return await session.reject(proposal.patches, reason)
    return await session.validate(proposal.patches)


def _explain_no_blame(known: BlameReport) -> str | None:
    """Why nothing is blamed although cases failed."""
    rows = known.evaluation.rows
    if known.gradients or not any(row.error is None and not row.passed for row in rows):
        return None
    if known.dropped:
        return describe_dropped(known.dropped)
    return NO_BLAME if any(row.trace_digests for row in rows) else NO_TRACE


def _select_rerun_cases(train: EvalSet, known: BlameReport, *, most: int) -> EvalSet:
    """Choose failed cases from each blamed surface in turn, in the order of the signals."""
    in_turn = zip_longest(*(signal.case_ids for signal in known.signals))
    chosen = list(dict.fromkeys(case_id for each in in_turn for case_id in each if case_id is not None))[:most]
    return replace(train, cases=tuple(case for case in train.cases if case.id in chosen))


def _is_improvement(before: Evaluation, rerun: Evaluation, objective: Objective) -> bool:
    """Whether the re-run cases scored better than before."""
    again = {row.case_id for row in rerun.rows}
    same = replace(before, rows=tuple(row for row in before.rows if row.case_id in again))
    gain = Evidence(accepted=same, candidate=rerun, objective=objective).gain
    return gain is None or gain > 0


def _build_rejections(proposal: RoundProposal, decision: AcceptanceDecision) -> list[Rejection]:
    """What optimizers learn of a rejected candidate: the decision, and the train cases that failed with it."""
    names = sorted(proposal.patches.surface_ids)
    failed = "" if proposal.rerun is None else _describe_failures(proposal.rerun)
    together = f" (together with {', '.join(names)})" if len(names) > 1 else ""
    return [
        Rejection(
            surface_id=patch.surface_id,
            value=patch.value,
            reason=f"{decision.reason}{together}{failed}",
            kind="tried_together" if together else "tried",
        )
        for patch in proposal.patches
    ]


def _describe_failures(rerun: Evaluation) -> str:
    found: dict[str, str] = {}
    for row in rerun.rows:
        if not row.passed:
            reasons = (score.reason for score in row.scores if not score.passed and score.reason)
            reason = next(reasons, "") if row.error is None else row.error.message
            found.setdefault(row.case_id, f"{row.case_id}: {cut(reason, MOST_REASON)}" if reason else row.case_id)
    failures = join_names([*found.values()], limit=MOST_FAILURES)
    return f"; train cases that still fail with it: {failures}" if found else ""


def _find_model(stage: object) -> str | None:
    """The model that a stage calls, None if it calls none, UNKNOWN_MODEL if the stage does not say."""
    return stage.model if isinstance(stage, NamesModel) else UNKNOWN_MODEL
