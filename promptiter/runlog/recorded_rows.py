"""RecordedRows: the rows of evaluations, from their start in the journal to their end."""

from __future__ import annotations

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.runlog.payloads import EvaluationFinished, EvaluationStarted


class RecordedRows:
    """The evaluations in progress, by number, with their rows so far."""

    def __init__(self) -> None:
        self._started: dict[int, EvaluationStarted] = {}
        self._rows: dict[int, list[CaseRow]] = {}

    def start(self, started: EvaluationStarted) -> None:
        self._started[started.evaluation], self._rows[started.evaluation] = started, []

    def add(self, number: int, row: CaseRow) -> None:
        self._rows.setdefault(number, []).append(row)

    def finish(self, finished: EvaluationFinished, phase: str) -> Evaluation | None:
        """Return the evaluation with its rows; None if its start is not known."""
        started = self._started.pop(finished.evaluation, None)
        rows = self._rows.pop(finished.evaluation, [])
        if started is None:
            return None
        return Evaluation(
            eval_set_id=started.eval_set_id,
            profile_digest=started.profile_digest,
            rows=tuple(rows),
            thresholds=finished.thresholds,
            weights=finished.weights,
            penalties=finished.penalties,
            max_errored_fraction=finished.max_errored_fraction,
            number=finished.evaluation,
            phase=phase,
        )

    def clear(self) -> None:
        """Forget the evaluations that did not finish."""
        self._started, self._rows = {}, {}
