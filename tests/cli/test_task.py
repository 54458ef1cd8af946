"""`promptiter task`: a task is written, checked, run and resumed as any run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from promptiter.config.task_yaml.starter import FILES
from promptiter.tasks.files.results_log import read_rows
from tests.cli.conftest import Run
from tests.worlds.file_task import AS_PRINTED, make_skill_folder
from tests.worlds.model_server import LoopbackServer, run_server
from tests.worlds.skill_editor import answer_editor

pytestmark = pytest.mark.slow


@pytest.fixture
def task(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The starter, in the current folder."""
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    printed = run("task", "init")
    assert printed.endswith("now run it:\n\n  promptiter task run\n")
    return tmp_path


def test_init_refuses_to_overwrite(run: Run, task: Path) -> None:
    assert "already has task.yaml" in run("task", "init", code=2)
    (task / "task.yaml").write_text("mine")
    run("task", "init", "--force")
    assert (task / "task.yaml").read_text() == FILES["task.yaml"]


def test_the_example_is_the_starter() -> None:
    folder = Path(__file__).parents[2] / "examples" / "skill_quality"
    first = "# yaml-language-server: $schema=task.schema.json\n"
    wanted = {name: text.removeprefix(first) for name, text in FILES.items()}
    assert {name: (folder / name).read_text(encoding="utf-8") for name in FILES} == wanted


def test_check_measures_once_and_names_what_fails(run: Run, task: Path) -> None:
    skill = task / "skills" / "release-notes" / "SKILL.md"
    skill.write_text(skill.read_text() + "\nTODO\n")
    printed = run("task", "check")
    assert "1 artifact: skills/release-notes/SKILL.md" in printed
    assert "violation_count 1  FAILS: violation_count <= 0" in printed
    assert "4 of 4 cases failed: When to use, Steps, Example, Check" in printed
    assert "no candidate is kept before violation_count <= 0 holds" in printed
    assert "sandbox: " in printed
    assert not (task / "runs").exists()


def test_a_baseline_that_crashes_is_an_error_before_anything_is_spent(run: Run, task: Path) -> None:
    (task / "skills" / "release-notes" / "SKILL.md").write_text("no front matter")
    assert "the skill has no front matter with a name" in run("task", "check", code=2)


def test_a_run_says_that_a_model_would_do_better_and_can_be_applied(run: Run, task: Path) -> None:
    before = (task / "skills" / "release-notes" / "SKILL.md").read_text()
    printed = run("task", "run", "--max-iterations", "1", stream="err")
    assert "note: no model edits the files" in printed
    assert "accepted: score is 0.417, was 0.222: better by 0.195" in printed
    assert (task / "skills" / "release-notes" / "SKILL.md").read_text() == before
    shown = run("show", str(task))  # the latest run of the folder
    assert "length_tokens" in shown
    run("apply", "latest")
    assert "## When to use" in (task / "skills" / "release-notes" / "SKILL.md").read_text()
    run("apply", "latest", "--revert")
    assert (task / "skills" / "release-notes" / "SKILL.md").read_text() == before


def test_json_has_the_figures_of_each_candidate(run: Run, task: Path) -> None:
    document = json.loads(run("task", "run", "--max-iterations", "1", "--json"))
    [round_] = document["rounds"]
    [candidate] = round_["candidates"]
    assert candidate["evaluations"][0]["rows"][0]["figures"]["score"] == 0.417


def test_a_model_edits_through_the_stages(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = make_skill_folder(tmp_path / "w")
    with run_server(LoopbackServer(answer_editor)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        printed = run("task", "run", folder, "--model", "openai/editor", "--max-iterations", "2", stream="err", code=3)
    assert "note: no model" not in printed
    assert "the skill cannot be loaded" in printed
    assert [row["status"] for row in read_rows(folder / "work" / "results.jsonl")] == ["keep", "crash", "discard"]


def test_another_search_takes_the_model_too(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = make_skill_folder(tmp_path / "w", task=f"{AS_PRINTED}search: backprop\n")
    with run_server(LoopbackServer(answer_editor)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        run("task", "run", folder, "--model", "openai/editor", "--max-iterations", "1", code=3)
    assert server.bodies


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("artifacts:", "artifact:"), "unknown key 'artifact' (did you mean 'artifacts'?)"),
        (("violation_count, op", "violations, op"), "names the figure 'violations', which no scorer gives"),
        (("command: python scripts/score_skill.py", "command: nosuchprogram"), "nosuchprogram"),
        (("guards:", "judges: {model: openai/gpt-x}\nguards:"), "judges.judge: openai/gpt-x needs OPENAI_API_KEY"),
        (("guards:", "history: other.jsonl\nguards:"), "other.jsonl' cannot be read: No such file or directory"),
        (("mode: direct_edit", "mode: command\n  command: nosuchagent"), "nosuchagent"),
    ],
)
def test_mistakes_are_one_message(
    run: Run, task: Path, change: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = task / "task.yaml"
    file.write_text(file.read_text().replace(*change))
    assert message in run("task", "check", code=2)


def test_a_missing_task_says_how_to_write_one(run: Run, tmp_path: Path) -> None:
    assert "`promptiter task init` writes one" in run("task", "run", tmp_path / "nothing.yaml", code=2)
