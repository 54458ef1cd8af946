"""TextualPhase: texts, one target per trial, diagnosed and edited against the profile as it is now.

After an accepted edit, the next diagnosis is about what still fails with it. A trial whose diagnosis has too little
confidence ends before anything is edited or run. Texts that are co-optimized change together in one trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from promptiter.backprop.record import StagesMeasured
from promptiter.backprop.trial_record import PhaseKind, PhaseResult, TextualProposal, Trial, TrialOutcome
from promptiter.search.descent.diagnoses import Diagnoses, Edited
from promptiter.search.descent.phase import OpenPhase, PhaseLimits
from promptiter.search.descent.trials import Attempt, Trials
from promptiter.wording import join_names

NO_FAILURES = "no train case fails"


class TextualPhase:
    """The textual phases of one run. `groups` are the targets, each with the surfaces that change together."""

    kind: PhaseKind = "textual"

    def __init__(
        self,
        trials: Trials,
        groups: Sequence[tuple[str, ...]],
        diagnoses: Diagnoses,
        *,
        limits: PhaseLimits,
        min_confidence: float,
        models: tuple[str, str] = ("", ""),
    ) -> None:
        self._trials = trials
        self._groups = tuple(groups)
        self._diagnoses = diagnoses
        self._limits = limits
        self._min_confidence = min_confidence
        self._models = models
        self._turn = 0
        self._exhausted: set[tuple[str, tuple[str, ...]]] = set()
        self._rejected: list[tuple[float, Attempt]] = []

    async def run(self, cycle: int) -> PhaseResult | None:
        phase = OpenPhase(self._trials, self.kind, cycle, self._limits)
        while await phase.begin_round():
            attempt, ended = await self._propose()
            if attempt is None:
                await self._trials.session.skip_round(ended)
                await self._trials.session.complete_round()
                return await phase.end("exhausted", ended)
            found = await self._trials.run([attempt], phase.list_places(1))
            self._learn(attempt, found[0])
            if (result := await phase.end_round(found)) is not None:
                return result
        return None

    def take_rejected(self) -> Attempt | None:
        """The rejected edit of the accepted texts that came closest to a gain on train; None if none is left.

        It may need other numbers: a numeric phase can try both together. Each is returned once.
        """
        if not self._rejected:
            return None
        best = max(self._rejected, key=lambda each: each[0])
        self._rejected.remove(best)
        return best[1]

    def restart(self) -> None:
        """Forget rejected edits, because a text has changed, and start again with the first target."""
        self._diagnoses.forget()
        self._rejected.clear()
        self._turn = 0

    async def _propose(self) -> tuple[Attempt | None, str]:
        """The next attempt, or None and why there is nothing left to try."""
        base = self._trials.accepted
        if not any(case.is_scored and not case.passed for case in base.evaluation.cases):
            return None, NO_FAILURES
        blamed = await self._diagnoses.find_blamed(base)
        group = self._choose(blamed)
        if group is None:
            return None, self._explain_nothing_left(blamed)
        found = await self._diagnoses.diagnose(base, group)
        proposal = TextualProposal(diagnoses=found.diagnoses, critic=self._models[0], applier=self._models[1])
        if not found.diagnoses or found.problem:
            return self._skip(group, proposal, "no_edit", found.problem or "no diagnosis", found.stages), ""
        if proposal.confidence < self._min_confidence:
            reason = f"the confidence of the diagnosis is {proposal.confidence:g}, below {self._min_confidence:g}"
            return self._skip(group, proposal, "low_confidence", reason, found.stages), ""
        edited = await self._diagnoses.edit(base, found.diagnoses)
        return self._build_attempt(group, proposal, edited, found.stages + edited.stages), ""

    def _build_attempt(
        self, group: tuple[str, ...], proposal: TextualProposal, edited: Edited, stages: StagesMeasured
    ) -> Attempt:
        if edited.is_exhausted:
            self._exhausted.add((self._trials.accepted.profile.digest, group))
        if not edited.patches:
            return self._skip(group, proposal, "no_edit", edited.problem or "no new text was written", stages)
        proposal = replace(proposal, edits=edited.edits)
        return Attempt(surfaces=group, patches=edited.patches, textual=proposal, stages=stages)

    def _skip(
        self,
        group: tuple[str, ...],
        proposal: TextualProposal,
        outcome: TrialOutcome,
        reason: str,
        stages: StagesMeasured,
    ) -> Attempt:
        return Attempt(surfaces=group, textual=proposal, skipped=outcome, reason=reason, stages=stages)

    def _choose(self, blamed: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The next group in turn; with blame, of those that have a blamed text, and only their blamed texts."""
        digest = self._trials.accepted.profile.digest
        groups = [each for each in self._groups if (digest, each) not in self._exhausted]
        if blamed is not None:
            chosen = [tuple(name for name in each if name in blamed) for each in groups]
            ranked = sorted((each for each in chosen if each), key=lambda each: min(map(blamed.index, each)))
            groups = [each for each in ranked if (digest, each) not in self._exhausted]
        if not groups:
            return None
        self._turn += 1
        return groups[(self._turn - 1) % len(groups)]

    def _explain_nothing_left(self, blamed: tuple[str, ...] | None) -> str:
        if blamed is not None and not set(blamed) & {name for each in self._groups for name in each}:
            others = (
                f"; blamed are {join_names(blamed, limit=3)}" if blamed else f": {self._diagnoses.explain_no_blame()}"
            )
            return f"no text is blamed for what fails{others}"
        return "no new text is left to try"

    def _learn(self, attempt: Attempt, trial: Trial) -> None:
        """Remember a rejected idea; after an accepted one, start again with the first target."""
        if trial.is_accepted:
            self.restart()
        elif attempt.textual is not None:
            if trial.gain is not None:
                self._rejected.append((trial.gain, attempt))
            self._diagnoses.remember(attempt.textual.diagnoses, attempt.patches, trial.reason)
