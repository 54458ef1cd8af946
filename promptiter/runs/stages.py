"""What each stage of a run took, to be held against its forecast.

calls.jsonl has a receipt of every call that was paid, in the order in which they were, and the journal knows how long
that file was when each evaluation began. So a call of the agent belongs to the last evaluation that began before it;
any other call is that of its role.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

from promptiter.engine.till import AGENT_STAGES, STAGES, Stage
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import read_paid_calls_with_offsets
from promptiter.llm.ledger import NOTHING, TOOL, LedgerEntry, Spending
from promptiter.runlog.events import Phase
from promptiter.runs.file_journal import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal


def spent_by_stage(folder: str | os.PathLike[str]) -> dict[Stage, Spending]:
    """What calls of models cost, by stage, in the order of a forecast; stages without a call are left out."""
    path = Path(folder) / CALLS
    starts, phases = _evaluations(Path(folder))
    found: dict[Stage, Spending] = {}
    for start, entry in read_paid_calls_with_offsets(path) if path.exists() else ():
        began = bisect_right(starts, start)
        stage = _stage(entry, phases[began - 1] if began else "start")
        if stage is not None:
            found[stage] = found.get(stage, NOTHING) + entry.spent
    return {stage: found[stage] for stage in STAGES if stage in found}


def _evaluations(folder: Path) -> tuple[list[int], list[Phase]]:
    """Where in calls.jsonl each evaluation began, and its phase."""
    starts: list[int] = []
    phases: list[Phase] = []
    for event in FileJournal(folder / JOURNAL).read():
        if event.type == "evaluation_started":
            starts.append(event.data["measured"]["mark"])
            phases.append(event.phase)
    return starts, phases


AS_STAGE: Mapping[Phase, Stage] = {**{stage: stage for stage in AGENT_STAGES}, "train_again": "validation"}
"""The stage of each phase that runs cases; what a policy wants to see again is part of deciding on a candidate."""


def _stage(entry: LedgerEntry, phase: Phase) -> Stage | None:
    """Where a forecast counts such a call; None if it does not, as that of a tool."""
    if entry.model.startswith(TOOL):
        return None
    return AS_STAGE.get(phase) if entry.role == "agent" else entry.role
