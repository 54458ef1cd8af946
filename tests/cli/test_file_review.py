"""`promptiter run --review file`: a run waits for decisions in files, also after it was killed and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from promptiter.config.file import read_config
from promptiter.runs.summary import read_result
from tests.cli.conftest import Run


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read the errors of a command up to a line with this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not printed")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "promptiter", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)


def decide(line: str, decision: str) -> None:
    """Fill in the file that a line names."""
    file = Path(line.rpartition(": ")[2].strip())
    file.write_text(file.read_text().replace("decision:\n", f"decision: {decision}\n", 1))


@pytest.mark.long
def test_a_killed_run_waits_for_the_same_file_when_it_is_resumed(desk: Path) -> None:
    with start("run", "--review", "file") as killed:
        asked = wait_for(killed, "waiting for 1 review: ")
        killed.kill()
    with start("resume") as resumed:
        assert wait_for(resumed, "waiting for 1 review: ") == asked, "without the option: the run keeps it"
        decide(asked, "maybe")
        wait_for(resumed, "decision is 'maybe'; write approve, edit or veto; still waiting")
        file = Path(asked.rpartition(": ")[2].strip())
        file.write_text(file.read_text().replace("decision: maybe", "decision: approve", 1))
        decide(wait_for(resumed, "waiting for 1 review: "), "approve")
        assert resumed.wait(60) == 0
        assert resumed.stdout is not None
        assert "Improved on these 8 cases" in resumed.stdout.read()
    [folder] = (desk / "runs").glob("[!.]*")
    assert sorted(path.name[:4] for path in (folder / "review").iterdir()) == ["0001", "0002"]
    assert {each.surface_id for each in read_result(folder).changes} == {"filing#instruction", "reception#instruction"}


@pytest.mark.long
@pytest.mark.usefixtures("desk")
def test_a_stop_file_ends_the_wait() -> None:
    with start("run", "--review=file", "--quiet") as waiting:
        asked = wait_for(waiting, "waiting for 1 review: ")
        folder = Path(asked.rpartition(": ")[2].strip()).parents[1]
        (folder / "stop").touch()
        assert waiting.wait(30) == 130


def test_review_without_a_value_asks_at_the_terminal(run: Run, desk: Path) -> None:
    for arguments in (["--review"], ["--review", "."], ["--review", "ask"], [".", "--review"]):
        assert "review: standard input is not a terminal" in run("run", *arguments, code=2)
    with (desk / "promptiter.yaml").open("a") as config:
        config.write("review: ask\n")
    assert "review: standard input is not a terminal" in run("run", code=2)
    run("run", "--no-review", "--max-rounds", "0", "--quiet")


@pytest.mark.parametrize(
    ("written", "meant"), [("true", "ask"), ("false", None), ("no", None), ("ask", "ask"), ("file", "file")]
)
def test_the_key_says_how_patches_are_reviewed(tmp_path: Path, written: str, meant: str | None) -> None:
    (tmp_path / "promptiter.yaml").write_text(f"review: {written}\n")
    assert read_config(tmp_path).config.review == meant


def test_another_way_of_review_is_an_error_that_names_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "promptiter.yaml").write_text("review: files\n")
    [problem] = [each for each in read_config(tmp_path).problems if "review" in each]
    assert "must be ask, file, true (the same as ask) or false" in problem
