from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from promptiter.observers.jsonl import JsonlObserver
from promptiter.testing.store_hooks import Killed
from tests.worlds import desk
from tests.worlds.starter import SmallShop, kill_runs_at

pytestmark = pytest.mark.slow


def read(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_lines_are_the_points_of_the_run_in_order(tmp_path: Path) -> None:
    result = SmallShop().run(tmp_path / "runs", observers=(JsonlObserver(path=str(tmp_path / "deep/progress.jsonl")),))
    lines = read(tmp_path / "deep/progress.jsonl")
    assert [lines[0]["type"], lines[-1]["type"]] == ["run_started", "run_completed"]
    assert {line["run_id"] for line in lines} == {result.run_id}
    assert lines[-1]["verdict"] == result.verdict
    [decision] = [line for line in lines if line["type"] == "decision"]
    assert decision["accepted"] is True
    assert "case" not in {line["type"] for line in lines}


def test_cases_are_lines_if_wanted(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    result = SmallShop().run(tmp_path / "runs", observers=(JsonlObserver(path=str(path), cases=True),))
    cases = [line for line in read(path) if line["type"] == "case"]
    assert len(cases) == result.measured.case_runs
    assert cases[0]["scores"]


def test_a_resumed_run_appends_what_its_file_lacks(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    with kill_runs_at(40), pytest.raises(Killed):
        SmallShop().run(tmp_path / "runs", observers=(JsonlObserver(path=str(path)),))
    with path.open("ab") as file:
        file.write(b'{"seq":39,"type":"tor')
    SmallShop().run(tmp_path / "runs", observers=(JsonlObserver(path=str(path)),))
    found = [line["seq"] for line in read(path)]
    assert found == sorted(set(found))  # type: ignore[type-var]
    assert read(path)[-1]["type"] == "run_completed"


def test_a_file_can_hold_several_runs(tmp_path: Path) -> None:
    observer = JsonlObserver(path=str(tmp_path / "progress.jsonl"))
    results = [desk.engine().run_sync(desk.request(run_id=name), observers=[observer]) for name in ("a", "b")]
    ends = [line for line in read(tmp_path / "progress.jsonl") if line["type"] == "run_completed"]
    assert len(ends) == len({result.run_id for result in results})


@pytest.mark.long
def test_the_stream_is_standard_output(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.worlds.starter import SmallShop; "
        "from promptiter.observers import JsonlObserver; "
        "SmallShop().run(Path(sys.argv[1]), observers=(JsonlObserver(),))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=True)
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["type"] == "run_completed"
