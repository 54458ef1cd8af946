"""Backprop rounds: the default search. Run, blame, patch, look again, validate; and once more until told to stop.

All blamed surfaces change together and no other does. Blame by a model is checked first: what does not move the score
in a replay loses weight. Before validation is paid, the failed train cases are run again
with the patches: a fault that stood behind another shows then, and is mended in the same round. After a rejection the
next round starts from what is known: nothing is run or blamed again, and the optimizer hears what was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.plan import UNKNOWN_MODEL, SearchOutline
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.profile import PatchSet
from promptiter.registry import OFFLINE_STAGES
from promptiter.runlog.results import PassResult
from promptiter.search.blame import Passes
from promptiter.search.blame_report import Found
from promptiter.search.gradient_check import GradientCheck
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder, NamesModel, Optimizer, Rejection

PASSES = 3
"""So often a round goes from losses to patches, while blame moves on."""

MOST_RERUN = 12
"""So many failed train cases are run again with the patches."""


class BackpropRounds:
    """The Search made of three stages; those that are left out are the ones that need no model.

    A surface is patched if its signal has at least `min_support` of the largest support. `check` is how blame is
    checked: by default that of models is, without asking any; None checks nothing.
    """

    def __init__(
        self,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        passes: int = PASSES,
        most_rerun: int = MOST_RERUN,
        min_support: float = 0.25,
        check: GradientCheck | Literal["auto"] | None = "auto",
    ) -> None:
        self.attributor = _as_attributor(backwarder)
        self.aggregator = aggregator or SupportAggregator()
        self.optimizer: Optimizer = optimizer or OFFLINE_STAGES.get("optimizer")()
        self.passes = passes
        self.most_rerun = most_rerun
        self.min_support = min_support
        self.check = self._check_by_default() if check == "auto" else check

    async def search(self, session: Session) -> None:
        stages = self.attributor, self.aggregator, self.optimizer
        passes = Passes(session, *stages, min_support=self.min_support, check=self.check)
        tried: set[int] = set()
        known: Found | None = None
        while not await session.should_stop():
            await session.begin_round()
            if known is None:
                profile = session.accepted.profile
                forward = await session.evaluate(session.train, profile, phase="train")
                known = await passes.find(forward, session.train, profile, phase="train")
            proposal = await self._propose(session, passes, known)
            decision = await _decide(session, known, proposal, tried)
            await session.complete_round()
            if decision is None:
                return
            if decision.accepted:
                known = None
                passes.patching.rejected.forget_all_but_vetoes()
            else:
                passes.patching.rejected.add(_rejections(proposal, decision))

    def outline(self) -> SearchOutline:
        """What a round may ask for, so that a run can be forecast."""
        correctors = self.check.correctors if self.check is not None else ()
        return SearchOutline(
            passes=self.passes,
            most_rerun=self.most_rerun,
            most_checked=self.check.most if self.check is not None else 0,
            corrector=next((model for each in correctors if (model := _asked_by(each)) is not None), None),
            backwarder=self._blaming_model,
            aggregator=_asked_by(self.aggregator),
            optimizer=_asked_by(self.optimizer),
        )

    @property
    def _blaming_model(self) -> str | None:
        return _asked_by(
            self.attributor.backwarder if isinstance(self.attributor, StepwiseAttributor) else self.attributor
        )

    def _check_by_default(self) -> GradientCheck | None:
        return None if self._blaming_model is None else GradientCheck()

    async def _propose(self, session: Session, passes: Passes, known: Found) -> Proposal:
        """Patches for what is blamed, and for what is blamed once these are in place."""
        cases = _to_rerun(session.train, known, most=self.most_rerun)
        proposal, found = Proposal(), known
        for number in range(1, self.passes + 1):
            new = await passes.patching.propose(found)
            proposal = proposal.with_pass(new)
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
            found = await passes.find(rerun, cases, candidate, phase="rerun", known=known, patched=patched)
        return proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The patches of a round, and the failed train cases run again with all of them; None if they were not."""

    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    rerun: Evaluation | None = None

    def with_pass(self, new: PassResult) -> Proposal:
        return Proposal(
            patches=PatchSet((*self.patches, *new.patches)),
            refused=(*self.refused, *new.refused),
            rerun=None if new.patches else self.rerun,
        )


async def _decide(session: Session, known: Found, proposal: Proposal, tried: set[int]) -> AcceptanceDecision | None:
    """Validation decides; but a candidate that does not even help the cases it was made from is not worth paying for.

    None: there is nothing to try, now or later.
    """
    if not proposal.patches:
        return await session.pass_over(_all_refused(proposal.refused)) if proposal.refused else None
    candidate = session.candidate(proposal.patches)
    name = int(candidate.digest[:16], 16)  # a long run remembers them all
    if name in tried:
        return await session.reject(candidate, "this candidate was tried before")
    tried.add(name)
    if proposal.rerun is not None and not _helps(known.evaluation, proposal.rerun, session.request.objective):
        count = len(proposal.rerun.cases)
        return await session.reject(candidate, f"the {count} failed train cases that were run again did no better")
    return await session.validate(candidate)


def _all_refused(refused: Sequence[Rejection]) -> str:
    return "every patch was refused: " + "; ".join(f"{each.surface_id}: {each.reason}" for each in refused)


def _to_rerun(train: EvalSet, known: Found, *, most: int) -> EvalSet:
    """Failed cases, from each blamed surface in turn, those first that are most worth it."""
    in_turn = zip_longest(*(signal.case_ids for signal in known.signals))
    chosen = list(dict.fromkeys(case_id for each in in_turn for case_id in each if case_id is not None))[:most]
    return replace(train, cases=tuple(case for case in train.cases if case.id in chosen))


def _helps(before: Evaluation, rerun: Evaluation, objective: Objective) -> bool:
    """Whether the cases that were run again did better than before."""
    again = {row.case_id for row in rerun.rows}
    same = replace(before, rows=tuple(row for row in before.rows if row.case_id in again))
    gain = Evidence(baseline=same, candidate=rerun, objective=objective).gain
    return gain is None or gain > 0


def _rejections(proposal: Proposal, decision: AcceptanceDecision) -> list[Rejection]:
    names = sorted(proposal.patches.surface_ids)
    together = f" (together with {', '.join(names)})" if len(names) > 1 else ""
    return [
        Rejection(
            surface_id=patch.surface_id,
            value=patch.value,
            reason=f"{decision.reason}{together}",
            kind="tried_together" if together else "tried",
        )
        for patch in proposal.patches
    ]


def _asked_by(stage: object) -> str | None:
    return stage.model if isinstance(stage, NamesModel) else UNKNOWN_MODEL


def _as_attributor(stage: Backwarder | Attributor | None) -> Attributor:
    if stage is None:
        stage = OFFLINE_STAGES.get("attributor")()
    return stage if isinstance(stage, Attributor) else StepwiseAttributor(stage)
