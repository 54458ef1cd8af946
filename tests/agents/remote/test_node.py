"""The agent in JavaScript of examples/node_agent is optimized; it, or promptiter, is killed meanwhile: same result."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from promptiter.api import load_run, resume_run
from promptiter.engine.run import RunFailedError
from promptiter.runs.directory import RunDirectory
from tests.agents.black_box.test_kills import list_answers
from tests.worlds.node_programs import EXAMPLE, serve_node
from tests.worlds.results import read_unmeasured

pytestmark = pytest.mark.long


def copy_example(folder: Path, address: str) -> None:
    """The project of the example, with the address of its agent."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    file = folder / "promptiter.yaml"
    file.write_text(file.read_text().replace("http://127.0.0.1:8080", address))


def begin(folder: Path, address: str) -> RunDirectory:
    copy_example(folder, address)
    return load_run(folder, settings={"quiet": True}).begin()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing was killed."""
    folder = tmp_path_factory.mktemp("whole")
    with serve_node(EXAMPLE / "desk.mjs") as desk:
        result = begin(folder, desk.address).run_sync()
    assert result.verdict == "improved_on_validation"
    assert {change.surface_id for change in result.changes} == {"reception#instruction", "filing#instruction"}
    return folder


def compare(folder: Path, whole: Path, *, traces: bool = True) -> None:
    assert read_unmeasured(folder / "runs", traces=traces) == read_unmeasured(whole / "runs", traces=traces)
    assert list_answers(folder) == list_answers(whole)


def wait_for_answers(folder: Path, count: int) -> None:
    end = time.monotonic() + 120
    while len(list_answers(folder)) < count:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_an_agent_that_is_killed_and_comes_back_does_not_change_the_result(
    share: float, whole: Path, tmp_path: Path
) -> None:
    with serve_node(EXAMPLE / "desk.mjs") as desk:
        run = begin(tmp_path, desk.address)

        def interrupt() -> None:
            wait_for_answers(tmp_path, int(share * len(list_answers(whole))))
            desk.kill()
            time.sleep(0.5)
            desk.start()

        killer = threading.Thread(target=interrupt)
        killer.start()
        run.run_sync()
        killer.join()
    compare(tmp_path, whole)


def test_cases_of_an_agent_that_stays_down_fail_in_words_and_run_again_when_the_run_is_resumed(
    whole: Path, tmp_path: Path
) -> None:
    with serve_node(EXAMPLE / "desk.mjs") as desk:
        run = begin(tmp_path, desk.address)

        def interrupt() -> None:
            wait_for_answers(tmp_path, 20)
            desk.kill()

        killer = threading.Thread(target=interrupt)
        killer.start()
        with pytest.raises(RunFailedError, match=rf"the service '127.0.0.1:{desk.port}' cannot be reached"):
            run.run_sync()
        killer.join()
        desk.start()
        [folder] = (tmp_path / "runs").glob("*/run.json")
        resume_run(folder.parent).run_sync()
    compare(tmp_path, whole, traces=False)  # those of the lost case runs are kept, too


@pytest.mark.parametrize("seed", range(3))
def test_promptiter_is_killed_at_random_moments_and_asks_for_no_known_answer_again(
    seed: int, whole: Path, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with serve_node(EXAMPLE / "desk.mjs") as desk:
        copy_example(tmp_path, desk.address)
        command = ["run", str(tmp_path)]
        for count in sorted(rng.sample(range(len(list_answers(whole))), 3)):
            with start(command, environ) as process:
                wait_for_answers(tmp_path, count)
                process.kill()
            [header] = (tmp_path / "runs").glob("*/run.json")
            command = ["resume", str(header.parent)]
        with start(command, environ) as process:
            errors = process.communicate()[1]
        assert process.returncode == 0, errors
    compare(tmp_path, whole)


def start(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "promptiter", *command, "--quiet"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
