"""The thread between a run and a tracker, with trackers that are scripted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.observers import tracker as tracker_module
from promptiter.observers.points import Point
from promptiter.observers.tracker import TrackedRun, Tracker
from promptiter.runlog.results import RunResult
from promptiter.testing.store_hooks import Killed
from tests.worlds import desk
from tests.worlds.starter import SmallShop, kill_runs_at

pytestmark = pytest.mark.slow


class ListTracker(Tracker):
    """Keeps the points of its runs, and does something first for each."""

    name = "list"

    def __init__(self, before: Callable[[Point], object] = lambda _: None, *, timeout_s: float = 30.0) -> None:
        self.before = before
        self.points: list[Point] = []
        self.opened = 0
        self.end: Point | None = None
        self.files: list[str] = []
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        assert start.type == "run_started"
        self.opened += 1
        self.folder = folder
        return self

    def write(self, point: Point) -> None:
        self.before(point)
        self.points.append(point)

    def close(self, end: Point | None) -> None:
        self.end = end
        self.files = [str(each.relative_to(self.folder or Path())) for each in tracker_module.list_files(self.folder)]


def run_desk(tracker: Tracker) -> RunResult:
    """A small run that has every kind of point."""
    return desk.engine(desk.DRAFT).run_sync(desk.request(), observers=[tracker])


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_tracker_gets_all_points_and_the_end_once_the_files_are_written(tmp_path: Path) -> None:
    tracker = ListTracker()
    result = SmallShop().run(tmp_path, observers=(tracker,))
    assert [point.seq for point in tracker.points] == sorted({point.seq for point in tracker.points})
    assert tracker.points[0].type == "run_started"
    assert tracker.end is not None
    assert tracker.end.facts["verdict"] == result.verdict
    assert "profiles/best.json" in tracker.files


def test_a_tracker_works_without_a_folder() -> None:
    tracker = ListTracker()
    result = run_desk(tracker)
    assert (tracker.folder, tracker.files) == (None, [])
    assert tracker.end is not None
    assert tracker.end.figures["result/best"] == result.accepted_score


def test_one_tracker_can_watch_several_runs() -> None:
    tracker = ListTracker()
    for _ in range(2):
        run_desk(tracker)
    assert tracker.opened == 2


def test_a_resumed_run_starts_with_its_first_point(tmp_path: Path) -> None:
    whole, resumed = ListTracker(), ListTracker()
    SmallShop().run(tmp_path / "whole", observers=(whole,))
    with kill_runs_at(40), pytest.raises(Killed):
        SmallShop().run(tmp_path / "killed", observers=(ListTracker(),))
    SmallShop().run(tmp_path / "killed", observers=(resumed,))
    assert [point.figures for point in resumed.points] == [point.figures for point in whole.points]
    assert [point.seq for point in resumed.points] == [point.seq for point in whole.points]


def test_a_finished_run_can_be_sent_later(tmp_path: Path) -> None:
    SmallShop().run(tmp_path)
    tracker = ListTracker()
    SmallShop().run(tmp_path, observers=(tracker,))
    assert tracker.points[0].type == "run_started"
    assert tracker.end is not None


def test_what_does_not_fit_into_the_queue_is_read_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "MAX_WAITING", 2)
    fast, slow = ListTracker(), ListTracker(lambda _: threading.Event().wait(0.005))
    SmallShop().run(tmp_path, observers=(fast, slow))
    assert [point.seq for point in slow.points] == [point.seq for point in fast.points]
    assert slow.end == fast.end


def fail_at(kind: str, error: BaseException) -> Callable[[Point], object]:
    def fail(point: Point) -> None:
        if point.type == kind:
            raise error

    return fail


@pytest.mark.parametrize("kind", ["run_started", "round_completed", "conclusion"])
def test_a_tracker_that_fails_costs_one_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tracker = ListTracker(fail_at(kind, ConnectionError("no route\nto host")))
    result = run_desk(tracker)
    assert result.status == "succeeded"
    [warning] = list_warnings(caplog)
    assert "list failed, the run continues without it: ConnectionError: no route to host" in warning
    assert tracker.end is None


def test_a_tracker_that_ends_its_process_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    result = run_desk(ListTracker(fail_at("run_started", SystemExit(3))))
    assert result.status == "succeeded"
    [warning] = list_warnings(caplog)
    assert "it tried to end the process" in warning


def test_a_tracker_that_hangs_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    hanging = threading.Event()
    tracker = ListTracker(lambda _: hanging.wait(60), timeout_s=0.05)
    try:
        result = run_desk(tracker)
    finally:
        hanging.set()
    assert result.status == "succeeded"
    [warning] = list_warnings(caplog)
    assert "list did not finish within 0.05 s" in warning


def test_a_secret_in_the_error_of_a_tracker_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    error = ConnectionError("https://user:hunter2hunter2@tracker.example/api refused")
    run_desk(ListTracker(fail_at("conclusion", error)))
    [warning] = list_warnings(caplog)
    assert "hunter2" not in warning


def test_a_package_that_is_missing_is_a_setup_error() -> None:
    class Missing(ListTracker):
        name = "missing"
        package = "a_package_that_nobody_has.inside"

    with pytest.raises(SetupError, match=r"run: pip install 'promptiter\[missing\]'"):
        Missing()
