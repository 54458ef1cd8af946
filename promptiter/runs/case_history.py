"""CaseHistory: every run of one case in the journal, in order, with scores and traces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from promptiter.errors import SetupError, nearest
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.runlog.events import Payload, Phase
from promptiter.runlog.payloads import CandidateDecided, CaseFinished, EvaluationFinished, EvaluationStarted
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.header import read_header
from traces import ExecutionTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One run of the case: its phase, its profile and the resulting row.

    `profile` is `baseline`, `accepted` (so far), `candidate`, `best` (in the final test), or for an ablation
    `without ...` and the surfaces that it left out.
    """

    round: int
    phase: Phase
    profile: str
    row: CaseRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHistory:
    """A case of a run, and all its runs: evaluations in the order of the journal, and the repeats of each by number.

    Cases run concurrently, so the order in which they finish means nothing. Rows that were reused are left out.
    """

    case_id: str
    runs: tuple[CaseRun, ...]


def read_case(folder: str | os.PathLike[str], case_id: str) -> CaseHistory:
    """Read the history of a case; SetupError if the run has no such case."""
    read_header(folder)
    runs: list[tuple[int, CaseRun]] = []
    known: set[str] = set()
    names = _ProfileNames()
    for event in EventFile(Path(folder) / JOURNAL).read():
        payload = event.payload
        names.take(payload)
        if isinstance(payload, CaseFinished):
            row = payload.row
            known.add(row.case_id)
            if row.case_id == case_id and row.origin != "kept":
                name = names.get(payload.evaluation, event.phase)
                runs.append((payload.evaluation, CaseRun(round=event.round, phase=event.phase, profile=name, row=row)))
    if case_id not in known:
        raise SetupError(f"the run {os.fspath(folder)!r} has no case {case_id!r}{nearest(case_id, sorted(known))}")
    runs.sort(key=lambda each: (each[0], each[1].row.repeat))
    return CaseHistory(case_id=case_id, runs=tuple(run for _, run in runs))


class _ProfileNames:
    """What the profiles of evaluations are called, by the events so far."""

    def __init__(self) -> None:
        self._evaluations: dict[int, EvaluationStarted] = {}
        self._baseline = self._accepted = ""

    def take(self, payload: Payload) -> None:
        match payload:
            case EvaluationStarted(evaluation=number, profile_digest=digest):
                self._evaluations[number] = payload
                self._baseline = self._baseline or digest
            case EvaluationFinished(evaluation=number):
                self._evaluations.pop(number, None)
            case CandidateDecided(candidate=str(candidate), decision=decision) if decision.accepted:
                self._accepted = candidate
            case _:
                pass

    def get(self, evaluation: int, phase: Phase) -> str:
        started = self._evaluations[evaluation]
        if started.profile_digest == self._baseline:
            return "baseline"
        if started.without:
            return f"without {', '.join(started.without)}"
        if phase in ("final_test", "test"):
            return "best"
        return "accepted" if started.profile_digest == self._accepted else "candidate"


def read_traces(folder: str | os.PathLike[str], run: CaseRun) -> list[ExecutionTrace]:
    """Read the traces of one run of a case, one per turn, except those that were not kept."""
    traces = TraceFile(Path(folder) / TRACES)
    return [traces.get(name) for name in run.row.trace_digests if name in traces]
