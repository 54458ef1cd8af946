"""A run with two cycles of both phases is killed at every event and resumed: the same result, no case run repeated.

So is one that accepts nothing, whose second cycle tries a rejected text with other numbers.

`make test` takes some of the kills, `make long` the others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.backprop.trial_record import get_trials, list_phases
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.search.descent.search import CoordinateDescent
from promptiter.stages.diagnosis import ApplyRequest, DiagnoseRequest, Diagnosis, TextEdit
from promptiter.testing.store_hooks import Killed
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


def run(folder: Path, *, accept_sigma: float = 1.0, trials: int = 6) -> tuple[RunResult, int, int]:
    """Start a run below a folder, or resume the existing one: the result, the case runs and the calls of stages."""
    stages = CountsCalls()
    search = CoordinateDescent(
        critic=stages,
        applier=stages,
        max_cycles=2,
        numeric_max_trials=trials,
        textual_max_trials=2,
        batch_size=2,
        startup_trials=3,
    )
    engine = build_engine(search, seed=3)
    request = replace(build_request(cases=2), acceptance=SigmaGain(accept_sigma=accept_sigma))
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
@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
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


@pytest.mark.long
def test_a_joint_move_resumes_from_every_event(tmp_path: Path) -> None:
    result, case_runs, _ = run(tmp_path / "whole", accept_sigma=1000.0, trials=2)
    assert any(trial.numeric and trial.textual for each in result.rounds for trial in get_trials(each))
    for seq in range(len(read_events(tmp_path / "whole"))):
        folder = tmp_path / str(seq)
        with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
            run(folder, accept_sigma=1000.0, trials=2)
        known = count_events(folder, "case")
        _, run_again, _ = run(folder, accept_sigma=1000.0, trials=2)
        assert read_unmeasured(folder, traces=False) == read_unmeasured(tmp_path / "whole", traces=False)
        assert known + run_again == case_runs
