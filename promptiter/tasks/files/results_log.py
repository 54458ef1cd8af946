"""ResultsLog: an observer that writes results.jsonl, and the files of each candidate, beside the task.

Both are written from the events of the run after each round, so a run that was killed and resumed writes the same
rows. Rows of other runs in the file are kept. These two are the only places outside a private copy that a run writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from promptiter.concurrency import run_in_thread
from promptiter.runlog.events import Event
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.payloads import EvaluationFinished, RoundCompleted
from promptiter.runlog.run_state import RunState
from promptiter.tasks.files.results_rows import LoggedCandidate, log_baseline, log_round
from promptiter.tasks.files.task import TaskConstraint
from traces.files import write_file
from traces.model import Json


class ResultsLog:
    """Writes the rows of one run after each round. Without a `candidates` folder, it writes no files of candidates."""

    def __init__(
        self,
        file: Path | None,
        candidates: Path | None = None,
        *,
        primary: str,
        constraints: Sequence[TaskConstraint] = (),
    ) -> None:
        self.file = file
        self.candidates = candidates
        self.primary = primary
        self.constraints = tuple(constraints)
        self._run: ObservedRun | None = None
        self._start()

    async def begin_run(self, run: ObservedRun) -> None:
        """Write what is known of a run that is resumed."""
        self._run = run
        self._start()
        await run_in_thread(self._read_on)

    async def observe(self, event: Event) -> None:
        if event.type == RoundCompleted.event_type or (
            event.type == EvaluationFinished.event_type and event.phase == "baseline"
        ):
            await run_in_thread(self._read_on)

    async def end_run(self, run: ObservedRun) -> None:  # noqa: ARG002 - protocol
        await run_in_thread(self._read_on)

    def _start(self) -> None:
        self._state = RunState()
        self._rows: list[dict[str, Json]] = []
        self._next = 0

    def _read_on(self) -> None:
        assert self._run is not None, "a run begins before its rows are written"
        count = len(self._rows)
        for event in self._run.events.read(self._next):
            self._next = event.seq + 1
            self._state.take(event)
            if event.type == EvaluationFinished.event_type and event.phase == "baseline":
                found = log_baseline(self._state.run, primary=self.primary, constraints=self.constraints)
                self._add([] if found is None else [found])
            elif event.type == RoundCompleted.event_type and self._state.round is not None:
                first = sum("round" in row for row in self._rows) + 1
                self._add(
                    list(
                        log_round(
                            self._state.round,
                            self._state.run,
                            first=first,
                            primary=self.primary,
                            constraints=self.constraints,
                        )
                    )
                )
        if len(self._rows) > count:
            self._write()

    def _add(self, logged: Sequence[LoggedCandidate]) -> None:
        assert self._run is not None
        for each in logged:
            measured = {**each.row.get("measured", {}), "run": self._run.run_id}
            self._rows.append({**each.row, "measured": measured})
            if self.candidates is not None and each.changes:
                folder = self.candidates / self._run.run_id / f"{each.row['iteration']:04}"
                for change in each.changes:
                    _write(folder / change.path, change.after)
                _write(folder / "change.diff", "".join(change.diff for change in each.changes))

    def _write(self) -> None:
        if self.file is None:
            return
        assert self._run is not None
        others = [row for row in read_rows(self.file) if _find_run(row) != self._run.run_id]
        text = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in [*others, *self._rows])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.file, text)


def find_foreign(file: Path) -> str | None:
    """Why a file must not be used as results.jsonl: what is there is not a log, and would be lost. None if it may."""
    if file.is_symlink():
        return "is a symbolic link, and would be replaced by a file"
    if not file.exists():
        folder = next(each for each in file.parents if each.exists())
        return None if folder.is_dir() else f"is below {str(folder)!r}, which is not a folder"
    if not file.is_file():
        return "is not a file"
    lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    is_log = len(read_rows(file)) >= len(lines) - 1 and (not lines or lines[0].startswith(b"{"))
    return None if is_log else "has lines that are not results, and would be overwritten"


def read_rows(file: Path) -> list[dict[str, Json]]:
    """The rows of a results.jsonl, without lines that are not rows; none if there is no file."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _find_run(row: dict[str, Json]) -> Json:
    measured = row.get("measured")
    return measured.get("run") if isinstance(measured, dict) else None


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, text.encode("utf-8", "replace"))
