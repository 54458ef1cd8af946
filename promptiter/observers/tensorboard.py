"""TensorboardObserver: the figures of a run over its rounds, its prompts and its verdict, as TensorBoard's event files.

A resumed run writes its events again, into one new file in place of the old ones. Its first event tells a TensorBoard
that is open to forget the points that it has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptiter.observers.points import Fact, Point, to_text
from promptiter.observers.tracker import TrackedRun, Tracker, find_report
from traces.model import Json

WITHOUT_COURSE = ("final_test", "conclusion", "run_completed")
"""Types of points whose figures have a single value: they are text, because a chart of one point shows nothing."""


class TensorboardObserver(Tracker):
    """Writes event files into `tensorboard` in the folder of the run, or into `folder`/RUN_ID."""

    name = "tensorboard"
    package = "tensorboardX"

    def __init__(self, *, folder: str | None = None, timeout_s: float = 30.0) -> None:
        self.folder = folder
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        if self.folder is None and folder is not None:
            return _TensorboardRun(folder / "tensorboard", folder)
        return _TensorboardRun(Path(self.folder or "tensorboard") / start.run_id, folder)


class _TensorboardRun:
    def __init__(self, events: Path, folder: Path | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        events.mkdir(parents=True, exist_ok=True)
        for earlier in events.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._folder = folder
        self._new_event = Event
        self._values: dict[str, Json] = {}
        self._writer = EventsWriter(str(events / "events"))  # unlike SummaryWriter, it has no process or thread
        self._writer.write_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))

    def write(self, point: Point) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        if point.type not in WITHOUT_COURSE:
            for name, value in point.figures.items():
                self._add(Summary(value=[Summary.Value(tag=name, simple_value=value)]), point)
        match point.type:
            case "run_started":
                where = {} if self._folder is None else {"report": find_report(self._folder)}
                self._add_text("run", _list({**point.facts, **where}), point)
            case "round_completed":
                self._add_text("decisions", _list(point.facts), point)
            case "final_test" | "conclusion":
                self._add_text(point.type, _list({**point.facts, **point.figures}), point)
        if point.profile is not None:
            self._add_profile(point)
        self._writer.flush()

    def close(self, end: Point | None) -> None:
        if end is not None:
            self._add_text("run_completed", _list({**end.facts, **end.figures}), end)
        self._writer.close()

    def _add_profile(self, point: Point) -> None:
        for surface_id, value in (point.profile or {}).items():
            if surface_id not in self._values or self._values[surface_id] != value:
                self._add_text(f"prompts/{surface_id}", _quote(value), point)
                self._values[surface_id] = value

    def _add_text(self, name: str, text: str, point: Point) -> None:
        from tensorboardX.summary import text as build_text

        summary = build_text(name, text)
        summary.value[0].tag = name  # without the suffix that it adds
        self._add(summary, point)

    def _add(self, summary: Any, point: Point) -> None:
        self._writer.write_event(self._new_event(summary=summary, step=point.round, wall_time=point.at))


def _list(facts: Mapping[str, Fact]) -> str:
    """A list in Markdown, which TensorBoard renders."""
    return "\n".join(f"- **{name}**: {' '.join(str(value).split())}" for name, value in facts.items())


def _quote(value: Json) -> str:
    """A text as it is, as Markdown code."""
    return "\n".join(f"    {line}" for line in to_text(value).splitlines())
