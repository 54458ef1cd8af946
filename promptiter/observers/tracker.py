"""Tracker: an observer that sends a run to an experiment tracker, from a thread of its own.

The run never waits for a tracker, except for at most `timeout_s` at its end. A tracker that is down, hangs or fails
costs one warning. Nothing is lost while it is slow: what does not fit into the queue is read from the journal later.

Resume is simple because points are always made from the first event on. A tracker either stores a point under a key
that makes the second one overwrite the first, or knows the last one that it stored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar, Protocol

from promptiter.concurrency import call_in_thread
from promptiter.errors import SetupError, TrackerError
from promptiter.observers.points import Point, PointReader
from promptiter.runlog.events import Event
from promptiter.runlog.observation import ObservedRun
from promptiter.wording import plural
from traces.text import one_line

MAX_WAITING = 1000
"""Maximum number of events that wait in memory for a tracker."""

LONGEST_CAUSE = 300
"""Maximum number of characters of a library's error message."""

FILES = ("report.html", "report.md", "trajectory.csv", "run.json", "profiles/*.json", "surfaces/*.md")
"""Files of a run's folder that a tracker may store, as far as they exist."""

REPORT = "report.html"


class TrackedRun(Protocol):
    """A run in the store of a tracker. Its methods are called in one thread, and may block and fail."""

    def write(self, point: Point) -> None:
        """Store a point. After a resume, those of earlier processes come again first."""

    def close(self, end: Point | None) -> None:
        """Store how the run ended and its files, and flush. None: the process was stopped before the run ended."""


class Tracker(ABC):
    """Sends runs to one kind of tracker. Subclasses say how a run is opened there."""

    name: ClassVar[str]
    package: ClassVar[str] = ""
    """The module to import. The extra that installs it has the name of the tracker."""
    noisy_loggers: ClassVar[tuple[str, ...]] = ()
    """Loggers that report each failed attempt; in the tracker's thread they are silent, because the error says it."""

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        self.timeout_s = timeout_s
        self._feeds: dict[str, _Feed] = {}
        if self.package and not _is_installed(self.package):
            raise SetupError(f"{self.name} is not installed; run: pip install 'promptiter[{self.name}]'")

    @abstractmethod
    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        """Find the run in the tracker, or create it. `start` is its first point. Called in the tracker's thread."""

    async def begin_run(self, run: ObservedRun) -> None:
        """Start the thread of a run."""
        self._feeds[run.run_id] = _Feed(self, run)

    async def observe(self, event: Event) -> None:
        """Pass an event to the thread. Raises TrackerError once the thread has failed."""
        feed = self._feeds.get(event.run_id)
        if feed is None:
            raise TrackerError(f"{self.name} does not know the run {event.run_id!r}; call begin_run first")
        feed.put(event)

    async def end_run(self, run: ObservedRun) -> None:
        """Wait until everything is sent, for `timeout_s` at most."""
        feed = self._feeds.pop(run.run_id, None)
        if feed is not None:
            await feed.close(self.timeout_s)


class _Feed:
    """The events of one run on their way to a tracker."""

    def __init__(self, tracker: Tracker, run: ObservedRun) -> None:
        self._tracker = tracker
        self._run = run
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._written = 0
        self._last = -1
        self._is_reported = False
        self._work = asyncio.ensure_future(call_in_thread(self._work_in_thread))

    def put(self, event: Event) -> None:
        self._last = event.seq
        self._raise_failure()
        if self._queue.qsize() < MAX_WAITING:  # otherwise it is read from the journal
            self._queue.put(event)

    async def close(self, timeout_s: float) -> None:
        self._queue.put(None)
        await asyncio.wait([self._work], timeout=timeout_s)
        if not self._work.done():
            self._work.cancel()
            left = plural(max(0, self._last + 1 - self._written), "event")
            raise TrackerError(
                f"{self._tracker.name} did not finish within {timeout_s:g} s; {left} may be missing there, "
                "and `promptiter resume` sends them again"
            )
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error of the thread, the first time."""
        if self._is_reported or not self._work.done() or (error := self._work.exception()) is None:
            return
        self._is_reported = True
        cause = one_line(str(error))[:LONGEST_CAUSE]
        kind = "" if isinstance(error, TrackerError) else f"{type(error).__name__}: "
        raise TrackerError(f"{self._tracker.name} failed, the run continues without it: {kind}{cause}") from error

    def _work_in_thread(self) -> None:
        try:
            with _silence(self._tracker.noisy_loggers):
                self._send()
        except SystemExit as error:  # it must not end the event loop that waits for it
            raise TrackerError(f"it tried to end the process: {error!r}") from error

    def _send(self) -> None:
        reader, tracked, end = PointReader(), None, None
        for event in self._read_events():
            point = reader.read(event)
            if point is not None:
                tracked = tracked or self._tracker.open_run(point, self._run.folder)
                end = point if point.type == "run_completed" else None
                if end is None:
                    tracked.write(point)
            self._written = event.seq + 1
        if tracked is not None:
            tracked.close(end)

    def _read_events(self) -> Iterator[Event]:
        """Yield all events of the run: those of earlier processes, and those that did not fit, from the journal."""
        expected = 0
        while (event := self._queue.get()) is not None:
            if event.seq > expected:
                yield from islice(self._run.events.read(expected), event.seq - expected)
            yield event
            expected = event.seq + 1
        yield from self._run.events.read(expected)


@contextmanager
def _silence(loggers: Iterable[str]) -> Iterator[None]:
    """Drop what these loggers report from this thread."""
    thread = threading.get_ident()

    def is_from_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    found = [logging.getLogger(name) for name in loggers]
    for each in found:
        each.addFilter(is_from_another_thread)
    try:
        yield
    finally:
        for each in found:
            each.removeFilter(is_from_another_thread)


def list_files(folder: Path | None) -> list[Path]:
    """The files of a run that trackers store, as far as they exist."""
    return [] if folder is None else sorted(path for each in FILES for path in folder.glob(each) if path.is_file())


def find_report(folder: Path | None) -> str:
    """The path of the report of a run, which may be written later; empty if the run has no folder."""
    return "" if folder is None else str((folder / REPORT).absolute())


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # its parent is missing, or it is marked as missing in sys.modules
        return False
