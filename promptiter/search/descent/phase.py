"""Phase: a block of trials that change one kind of surface, with limits of its own. Coordinate descent alternates them.

A phase ends after `max_trials`, after `patience` trials in a row without an accepted candidate, or when it has nothing
left to try. One that the run cuts short, by a stop policy or a budget, records no end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from promptiter.backprop.trial_record import LossFigures, PhaseEnd, PhaseEnded, PhaseKind, PhaseResult, Trial
from promptiter.search.descent.trials import Place, Trials
from promptiter.wording import plural


class Phase(Protocol):
    """A kind of phase. `run` is called once per cycle, with the number of the cycle from 1."""

    kind: PhaseKind

    async def run(self, cycle: int) -> PhaseResult | None:
        """Run the phase to its end; None if the run stops before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLimits:
    """When a phase ends: after this number of trials, and after this number in a row without an accepted one.

    The first `startup` trials do not count for the patience.
    """

    max_trials: int
    patience: int | None
    startup: int = 0


@dataclass
class OpenPhase:
    """A phase in progress. `first` are the figures at its start, once its first round has begun."""

    trials: Trials
    kind: PhaseKind
    cycle: int
    limits: PhaseLimits
    _: KW_ONLY
    study_id: str = ""
    done: list[Trial] = field(default_factory=list)
    first: LossFigures | None = None

    async def begin_round(self) -> bool:
        """Begin the next round, and the phase with its first one; False if the run stops instead."""
        if await self.trials.session.should_stop():
            return False
        await self.trials.session.begin_round()
        if self.first is None:
            await self.trials.begin_phase(self.cycle, self.kind, self.study_id)
            self.first = self.trials.accepted.figures
        return True

    def list_places(self, count: int) -> list[Place]:
        """The places of the next trials."""
        start = len(self.done) + 1
        return [Place(cycle=self.cycle, phase=self.kind, number=start + each) for each in range(count)]

    async def end_round(self, trials: Sequence[Trial]) -> PhaseResult | None:
        """Complete a round with these trials; the result of the phase if its limits end it."""
        self.done.extend(trials)
        await self.trials.session.complete_round()
        limits, idle = self.limits, self._count_idle()
        if len(self.done) >= limits.max_trials:
            return await self.end("max_trials", f"{plural(len(self.done), 'trial')} of at most {limits.max_trials}")
        if limits.patience is not None and idle >= limits.patience:
            return await self.end("patience", f"no candidate was accepted in the last {plural(idle, 'trial')}")
        return None

    async def end(self, ended: PhaseEnd, reason: str) -> PhaseResult:
        """Record the end of the phase."""
        assert self.first is not None, "a phase begins with its first round"
        last, accepted = self.trials.accepted.figures, [each for each in self.done if each.is_accepted]
        changed = [surface_id for each in accepted for surface_id in each.changed]
        result = PhaseResult(
            cycle=self.cycle,
            phase=self.kind,
            study_id=self.study_id,
            attempts=len(self.done),
            accepted=len(accepted),
            gain=round(self.first.mean - last.mean, 12) + 0.0,
            ended=ended,
            reason=reason,
            first=self.first,
            last=last,
            axes={surface_id: changed.count(surface_id) for surface_id in sorted(set(changed))},
        )
        return (await self.trials.session.note(PhaseEnded(phase=result))).phase

    def _count_idle(self) -> int:
        """The trials since the last accepted one, without those of the startup."""
        accepted = [number for number, each in enumerate(self.done, start=1) if each.is_accepted]
        return max(0, len(self.done) - max([self.limits.startup, *accepted]))
