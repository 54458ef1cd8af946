"""StageFailures: a stage that fails on everything ends the run, unless stages have worked before."""

from __future__ import annotations

from promptiter.engine.session import Session
from promptiter.errors import StageError


class StageFailures:
    """The failures of the stages of one run. `has_worked` says whether a stage ever produced a signal."""

    def __init__(self, session: Session) -> None:
        self.has_worked = False
        self._session = session

    def handle(self, problem: str | None) -> None:
        """End the run if no stage ever worked; otherwise only report the problem, so that earlier results are kept."""
        if problem is None:
            return
        if not self.has_worked:
            raise StageError(problem)
        self._session.report(problem)
