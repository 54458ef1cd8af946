"""What each stage of a run took, to compare with its forecast.

calls.jsonl has a receipt for every paid call, in the order of payment, and the journal records how long that file was
when each evaluation began. So a call of the agent belongs to the last evaluation that began before it; any other call
belongs to the stage named after its role.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import read_paid_calls
from promptiter.llm.ledger import NOTHING, TOOL, LedgerEntry, Spending
from promptiter.runlog.events import Event, Phase
from promptiter.runlog.payloads import EvaluationStarted
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile

AgentStage: TypeAlias = Literal["baseline", "train", "rerun", "validation", "ablation", "final_test", "test_set"]
ModelStage: TypeAlias = Literal[
    "teacher", "backwarder", "corrector", "aggregator", "optimizer", "critic", "applier", "judge", "user"
]
Stage: TypeAlias = AgentStage | ModelStage

AGENT_STAGES: tuple[AgentStage, ...] = get_args(AgentStage)
STAGES: tuple[Stage, ...] = (
    *("teacher", "baseline", "train", "backwarder", "corrector", "aggregator", "optimizer", "critic", "applier"),
    *("rerun", "validation", "ablation", "final_test", "test_set", "judge", "user"),
)
"""All stages in the order in which a run reaches them."""

STAGE_OF_PHASE: Mapping[Phase, Stage] = {
    "train_again": "validation",  # more evidence for a candidate
    "minibatch": "train",  # of GEPA: the parent, its child, and the child on validation
    "child_minibatch": "rerun",
    "screening": "rerun",  # candidates of few-shot on train cases
    "frontier": "validation",
    "candidates": "train",  # of edits: what the next ones are made from
    "repeat": "train",  # of failed cases, to confirm their blame
    "trial": "train",  # a candidate of coordinate descent
    "teacher": "teacher",  # the agent with another model, which makes examples
    "test": "test_set",
    **{stage: stage for stage in AGENT_STAGES if stage != "test_set"},
}


def spent_by_stage(folder: str | os.PathLike[str]) -> dict[Stage, Spending]:
    """What model calls cost, by stage; stages without a call are left out."""
    found: dict[Stage, Spending] = {}
    for stage, entry in read_stage_calls(folder, EventFile(Path(folder) / JOURNAL).read()):
        found[stage] = found.get(stage, NOTHING) + entry.spent
    return {stage: found[stage] for stage in STAGES if stage in found}


def read_stage_calls(folder: str | os.PathLike[str], events: Iterable[Event]) -> Iterator[tuple[Stage, LedgerEntry]]:
    """The paid model calls of a run with their stage; calls of tools are left out. Reads the file as a stream."""
    started = [(event.phase, event.payload) for event in events if event.type == EvaluationStarted.event_type]
    marks = [payload.measured.mark for _, payload in started if isinstance(payload, EvaluationStarted)]
    path = Path(folder) / CALLS
    for place, entry in read_paid_calls(path) if path.exists() else ():
        began = bisect_right(marks, place)
        stage: Stage | None = None
        if entry.role != "agent":
            stage = entry.role
        elif began:
            stage = STAGE_OF_PHASE.get(started[began - 1][0])
        if stage is not None and not entry.model.startswith(TOOL):
            yield stage, entry
