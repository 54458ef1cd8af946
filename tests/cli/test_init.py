from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from promptiter.config.file import read_config
from promptiter.config.loading import load_agent
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
WRITTEN = [
    "README.md",
    "agent.py",
    "metrics.json",
    "promptiter.yaml",
    "data/train.jsonl",
    "data/validation.jsonl",
    "promptiter.schema.json",
]


def test_a_starter_is_written_and_the_next_command_printed(run: Run, tmp_path: Path) -> None:
    shown = run("init", tmp_path / "desk")
    assert sorted(WRITTEN) == sorted(
        path.relative_to(tmp_path / "desk").as_posix() for path in (tmp_path / "desk").rglob("*") if path.is_file()
    )
    assert shown.split("\n\n")[0].splitlines() == [f"written to {tmp_path}/desk/", *(f"  {path}" for path in WRITTEN)]
    assert shown.endswith(f"now run it:\n\n  promptiter run {tmp_path}/desk\n")


def test_existing_files_are_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("mine")
    errors = run("init", tmp_path, code=2)
    assert "already has agent.py, data/train.jsonl; choose another folder, or pass --force" in errors
    assert not (tmp_path / "promptiter.yaml").exists()
    run("init", tmp_path, "--force")
    assert (tmp_path / "agent.py").read_text() != "mine"


def test_a_folder_that_cannot_be_made_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be created" in run("init", tmp_path / "file" / "desk", code=2)


@pytest.mark.long
def test_the_starter_improves_as_it_is(tmp_path: Path) -> None:
    """The two commands that a newcomer types, as they type them; nothing is paid and nothing is asked of a network."""
    environ = {**os.environ, "COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    made = subprocess.run(["promptiter", "init"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        ["promptiter", "run", "promptiter.yaml"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ Improved on these 8 cases: mean score 0.500 → 1.000 (same in every repeat)\n" in done.stdout
    command = next(line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("  details: "))
    shown = subprocess.run(command.split(), cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"cases that pass +0/8 +8/8\n", shown.stdout)
    assert "  reception#instruction  12 cases, changed\n" in shown.stdout
    assert "  filing#instruction  12 cases, changed\n" in shown.stdout
    unchanged = re.sub(r"\s+", " ", shown.stdout.partition("Unchanged: 4 of 6 surfaces")[2])
    assert unchanged.startswith(" delivery#instruction, lead#instruction, payments#instruction, returns#instruction ")
    assert max(map(len, (done.stdout + shown.stdout).splitlines())) <= 80


def test_settings_in_the_comments_of_the_starter_are_valid(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", tmp_path)
    path = tmp_path / "promptiter.yaml"
    below_the_title = path.read_text().split("\n", 2)[2]
    path.write_text(re.sub(r"(?m)^( *)# ?", r"\1", below_the_title))
    config = read_config(path, environ={"OPENAI_API_KEY": "sk-something-secret"}).config
    assert (config.stages.models, config.budget.max_usd, config.evaluation.repeats) == ({"stages": "gpt-4o"}, 2.0, 3)
    assert config.targets == ("filing#instruction",)
    assert config.stop is not None
    assert config.stop.minutes == 30
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    agent = load_agent("agent:agent", folders=config.python_path).describe()
    assert set(config.targets) <= set(agent.surface_ids)
    assert {surface.value for surface in agent.surfaces if surface.type == "model"} == {"simulated"}
    monkeypatch.delitem(sys.modules, "agent", raising=False)


def test_git_and_the_wheel_include_all_files_of_the_package() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    files = [
        str(path) for path in (ROOT / "promptiter").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    done = subprocess.run(["git", "check-ignore", "--no-index", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.slow
def test_the_wheel_holds_the_starter(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    shipped = {f"promptiter/{'config' if 'schema' in path else 'starter'}/{path}" for path in WRITTEN}
    assert shipped <= set(zipfile.ZipFile(wheel).namelist())
