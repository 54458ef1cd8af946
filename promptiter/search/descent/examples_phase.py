"""ExamplesPhase: few-shot examples of nodes, from train cases, as a third kind of phase.

A trial tries several sets of examples, as the search for few-shot examples does: each is screened on train cases that
it does not show, and the best one is validated.
"""

from __future__ import annotations

from promptiter.backprop.trial_record import PhaseKind, PhaseResult, TrialOutcome
from promptiter.search.descent.phase import OpenPhase, PhaseLimits
from promptiter.search.descent.trials import Attempt, Trials
from promptiter.search.example_rounds import ExampleRounds, TriedSets


class ExamplesPhase:
    """The phases of one run that change examples. `surface_ids` are their targets, `teacher` is that of the search."""

    kind: PhaseKind = "examples"

    def __init__(
        self,
        trials: Trials,
        surface_ids: tuple[str, ...],
        *,
        limits: PhaseLimits,
        seed: int,
        teacher: str | None = None,
    ) -> None:
        self._trials = trials
        self._surface_ids = surface_ids
        self._limits = limits
        self._rounds = ExampleRounds(trials.session, seed=seed, teacher=teacher)
        self._known = ""

    async def run(self, cycle: int) -> PhaseResult | None:
        trials = self._trials
        phase = OpenPhase(trials, self.kind, cycle, self._limits)
        while await phase.begin_round():
            base = trials.accepted
            if self._known != base.profile.digest:
                await self._rounds.know_train(base.profile, base.evaluation)
                self._known = base.profile.digest
            found = await self._rounds.try_sets()
            if not found.tried:
                await trials.session.complete_round()
                return await phase.end("exhausted", found.reason)
            attempt = Attempt(surfaces=self._surface_ids, patches=found.best, reason=found.reason)
            [place] = phase.list_places(1)
            trial = await trials.record(attempt, place, outcome=_name_outcome(found), gain=found.gain)
            if found.is_accepted:
                await trials.start()
            if (result := await phase.end_round([trial])) is not None:
                return result
        return None


def _name_outcome(found: TriedSets) -> TrialOutcome:
    if found.is_accepted:
        return "accepted"
    return "holdout" if found.gain is not None and found.gain > 0 else "no_gain"
