"""ResultDraft: the result of a run that is not over, as far as its events say."""

from __future__ import annotations

from dataclasses import replace

from promptiter.evaluation.result import Evaluation
from promptiter.policies.stop_decision import StopDecision
from promptiter.runlog.case_uses import CaseUseHistory
from promptiter.runlog.payloads import RunCompleted, RunStarted
from promptiter.runlog.results import RunResult, SearchNote
from promptiter.structure import StructureSnapshot


class ResultDraft:
    """The result so far, without its rounds. It begins with the first event, or with what was known before a round."""

    def __init__(self, run: RunResult | None = None) -> None:
        self.evaluations: list[Evaluation] = []
        self.notes: list[SearchNote] = []
        self._run = run

    @property
    def current(self) -> RunResult:
        """The result so far, without its evaluations and notes."""
        assert self._run is not None, "a run begins with run_started"
        return self._run

    def build(self) -> RunResult:
        """The result so far, without its rounds."""
        evaluations = tuple(sorted(self.evaluations, key=lambda each: each.number or 0))
        return replace(self.current, evaluations=evaluations, notes=tuple(self.notes))

    def reopen(self, stop: StopDecision | None) -> None:
        """Continue a run that had ended."""
        if self._run is not None and self._run.status != "running":
            self.change(status="running", verdict="no_evidence", stop=stop, error=None, is_final=False)

    def start(self, started: RunStarted, run_id: str) -> None:
        """Begin with what the run is asked for."""
        self._run = RunResult(
            status="running",
            verdict="no_evidence",
            structure=StructureSnapshot.from_json(started.structure),
            targets=started.targets,
            objective=started.objective,
            shape=started.shape,
            goal=started.goal,
            initial_profile=started.profile,
            accepted_profile=started.profile,
            working_profile=started.profile,
        )
        measured = replace(self.current.measured, run_id=run_id, started_at=started.measured.started_at)
        self.change(measured=measured)

    def complete(self, completed: RunCompleted, run_id: str) -> None:
        """End the run. What was known of its cases and its start stays."""
        known = self.current.measured
        measured = replace(
            completed.measured, run_id=run_id, started_at=known.started_at, case_history=known.case_history
        )
        self.change(
            status=completed.status,
            verdict=completed.verdict,
            error=completed.error,
            is_final=completed.is_final,
            stop=completed.stop or self.current.stop,
            measured=measured,
        )

    def remember(self, history: CaseUseHistory) -> None:
        """Keep how often the cases were used before."""
        self.change(measured=replace(self.current.measured, case_history=history))

    def change(self, **fields: object) -> None:
        """Change fields of the result."""
        self._run = replace(self.current, **fields)  # type: ignore[arg-type]
