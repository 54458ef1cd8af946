"""OptunaSearch and RandomSearch: one study over all numbers and choices, from the start of a run to its end.

They are what coordinate descent is compared with, and enough for agents whose texts should stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count
from promptiter.runlog.results import RunShape
from promptiter.search.descent.axes import choose_axes, describe_no_targets, find_axes
from promptiter.search.descent.numeric_phase import NumericPhase
from promptiter.search.descent.phase import PhaseLimits
from promptiter.search.descent.study import Sampler, StudySettings, find_optuna_problems
from promptiter.search.descent.trials import Trials
from promptiter.structure import StructureSnapshot


@dataclass(kw_only=True, eq=False)
class OptunaSearch:
    """A search of numbers and choices by Optuna's TPE sampler. It ends after `trials`; a stop policy may end it before.

    The study proposes `batch_size` points at a time: the first `startup_trials` at random, then the best of
    `ei_candidates`. The default `seed` is that of the run.
    """

    trials: int = 100
    batch_size: int = 1
    startup_trials: int = 10
    ei_candidates: int = 24
    multivariate: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "batch_size", "ei_candidates"):
            check_count(getattr(self, name), name)
        check_count(self.startup_trials, "startup_trials", least=0)

    @property
    def _sampler(self) -> Sampler:
        return "tpe"

    async def search(self, session: Session) -> None:
        axes = find_axes(session.snapshot, session.targets)
        seed = session.seed if self.seed is None else self.seed
        phase = NumericPhase(
            Trials(session),
            axes,
            settings=StudySettings(
                sampler=self._sampler,
                startup_trials=self.startup_trials,
                ei_candidates=self.ei_candidates,
                multivariate=self.multivariate,
            ),
            seed=seed - 1,  # the first study of a phase adds 1: here the seed is that of the only one
            limits=PhaseLimits(max_trials=self.trials, patience=None),
            batch_size=self.batch_size,
            convergence=0.0,
        )
        await phase.run(1)

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        return SearchOutline(batch=self.batch_size, max_rounds=math.ceil(self.trials / self.batch_size))

    def choose_targets(self, snapshot: StructureSnapshot) -> tuple[str, ...]:
        """All numbers with bounds, switches and choices."""
        return choose_axes(snapshot)

    def find_target_problems(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> list[str]:
        """Say that no target is a number or a choice, or that a number has no bounds."""
        try:
            axes = find_axes(snapshot, targets)
        except SetupError as error:
            return [str(error)]
        return [] if axes else [describe_no_targets(snapshot, ["numeric"])]

    def find_kept_targets(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> set[str]:
        """The targets that are not numbers or choices, or have a single value."""
        return set(targets).difference(choose_axes(snapshot))

    def find_setup_problems(self, gateway: Gateway) -> list[str]:  # noqa: ARG002
        """One line if optuna is not installed."""
        return find_optuna_problems()


@dataclass(kw_only=True, eq=False)
class RandomSearch(OptunaSearch):
    """The same with random points, the baseline of every search of numbers."""

    @property
    def _sampler(self) -> Sampler:
        return "random"
