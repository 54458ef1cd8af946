"""Event: a frozen fact about a run, and the envelope that journal, stream and observers carry.

A run is its events: RunResult is `fold(events)`. What differs between equal runs (times, which answers were paid) is
under `measured` in `data`.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from traces.model import Json

SCHEMA_VERSION = 2

Phase: TypeAlias = Literal[
    "start", "baseline", "train", "rerun", "train_again", "validation", "ablation", "final_test", "test", "end"
]

EventType: TypeAlias = Literal[
    "run_started",
    "references",
    "evaluation_started",
    "case",
    "evaluation_finished",
    "held",
    "round_started",
    "losses",
    "backward",
    "gradient_check",
    "aggregation",
    "patches",
    "candidate",
    "audit",
    "decision",
    "work",
    "round_completed",
    "stop",
    "search_cut",
    "ablation",
    "final_test",
    "conclusion",
    "run_completed",
]


class Event(BaseModel):
    """One fact. `seq` counts from 0 without gaps; `round` is 0 before the first round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    seq: int
    run_id: str
    round: int = 0
    phase: Phase = "start"
    type: EventType
    data: dict[str, Json] = Field(default_factory=dict)


class Observer(Protocol):
    """Watches a run. Called with each event in order, once it is in the journal. A failure is reported once."""

    async def observe(self, event: Event) -> None:
        """Handle one event. The run waits for this, so long work belongs in a separate task."""
