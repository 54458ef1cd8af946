"""An observer that stops its run."""

from __future__ import annotations

from pathlib import Path

from promptiter.runlog.events import Event
from promptiter.runs.folder_store import STOP


class StopAt:
    """Asks for a stop at an event, with a stop file."""

    def __init__(self, seq: int, runs: Path) -> None:
        self.seq = seq
        self.runs = runs

    async def observe(self, event: Event) -> None:
        if event.seq == self.seq:
            (self.runs / event.run_id / STOP).touch()
