"""A GEPA run with a reflection model, blame and a merge is killed at every event and resumed: same result and files.

No answer that was recorded is asked for again. `make test` takes some of the kills, `make long` the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.llm.models import ScriptedModel
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.testing.store_hooks import Killed
from tests.worlds.results import drop_measured, read_unmeasured
from tests.worlds.starter import How, kill_runs_at
from tests.worlds.two_cares import Editor, answer, build_engine, build_merging_search, build_request, is_fair

pytestmark = pytest.mark.slow
CHUNKS = 40


def run(folder: Path, *, concurrency: int = 4) -> tuple[RunResult, int]:
    """Start a run below a folder, or resume the existing one; returns the result, and how many calls were made."""
    task, editor = ScriptedModel(answer), Editor()
    engine = build_engine(build_merging_search(), editor, task=task, second=is_fair, concurrency=concurrency)
    request = build_request(max_rounds=3, final_test=FinalTest(repeats=2))
    there = sorted(folder.glob("*/run.json"))
    directory = (
        RunDirectory.resume(there[0].parent, engine, request) if there else RunDirectory.begin(folder, engine, request)
    )
    result = directory.run_sync()
    return result, len(task.requests) + len(editor.prompts)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gepa")
    result, _ = run(folder)
    kinds = {event["type"] for event in read_events(folder)}
    assert kinds >= {"reflection", "iteration", "candidate", "decision", "final_test"}
    assert any(len(candidate.parents) == 2 for each in result.rounds for candidate in each.candidates)
    assert result.accepted_score == 1.0
    return folder


def read_events(folder: Path) -> list[dict[str, object]]:
    [path] = folder.glob("*/journal.jsonl")
    return [orjson.loads(line)["event"] for line in path.read_bytes().splitlines()]


def count_answers(folder: Path) -> int:
    """The number of recorded answers. A line that was cut off by a kill is none."""
    count = 0
    for path in folder.glob("*/calls.jsonl"):
        raw = path.read_bytes()
        count += sum("key" in orjson.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines())
    return count


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_gepa_run_resumes_from_every_event(chunk: int, whole: Path, tmp_path: Path) -> None:
    events = len(read_events(whole))
    for seq in range(chunk, events, CHUNKS):
        folder = tmp_path / str(seq)
        with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
            run(folder, concurrency=1 + 5 * (seq % 2))
        known = count_answers(folder)
        _, asked = run(folder)
        assert read_unmeasured(folder) == read_unmeasured(whole)
        assert asked == count_answers(whole) - known


SCRIPT = """
import sys
from pathlib import Path
from tests.search.test_gepa_kills import run
run(Path(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_another_process_makes_the_same_run(seed: str, whole: Path, tmp_path: Path) -> None:
    """The order of sets of names differs there."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, env=environ)
    assert drop_measured(read_unmeasured(tmp_path)) == drop_measured(read_unmeasured(whole))
