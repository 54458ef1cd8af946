"""JsonlObserver: the progress of a run as JSON lines, for scripts: one line per point, in order.

Each line has `seq`, `type`, `round`, `phase` and `elapsed_s`, and what the event says. A resumed run appends to its
file what the file lacks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import orjson

from promptiter.observers.points import Point
from promptiter.observers.tracker import TrackedRun, Tracker, find_report

STANDARD_OUTPUT = "-"


class JsonlObserver(Tracker):
    """Writes JSON lines to a file; `-` is standard output. On a stream, a resumed run starts with its first line."""

    name = "jsonl"

    def __init__(self, *, path: str = STANDARD_OUTPUT, cases: bool = False, timeout_s: float = 30.0) -> None:
        self.path = path
        self.cases = cases
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        if self.path == STANDARD_OUTPUT:
            file = os.fdopen(os.dup(1), "wb")
            return _JsonlRun(file, folder=folder, last=-1, with_cases=self.cases)
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        last = _repair(path, start.run_id) if path.is_file() else -1
        return _JsonlRun(path.open("ab"), folder=folder, last=last, with_cases=self.cases)


class _JsonlRun:
    def __init__(self, file: IO[bytes], *, folder: Path | None, last: int, with_cases: bool) -> None:
        self._file = file
        self._folder = folder
        self._last = last
        self._with_cases = with_cases

    def write(self, point: Point) -> None:
        if point.seq <= self._last or (point.type == "case" and not self._with_cases):
            return
        line: dict[str, object] = {name: getattr(point, name) for name in ("seq", "type", "run_id", "round", "phase")}
        line |= {"elapsed_s": point.elapsed_s, **point.facts, **point.figures}
        if point.scores:
            line["scores"] = {score.metric: score.value for score in point.scores}
        if point.type == "run_started" and self._folder is not None:
            line["folder"] = str(self._folder.absolute())
        if point.type == "run_completed":
            line |= {"profile": point.profile, "report": find_report(self._folder)}
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self, end: Point | None) -> None:
        if end is not None:
            self.write(end)
        self._file.close()


def _repair(path: Path, run_id: str) -> int:
    """Drop a line that a kill tore, and return the last event of this run in the file; -1 if it has none."""
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    found = (orjson.loads(line) for line in whole.splitlines())
    return max((line["seq"] for line in found if line["run_id"] == run_id), default=-1)
