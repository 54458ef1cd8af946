"""A run with two cycles of both phases is killed at every event and resumed: the same result, no case run repeated.

`make test` takes some of the kills, `make long` the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.backprop.trial_record import list_phases
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.search.descent.search import CoordinateDescent
from promptiter.stages.diagnosis import ApplyRequest, DiagnoseRequest, Diagnosis, TextEdit
from promptiter.testing.store_hooks import Killed
from tests.marks import take_some
from tests.worlds.quadratic_world import QuadraticAgent, ReasonReader, RuleAdder, build_engine, build_request
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How, kill_runs_at

CHUNKS = 40


class CountsCalls(ReasonReader, RuleAdder):
    """The critic and the applier of a run, with the number of their calls."""

    calls = 0

    def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        self.calls += 1
        return super().diagnose(request)

    def apply(self, request: ApplyRequest) -> TextEdit:
        self.calls += 1
        return super().apply(request)


def run(folder: Path) -> tuple[RunResult, int, int]:
    """Start a run below a folder, or resume the existing one: the result, the case runs and the calls of stages."""
    stages = CountsCalls()
    search = CoordinateDescent(
        critic=stages,
        applier=stages,
        max_cycles=2,
        numeric_max_trials=6,
        textual_max_trials=2,
        batch_size=2,
        startup_trials=3,
    )
    engine, request = build_engine(search, seed=3), build_request(cases=2)
    there = sorted(folder.glob("*/run.json"))
    directory = (
        RunDirectory.resume(there[0].parent, engine, request) if there else RunDirectory.begin(folder, engine, request)
    )
    result = directory.run_sync()
    assert isinstance(engine.agent, QuadraticAgent)
    return result, engine.agent.case_runs, stages.calls


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    folder = tmp_path_factory.mktemp("descent")
    result, case_runs, calls = run(folder)
    phases = [*list_phases(result.rounds)]
    assert [(each.cycle, each.phase) for each in phases] == [
        (1, "numeric"),
        (1, "textual"),
        (2, "numeric"),
        (2, "textual"),
    ]
    assert sum(each.accepted for each in phases) >= 2
    return folder, case_runs, calls


def read_events(folder: Path) -> list[dict[str, object]]:
    """The events in the journal. A line that was cut off by a kill is none."""
    raw = b"".join(path.read_bytes() for path in folder.glob("*/journal.jsonl"))
    return [orjson.loads(line)["event"] for line in raw[: raw.rfind(b"\n") + 1].splitlines()]


def count_events(folder: Path, *types: str) -> int:
    return sum(each["type"] in types for each in read_events(folder))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", take_some(range(CHUNKS)))
def test_coordinate_descent_resumes_from_every_event(chunk: int, whole: tuple[Path, int, int], tmp_path: Path) -> None:
    folder_of_whole, case_runs, calls = whole
    events = len(read_events(folder_of_whole))
    for seq in range(chunk, events, CHUNKS):
        folder = tmp_path / str(seq)
        with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
            run(folder)
        known, asked = count_events(folder, "case"), count_events(folder, "diagnosis", "edits")
        _, run_again, asked_again = run(folder)
        assert read_unmeasured(folder, traces=False) == read_unmeasured(folder_of_whole, traces=False)
        assert (known + run_again, asked + asked_again) == (case_runs, calls)
        rows = [str(event["data"]) for event in read_events(folder) if event["type"] == "trial"]
        assert len(rows) == len(set(rows)) == count_events(folder_of_whole, "trial")
