"""ExampleStudy: an Optuna study that selects few-shot examples: which case is shown in each place of each node.

It is a baseline for the other strategies: it knows nothing of the cases but how well candidates with them did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptiter.backprop.example_pool import Exchange
from promptiter.backprop.trial_record import NumericProposal
from promptiter.engine.session import Session
from promptiter.runlog.events import Payload, event_type
from promptiter.search.descent.axes import Axis
from promptiter.search.descent.study import Study, StudySettings

NO_EXAMPLE = ""
"""The choice that leaves a place empty."""


@event_type("examples_asked")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesAsked(Payload):
    """The sets that a study proposed. A resumed run uses these, whatever the sampler proposes now."""

    points: tuple[NumericProposal, ...]


class ExampleStudy:
    """A study over the exchanges of some surfaces, by surface. A set has up to `most` examples of each."""

    def __init__(
        self, name: str, pools: Mapping[str, Sequence[Exchange]], *, most: int, seed: int, startup_trials: int
    ) -> None:
        self._pools = {surface_id: {each.case_id: each for each in pool} for surface_id, pool in pools.items() if pool}
        self._most = most
        axes = [
            Axis(surface_id=_name_place(surface_id, place), kind="choice", choices=(NO_EXAMPLE, *pool))
            for surface_id, pool in self._pools.items()
            for place in range(most)
        ]
        settings = StudySettings(startup_trials=startup_trials)
        self._study = Study(name, axes, seed=seed, settings=settings) if axes else None

    async def ask(self, session: Session, count: int) -> list[dict[str, tuple[Exchange, ...]]]:
        """Propose sets of examples, by surface; none if there are no exchanges."""
        if self._study is None:
            return []
        asked = ExamplesAsked(points=self._study.ask(count))
        recorded = await session.note(asked, request=[self._study.name, asked.points[0].number, count])
        self._study.adopt(recorded.points)
        return [self._read(each) for each in recorded.points]

    def tell(self, losses: Sequence[float | None]) -> None:
        """Report the losses of the last sets, in their order; None if one was not run."""
        if self._study is not None:
            self._study.tell(losses)

    def _read(self, point: NumericProposal) -> dict[str, tuple[Exchange, ...]]:
        """The examples of each surface at a point; a case that is chosen twice is shown once."""
        return {surface_id: self._read_places(surface_id, point) for surface_id in self._pools}

    def _read_places(self, surface_id: str, point: NumericProposal) -> tuple[Exchange, ...]:
        chosen = [str(point.params[_name_place(surface_id, place)]) for place in range(self._most)]
        pool = self._pools[surface_id]
        return tuple(pool[case_id] for case_id in dict.fromkeys(chosen) if case_id != NO_EXAMPLE)


class ExampleStudies:
    """Starts the studies of a run, each with a seed of its own. The first half of the trials are random."""

    def __init__(self, seed: int, *, startup_trials: int) -> None:
        self._seed = seed
        self._startup_trials = startup_trials
        self._count = 0

    def __call__(self, pools: Mapping[str, Sequence[Exchange]], most: int) -> ExampleStudy:
        self._count += 1
        name, seed = f"examples-{self._count}", self._seed + self._count
        return ExampleStudy(name, pools, most=most, seed=seed, startup_trials=self._startup_trials)


def _name_place(surface_id: str, place: int) -> str:
    return f"{surface_id}[{place}]"
