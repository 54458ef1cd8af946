from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import pytest

from promptiter.api import load_run
from promptiter.cli import main


class Run(Protocol):
    def __call__(self, *arguments: str | Path, code: int = 0, stream: str = "", width: int = 120) -> str: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line as a user would; returns standard output, or standard error if a code is expected."""

    def run_once(*arguments: str | Path, code: int = 0, stream: str = "", width: int = 120) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["promptiter", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed.err
        return printed.err if (stream or ("err" if code else "out")) == "err" else printed.out

    return run_once


@pytest.fixture
def desk(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The starter in the current folder; its module `agent` is unloaded before and after."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    run("init", tmp_path)
    sys.modules.pop("agent", None)
    yield tmp_path
    sys.modules.pop("agent", None)


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter with one finished run; tests copy it, see `finished_run`."""
    project = tmp_path_factory.mktemp("finished")
    shutil.copytree(str(files("promptiter") / "starter"), project, dirs_exist_ok=True)
    path = list(sys.path)
    sys.modules.pop("agent", None)
    load_run(project, settings={"quiet": True}).begin().run_sync()
    sys.modules.pop("agent", None)
    sys.path[:] = path
    return project


@pytest.fixture
def finished_run(desk: Path, finished_project: Path) -> Path:
    """The folder of a finished run in the starter in the current folder, as `promptiter run --quiet` leaves it."""
    shutil.copytree(finished_project / "runs", desk / "runs")
    [path] = (desk / "runs").glob("[!.]*")
    header = path / "run.json"
    header.write_text(header.read_text().replace(str(finished_project), str(desk)))
    return path
