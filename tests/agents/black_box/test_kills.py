"""A run of a command that reads its own files is killed and resumed: same result, nothing asked twice, nothing left.

Neither processes of the agent or of a stage that is a command, nor private folders, nor a candidate in the files.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.agents.black_box.private_files import PREFIX
from tests.agents.black_box.test_process import is_alive, read_pids
from tests.worlds.command_desk import PROMPTS, read_baseline
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How

pytestmark = pytest.mark.long

KILLS = 5
WAYS = ("agent", "optimizer")


def start(folder: Path, way: str, *options: str) -> subprocess.Popen[str]:
    """Start a process that makes the run of this folder, or resumes it. Private folders are below `tmp`."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "tmp")}
    of_way = ["--optimizer"] if way == "optimizer" else []
    command = [sys.executable, "-m", "tests.worlds.command_desk", str(folder), *of_way, *options]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder: Path, way: str, *options: str, code: int = 0) -> int:
    """Run such a process to its end, and return how often it asked the model."""
    process = start(folder, way, *options)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    return int(orjson.loads(output)["asked"]) if code == 0 else 0


def list_answers(folder: Path, kind: str = "model") -> list[str]:
    """The keys of all recorded answers of the model, or of commands. A line that was cut off by a kill is none."""
    found = []
    for path in folder.glob("runs/*/calls.jsonl"):
        raw = path.read_bytes()
        lines = map(orjson.loads, raw[: raw.rfind(b"\n") + 1].splitlines())
        found += [line["key"] for line in lines if "key" in line and kind in line]
    return sorted(found)


def wait_for_processes(folder: Path) -> None:
    """Wait until no process of the agent or of the optimizer runs."""
    end = time.monotonic() + 20
    while running := [pid for pid in read_pids(folder / "pids") if is_alive(pid)]:
        assert time.monotonic() < end, f"{running} are left over"
        time.sleep(0.02)


def check_resume(folder: Path, way: str, whole: Path) -> None:
    wait_for_processes(folder)
    known = list_answers(folder)
    asked = run(folder, way)
    assert read_unmeasured(folder / "runs") == read_unmeasured(whole / "runs")
    assert asked == len(list_answers(whole)) - len(known)
    for kind in ("model", "tool"):
        assert list_answers(folder, kind) == list_answers(whole, kind)
    wait_for_processes(folder)
    assert {name: (folder / "prompts" / f"{name}.md").read_text() for name in PROMPTS} == {
        name: read_baseline(name) for name in PROMPTS
    }
    assert list((folder / "tmp").glob(f"{PREFIX}*")) == []


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each way that was not killed."""
    found = {}
    for way in WAYS:
        found[way] = tmp_path_factory.mktemp(way)
        asked = run(found[way], way)
        assert asked == len(list_answers(found[way]))
        [result] = found[way].glob("runs/*/result.json")
        assert orjson.loads(result.read_bytes())["verdict"] == "improved_on_validation"
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sample", range(KILLS))
def test_a_run_of_a_command_resumes_after_a_sigkill_at_an_event(
    way: str, sample: int, wholes: dict[str, Path], tmp_path: Path
) -> None:
    [journal] = wholes[way].glob("runs/*/journal.jsonl")
    events = len(journal.read_bytes().splitlines())
    seq = sample * events // KILLS + random.Random(sample).randrange(events // KILLS)
    run(tmp_path, way, "--kill-at", str(seq), "--how", get_args(How)[sample % 3], code=-signal.SIGKILL)
    check_resume(tmp_path, way, wholes[way])


@pytest.mark.parametrize("moment", ["while it runs", "after it"])
def test_a_run_resumes_after_a_sigkill_while_its_optimizer_runs_or_after_it(
    moment: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    process = start(tmp_path, "optimizer", "--pause", "600" if moment == "while it runs" else "0")

    def has_come() -> bool:
        if moment == "after it":
            return bool(list_answers(tmp_path, "tool"))
        return (tmp_path / "pids.asked").exists()

    end = time.monotonic() + 120
    while not has_come():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert len(list_answers(tmp_path, "tool")) == (moment == "after it")
    check_resume(tmp_path, "optimizer", wholes["optimizer"])


@pytest.mark.parametrize("seed", range(2))
def test_a_run_of_a_command_resumes_after_sigkills_at_any_moment(
    seed: int, wholes: dict[str, Path], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        process = start(tmp_path, WAYS[seed % 2])
        while process.poll() is None and not list(tmp_path.glob("runs/*/lock")):
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 2.0))
        process.kill()
        process.communicate()
        wait_for_processes(tmp_path)
    check_resume(tmp_path, WAYS[seed % 2], wholes[WAYS[seed % 2]])
