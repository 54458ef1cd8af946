"""NumericPhase: numbers and choices, searched by a fresh study while all texts keep their value.

The observations of a study are about one set of texts, so each phase starts a new one, with a seed of its own. In a
joint move these are the accepted texts with a rejected edit, and each candidate is compared with the accepted profile.
Of a joint move that gains, the numbers are tried alone, too: the text is only accepted if it is part of the gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from promptiter.backprop.trial_record import NumericProposal, PhaseKind, PhaseResult, PointsAsked
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.search.descent.axes import Axis
from promptiter.search.descent.phase import OpenPhase, PhaseLimits
from promptiter.search.descent.study import Study, StudySettings
from promptiter.search.descent.trials import Attempt, Trials
from traces import digest
from traces.model import Json

MOST_POINTS = 10_000
"""A space with more points than this counts as infinite."""


class NumericPhase:
    """The numeric phases of one run. A batch of points is one round; `batch_size` is how many a study is asked for.

    A phase converges when the study models its trials and expects less than `convergence` from each new point.
    """

    kind: PhaseKind = "numeric"

    def __init__(
        self,
        trials: Trials,
        axes: Sequence[Axis],
        *,
        settings: StudySettings,
        seed: int,
        limits: PhaseLimits,
        batch_size: int,
        convergence: float,
    ) -> None:
        self._trials = trials
        self._axes = tuple(axes)
        self._settings = settings
        self._seed = seed
        self._limits = limits
        self._batch_size = batch_size
        self._convergence = convergence
        self._phases = 0

    async def run(self, cycle: int, *, text: Attempt | None = None) -> PhaseResult | None:
        """Run a phase. With a `text` that was rejected, every point is tried together with it: a joint move."""
        self._phases += 1
        name = f"numeric-phase-{self._phases}"
        study = Study(name, self._axes, seed=self._seed + self._phases, settings=self._settings)
        phase = OpenPhase(self._trials, self.kind, cycle, self._limits, study_id=name)
        seen: set[str] = set()
        while await phase.begin_round():
            points = await self._ask(study, min(self._batch_size, self._limits.max_trials - len(phase.done)))
            parent = self._trials.accepted.profile
            attempts = [self._build_attempt(point, text) for point in points]
            found = await self._trials.run(attempts, phase.list_places(len(points)))
            study.tell([self._trials.find_loss(each.patches, parent) for each in attempts])
            if (result := await phase.end_round(found)) is not None:
                return result
            seen |= {digest(dict(point.params)) for point in points}
            if len(seen) >= self._count_points():
                return await phase.end("exhausted", f"all {len(seen)} points were tried")
            if (expected := self._find_expected(points)) is not None and expected < self._convergence:
                reason = f"no point is expected to gain {self._convergence:g} or more"
                return await phase.end("converged", reason)
        return None

    async def _ask(self, study: Study, count: int) -> tuple[NumericProposal, ...]:
        asked = PointsAsked(points=study.ask(count))
        request: list[Json] = [study.name, asked.points[0].number, count]
        recorded = (await self._trials.session.note(asked, request=request)).points
        study.adopt(recorded)
        return recorded

    def _build_attempt(self, point: NumericProposal, text: Attempt | None) -> Attempt:
        """The values of a point that differ from the accepted profile, and the text until it is accepted."""
        snapshot, profile = self._trials.session.snapshot, self._trials.accepted.profile
        reason = f"point {point.number + 1} of {point.study_id}"
        values = [SurfacePatch(surface_id=name, value=value, reason=reason) for name, value in point.params.items()]
        texts = () if text is None else text.patches.patches
        numbers, others = (
            tuple(each for each in patches if profile.value(each.surface_id, snapshot) != each.value)
            for patches in (values, texts)
        )
        alone = Attempt(
            surfaces=tuple(each.surface_id for each in self._axes), patches=PatchSet(numbers), numeric=point
        )
        if text is None or not others:
            return alone
        return Attempt(
            surfaces=(*text.surfaces, *alone.surfaces),
            patches=PatchSet((*others, *numbers)),
            numeric=point,
            textual=text.textual,
            alternative=alone,
        )

    def _find_expected(self, points: Sequence[NumericProposal]) -> float | None:
        """The most that one of these points may gain, once the study models its trials."""
        expected = [each.expected_improvement for each in points]
        return None if None in expected else max(each for each in expected if each is not None)

    def _count_points(self) -> float:
        """The number of points of the space."""
        sizes = [
            len(axis.choices) if axis.kind == "choice" else axis.maximum - axis.minimum + 1
            for axis in self._axes
            if axis.kind != "number"
        ]
        count = math.prod(sizes) if len(sizes) == len(self._axes) else math.inf
        return count if count <= MOST_POINTS else math.inf
