"""RoundProposer: makes the candidate of a round, in passes from failures to patches.

After each pass, failed train cases are re-run with the patches. What still fails is blamed again, also on surfaces that
were patched before, so a fault that was hidden behind another is fixed in the same round. A pass that makes the re-run
cases worse is left out. With a `width` above 1, the first pass writes several variants, and continues with the one that
does best on these cases. `BackpropRounds` validates the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from promptiter.backprop.record import PatchesWritten
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.profile import PatchSet
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.confirmation import Confirmation
from promptiter.search.propose import PatchProposer
from promptiter.search.rejections import Rerun
from promptiter.search.rerun_cases import measure_gain, select_cases
from promptiter.stages.optimizer import Rejection
from promptiter.wording import format_score

TRIED_BEFORE = "these patches were tried before, together and without each of them"
"""Why patches that were written are not tried."""

WORSE_VARIANT = "another candidate of this round did no worse on the failed train cases"
"""What an optimizer is told about a candidate that was not validated, because another one of its round was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProposal:
    """The patches of a round, on top of the profile that it starts from.

    `rerun` is None if no case was re-run with all of them.
    `notes` say why blamed surfaces have no patch. It `is_unfinished` if cases still failed after the last pass, and
    `is_for_few_cases` if it was made from signals with little support, or few train cases failed.
    """

    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    rerun: Rerun | None = None
    is_unfinished: bool = False
    is_for_few_cases: bool = False

    def add_pass(self, new: PatchesWritten) -> RoundProposal:
        return replace(
            self,
            patches=self.patches.compose(new.patches),
            refused=(*self.refused, *new.refused),
            notes=(*self.notes, *new.notes),
            rerun=None if new.patches else self.rerun,
        )


class RoundProposer:
    """Makes the candidates of one run, one in each round.

    `tried` are the digests of those that were validated, or did not help the failed train cases.
    """

    def __init__(
        self,
        session: Session,
        finder: BlameFinder,
        patcher: PatchProposer,
        *,
        passes: int,
        most_rerun: int,
        width: int = 1,
    ) -> None:
        self._session = session
        self._finder = finder
        self._patcher = patcher
        self._passes = passes
        self._width = width
        self._most_rerun = most_rerun
        self._confirmation = Confirmation(session, finder, most=most_rerun)
        self.tried: set[str] = set()
        self._known: BlameReport | None = None
        self._is_turn_of_weak = False

    async def propose(self, known: BlameReport, unfinished: RoundProposal | None = None) -> RoundProposal:
        """Patch the blamed surfaces, then those that are blamed once these patches are in place.

        `known` is the blame under the profile that the round starts from. A proposal of the last round that is
        `unfinished` is continued from what failed with it, unless that adds no patch. Rounds with the same `known`
        start in turn from the signals with much support and from those with little.
        """
        if known is not self._known:
            self._known, self._is_turn_of_weak = known, False
        if unfinished is not None and (rerun := unfinished.rerun) is not None:
            report = await self._blame_rerun(rerun, known)
            proposal = await self._run_passes(report, known, replace(unfinished, refused=(), notes=()))
            if proposal.patches != unfinished.patches:
                return proposal
        weak_first, self._is_turn_of_weak = self._is_turn_of_weak, not self._is_turn_of_weak
        return await self._run_passes(known, known, RoundProposal(), weak_first=weak_first)

    async def _run_passes(
        self, report: BlameReport, known: BlameReport, proposal: RoundProposal, *, weak_first: bool = False
    ) -> RoundProposal:
        cases: EvalSet | None = None
        for number in range(1, self._passes + 1):
            kinds: tuple[bool, ...] = (weak_first, not weak_first) if number == 1 else (False, True)
            if not proposal.is_for_few_cases and not self.has_helped(proposal, known):
                kinds = (False,)  # what has little support is then tried alone, in a later round
            width = self._width if number == 1 else 1
            patched, variants = await self._patch(report, kinds, proposal, known, width=width)
            if cases is None:
                cases = self._select_cases(patched, report)
                is_for_few_cases = patched is not report or known.has_few_failures
                proposal = replace(proposal, is_for_few_cases=is_for_few_cases)
            before, proposal = proposal, await self._choose_variant(proposal, variants, cases, known)
            if (rerun := proposal.rerun) is None or proposal.patches == before.patches:
                break
            if not self.has_helped(proposal, known):
                self.tried.add(rerun.candidate.digest)
            if before.rerun is not None and self._is_loss(before.rerun, rerun):
                return replace(before, refused=proposal.refused, notes=proposal.notes, is_unfinished=False)
            if rerun.evaluation.pass_rate == 1.0:
                break
            if number == self._passes:
                return replace(proposal, is_unfinished=True)
            report = await self._blame_rerun(rerun, known)
        return replace(proposal, is_unfinished=False)

    async def _patch(
        self, report: BlameReport, kinds: Iterable[bool], proposal: RoundProposal, known: BlameReport, *, width: int
    ) -> tuple[BlameReport, tuple[PatchesWritten, ...]]:
        """Patch the signals of the first kind that gives something new, in several variants; also return these signals.

        The kinds are signals with much support (False), and confirmed ones with little (True).
        """
        patched, refused, notes = report, tuple[Rejection, ...](), tuple[str, ...]()
        variants: tuple[PatchesWritten, ...] = (PatchesWritten(blamed_in=report.round),)
        for is_weak in kinds:
            patched = await self._confirmation.confirm(report) if is_weak else report
            written = await self._patcher.propose_variants(patched, width=width, patched=proposal.patches.surface_ids)
            variants = tuple(self._leave_out_tried(each, proposal, known) for each in written)
            if variants[0].patches:
                break
            refused, notes = (*refused, *variants[0].refused), (*notes, *variants[0].notes)
            variants = (replace(variants[0], refused=(), notes=()),)
        return patched, tuple(
            replace(each, refused=(*refused, *each.refused), notes=(*notes, *each.notes)) for each in variants
        )

    def _leave_out_tried(self, new: PatchesWritten, proposal: RoundProposal, known: BlameReport) -> PatchesWritten:
        """Of patches that were tried together before, all but one; none if that was tried, too.

        One of them may hide that the others help. Those of the lowest priority are left out first.
        """

        def is_tried(patches: PatchSet) -> bool:
            candidate = self._session.candidate(proposal.patches.compose(patches), parent=known.profile)
            return candidate.digest in self.tried

        if not new.patches or not is_tried(new.patches):
            return new
        for left_out in reversed(new.patches.patches):
            patches = PatchSet(tuple(each for each in new.patches if each is not left_out))
            if patches and not is_tried(patches):
                return replace(new, patches=patches)
        return replace(new, patches=PatchSet(), notes=(*new.notes, TRIED_BEFORE))

    async def _choose_variant(
        self, proposal: RoundProposal, variants: tuple[PatchesWritten, ...], cases: EvalSet, known: BlameReport
    ) -> RoundProposal:
        """Add the variant with which the failed cases score best, with its re-run; the others are rejected."""
        session = self._session
        options = [proposal.add_pass(each) for each in variants]
        if not variants[0].patches or not cases.cases:
            return options[0]
        candidates = [session.candidate(each.patches, parent=known.profile) for each in options]
        cases = self._patcher.examples.leave_out_shown(cases, candidates)
        if not cases.cases:
            return options[0]
        evaluations = await session.evaluate_many([(cases, each) for each in candidates], phase="rerun")
        tried = [
            replace(each, rerun=Rerun(candidate=candidate, cases=cases, evaluation=evaluation))
            for each, candidate, evaluation in zip(options, candidates, evaluations, strict=True)
        ]
        best = max(tried, key=lambda each: self._measure_gain(each, known))
        if len(tried) > 1:
            await self._patcher.choose(variants[tried.index(best)])
        for each in tried:
            if each is not best:
                await session.reject(each.patches, self._compare_reruns(each, best), parents=(known.profile,))
                self._patcher.rejected.add_candidate(each.patches, WORSE_VARIANT, rerun=each.rerun)
        return best

    def _compare_reruns(self, worse: RoundProposal, best: RoundProposal) -> str:
        """Why one of two candidates is not validated, with the scores of both."""
        objective = self._session.request.objective
        lost, won = (
            format_score(None if each.rerun is None else each.rerun.evaluation.objective(objective))
            for each in (worse, best)
        )
        return f"no better on the failed train cases than the chosen candidate ({lost} against {won})"

    def _select_cases(self, patched: BlameReport, report: BlameReport) -> EvalSet:
        """Choose failed cases behind the patches. If these have much support, cases with other blame are among them."""
        signals = (*report.signals, *report.weak) if patched is report else patched.signals
        return select_cases(self._session.train, signals, most=self._most_rerun)

    async def _blame_rerun(self, rerun: Rerun, known: BlameReport) -> BlameReport:
        return await self._finder.find(rerun.evaluation, rerun.cases, rerun.candidate, phase="rerun", known=known)

    def has_helped(self, proposal: RoundProposal, known: BlameReport) -> bool:
        """Whether the re-run cases scored better than under the accepted profile, as far as that is known."""
        return self._measure_gain(proposal, known) > 0

    def _measure_gain(self, proposal: RoundProposal, known: BlameReport) -> float:
        """The gain of the re-run cases; infinite if it is unknown."""
        if proposal.rerun is None:
            return math.inf
        gain = measure_gain(known.evaluation, proposal.rerun.evaluation, self._session.request.objective)
        return math.inf if gain is None else gain

    def _is_loss(self, before: Rerun, after: Rerun) -> bool:
        gain = measure_gain(before.evaluation, after.evaluation, self._session.request.objective)
        return gain is not None and gain < 0
