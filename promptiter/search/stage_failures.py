"""StageFailures: a stage that fails on everything ends the run, unless it has worked before."""

from __future__ import annotations

from typing import Literal, TypeAlias

from promptiter.engine.session import Session
from promptiter.errors import StageError

Stage: TypeAlias = Literal["backwarder", "aggregator", "optimizer"]


class StageFailures:
    """The failures of the stages of one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._working: set[Stage] = set()

    def mark_working(self, stage: Stage) -> None:
        """Note that a stage returned something that could be used."""
        self._working.add(stage)

    def handle(self, stage: Stage, problem: str | None) -> None:
        """End the run if the stage never worked; otherwise report the problem, so that earlier results are kept."""
        if problem is None:
            return
        if stage not in self._working:
            raise StageError(problem)
        self._session.report(problem)
