"""Whole runs of file tasks: editors, hold-outs, branches, logs, apply and revert."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from promptiter.api import apply_run, load_run, resume_run, revert_run
from promptiter.cli.views.rounds import print_rounds
from promptiter.errors import ApplyError, ChangedInputsError
from promptiter.runlog.results import RunResult
from promptiter.runs.report.files import write_report
from promptiter.runs.summary import summarize_stored
from promptiter.tasks.files.results_log import read_rows
from tests.worlds.file_task import AS_PRINTED, make_skill_folder

pytestmark = pytest.mark.slow

SKILL = "skills/writing/SKILL.md"
AGENT = """\
import json, os, pathlib
folder = pathlib.Path(os.environ["PROMPTITER_FOLDER"])
request = json.loads((folder / "request.json").read_text())
skill = pathlib.Path("skills/writing/SKILL.md")
text = skill.read_text()
round = request["round"]
if round == 1:
    pathlib.Path("scripts/score_skill2.py").write_text("print(1)")
elif round == 2:
    assert not pathlib.Path("secret/answers.txt").exists() or not pathlib.Path("secret/answers.txt").read_text()
    skill.write_text(text + "\\n## Steps\\n\\nDo it.\\n")
else:
    skill.write_text(text + f"\\n## Checks\\n\\nRound {round}.\\n")
"""
FUNCTION = """\
def edit(request):
    [path] = request.values
    sections = ("Steps", "Examples", "Checks")
    if request.round > len(sections):
        return None
    return {path: request.values[path] + f"\\n## {sections[request.round - 1]}\\n\\nOne more.\\n"}
"""


@pytest.fixture(autouse=True)
def python_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def make(folder: Path, **keys: Any) -> Path:
    document = {**yaml.safe_load(AS_PRINTED), **keys}
    document["budget"] = {"max_iterations": 3, "max_failures": 10, **keys.get("budget", {})}
    return make_skill_folder(folder, task=yaml.safe_dump({key: each for key, each in document.items() if each}))


def run(folder: Path, **settings: Any) -> RunResult:
    built = load_run(folder / "task.yaml", settings=settings)
    try:
        return built.begin().run_sync()
    finally:
        built.gateway.cache.close()


def find_run(folder: Path) -> Path:
    [found] = folder.glob("runs/*/run.json")
    return found.parent


def list_rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "work" / "results.jsonl")


def test_a_task_runs_out_of_the_box_and_logs_each_candidate(tmp_path: Path) -> None:
    folder = make(tmp_path / "w")
    result = run(folder)
    rows = list_rows(folder)
    assert [(row["iteration"], row["status"], row["score"]) for row in rows] == [
        (0, "keep", 0.2),
        (1, "keep", 0.4),
        (2, "keep", 0.6),
        (3, "keep", 0.8),
    ]
    assert rows[1]["files"] == [SKILL]
    assert rows[1]["diff"] == f"1 file: {SKILL} +4 -0"
    assert rows[0]["hashes"].keys() == {SKILL}
    assert all(row["measured"]["seconds"] > 0 for row in rows)
    assert result.verdict == "improved_on_validation"
    candidate = folder / "work" / "candidates" / find_run(folder).name / "0002"
    assert (candidate / SKILL).read_text().count("## ") == 3
    assert "+## Steps" in (candidate / "change.diff").read_text()
    write_report(find_run(folder), result)
    assert "| length\\_tokens | 34 | " in (find_run(folder) / "report.md").read_text()
    assert "<tr><td>length_tokens</td>" in (find_run(folder) / "report.html").read_text()


def test_rows_of_other_runs_stay_in_the_log(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", budget={"max_iterations": 1})
    run(folder)
    run(folder)
    rows = list_rows(folder)
    assert [row["iteration"] for row in rows] == [0, 1, 0, 1]
    assert len({row["measured"]["run"] for row in rows}) == 2


def test_a_program_edits_in_a_private_copy_and_other_changes_are_refused(tmp_path: Path) -> None:
    mutation = {"mode": "command", "command": "python tools/agent.py", "allowed_file_types": [".md"]}
    holdout = {"command": "python scripts/score_skill.py", "files": ["secret"]}
    folder = make(tmp_path / "w", mutation=mutation, holdout=holdout)
    (folder / "tools").mkdir()
    (folder / "tools" / "agent.py").write_text(AGENT)
    (folder / "secret").mkdir()
    (folder / "secret" / "answers.txt").write_text("42")
    run(folder)
    rows = list_rows(folder)
    assert [(row["status"], row.get("score")) for row in rows] == [
        ("keep", 0.2),
        ("discard", None),
        ("keep", 0.4),
        ("keep", 0.6),
    ]
    assert "scripts/score_skill2.py" in rows[1]["reason"]
    assert not (folder / "scripts" / "score_skill2.py").exists()


def test_a_function_edits_until_it_has_nothing_left(tmp_path: Path) -> None:
    mutation = {"mode": "function", "function": "my_editor_of_tests:edit"}
    folder = make(tmp_path / "w", mutation=mutation, budget={"max_iterations": 9})
    (folder / "my_editor_of_tests.py").write_text(FUNCTION)
    result = run(folder)
    assert [row["score"] for row in list_rows(folder)][:4] == [0.2, 0.4, 0.6, 0.8]
    assert len(result.rounds) == 4
    assert result.stop is not None
    assert result.stop.reason == "exhausted"
    assert result.rounds[-1].skipped == "the mutator has nothing left to try"
    assert result.structure.name == "skill-quality"
    assert not (folder / "__pycache__").exists()


def test_rounds_show_decisions_and_refused_edits_but_not_the_edits_as_data(tmp_path: Path) -> None:
    mutation = {"mode": "command", "command": "python tools/agent.py", "allowed_file_types": [".md"]}
    folder = make(tmp_path / "w", mutation=mutation, budget={"max_iterations": 2})
    (folder / "tools").mkdir()
    (folder / "tools" / "agent.py").write_text(AGENT)
    screen = Console(record=True, width=120, file=io.StringIO())
    print_rounds(screen, summarize_stored(run(folder), find_run(folder)))
    shown = screen.export_text()
    assert "score is 0.4, was 0.2" in shown
    assert "score_skill2.py" in shown
    assert "surface_id" not in shown


def test_candidates_of_a_round_are_measured_together(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", parallel=2, budget={"max_iterations": 2})
    run(folder)
    assert [(row["iteration"], row.get("round")) for row in list_rows(folder)] == [
        (0, None),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]


def test_several_objectives_keep_a_front(tmp_path: Path) -> None:
    objective = [{"primary_metric": "score"}, {"primary_metric": "length_tokens", "direction": "minimize"}]
    folder = make(tmp_path / "w", objective=objective, budget={"max_iterations": 4})
    result = run(folder)
    notes = [note.type for each in result.rounds for note in each.notes]
    assert "front" in notes


def test_a_hold_out_that_gets_worse_is_a_risk_of_overfitting(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", holdout={"command": "python scripts/hold.py", "cases": ["x"]})
    (folder / "scripts" / "hold.py").write_text(
        "import json, pathlib\n"
        "print(json.dumps({'score': 1 / pathlib.Path('skills/writing/SKILL.md').read_text().count('## ')}))"
    )
    result = run(folder)
    assert result.verdict == "overfit_risk"


def test_kept_candidates_are_git_branches_and_the_work_tree_stays(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", branch=True, budget={"max_iterations": 2})
    git = ("git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *command], check=True)
    (folder / "note.txt").write_text("not committed")
    run(folder)

    def ask(*command: str) -> str:
        return subprocess.run([*git, *command], check=True, capture_output=True, text=True).stdout

    name = find_run(folder).name
    branches = ask("for-each-ref", "--format=%(refname:short)", "refs/heads/promptiter").split()
    assert branches == [f"promptiter/skill-quality/{name}/{number:04}" for number in (1, 2)]
    assert ask("diff", "--stat", "main", branches[0]).count("SKILL.md") == 1
    assert ask("rev-parse", f"{branches[1]}^") == ask("rev-parse", branches[0])
    assert ask("branch", "--show-current").strip() == "main"
    assert ask("diff", "--cached", "--name-only") == ""
    assert "note.txt" in ask("status", "--porcelain")


def test_a_result_is_applied_and_reverted_byte_for_byte(tmp_path: Path) -> None:
    folder = make(tmp_path / "w")
    raw = (folder / SKILL).read_bytes().replace(b"\n", b"\r\n")
    (folder / SKILL).write_bytes(raw)
    run(folder)
    assert (folder / SKILL).read_bytes() == raw
    apply_run(find_run(folder))
    changed = (folder / SKILL).read_bytes()
    assert b"## Steps\r\n" in changed
    revert_run(find_run(folder))
    assert (folder / SKILL).read_bytes() == raw


def test_a_file_that_does_not_exist_yet_is_written_by_apply(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", artifacts={"include": ["notes/new.md"]})
    (folder / "scripts" / "score_skill.py").write_text(
        "import json, pathlib\nfile = pathlib.Path('notes/new.md')\ntext = file.read_text() if file.exists() else ''\n"
        "case = {'name': 'a', 'passed': 'Hello' in text, 'expected': 'Hello there.', 'file': 'notes/new.md'}\n"
        "metrics = {'violation_count': 0, 'length_tokens': 0}\n"
        "print(json.dumps({'score': float(case['passed']), 'metrics': metrics, 'cases': [case]}))\n"
    )
    result = run(folder)
    assert result.accepted_score == 1.0
    assert not (folder / "notes").exists()
    apply_run(find_run(folder))
    assert (folder / "notes" / "new.md").read_text() == "Hello there.\n"
    revert_run(find_run(folder))
    assert not (folder / "notes").exists()
    apply_run(find_run(folder))
    assert (folder / "notes" / "new.md").exists()
    (folder / "notes" / "mine.md").write_text("mine")
    revert_run(find_run(folder))
    assert [each.name for each in (folder / "notes").iterdir()] == ["mine.md"]
    assert revert_run(find_run(folder)).state == "unchanged"


def test_a_file_that_does_not_exist_yet_is_committed_and_its_commit_is_undone_if_it_fails(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", artifacts={"include": ["notes/new.md"]}, budget={"max_iterations": 1})
    (folder / "scripts" / "score_skill.py").write_text(
        "import json, pathlib\nscore = int(pathlib.Path('notes/new.md').exists())\n"
        "case = {'name': 'a', 'passed': score, 'expected': 'Hello there.', 'file': 'notes/new.md'}\n"
        "metrics = {'violation_count': 0, 'length_tokens': 0}\n"
        "print(json.dumps({'score': score, 'metrics': metrics, 'cases': [case]}))\n"
    )

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("config", "user.name", "t")
    git("config", "user.email", "t@t")
    git("add", ".")
    git("commit", "-qm", "first")
    run(folder)
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(ApplyError, match="the files are as they were"):
        apply_run(find_run(folder), commit=True)
    assert not (folder / "notes").exists()
    assert "notes" not in git("status", "--porcelain")
    hook.unlink()
    assert apply_run(find_run(folder), commit=True).commit
    assert git("show", "--name-status", "--format=", "HEAD").split() == ["A", "notes/new.md"]
    assert revert_run(find_run(folder), commit=True).commit
    assert git("show", "--name-status", "--format=", "HEAD").split() == ["D", "notes/new.md"]


def test_a_changed_scorer_refuses_to_resume(tmp_path: Path) -> None:
    folder = make(tmp_path / "w", budget={"max_iterations": 1})
    run(folder)
    (folder / "scripts" / "score_skill.py").write_text("print(1)")
    with pytest.raises(ChangedInputsError, match=r"'scripts/score_skill\.py' was changed"):
        resume_run(find_run(folder))


def test_history_and_the_prompt_reach_the_editor(tmp_path: Path) -> None:
    mutation = {"mode": "function", "function": "my_reader_of_tests:edit"}
    folder = make(tmp_path / "w", mutation=mutation, history=["other.jsonl"], budget={"max_iterations": 1})
    (folder / "other.jsonl").write_text('{"iteration": 1, "status": "keep"}\n')
    (folder / "prompt.md").write_text("Write for pilots.")
    (folder / "my_reader_of_tests.py").write_text(
        "def edit(request):\n    assert 'pilots' in request.instructions and request.history[0]['status'] == 'keep'\n"
        "    return {path: text + '\\n## Steps\\n' for path, text in request.values.items()}\n"
    )
    run(folder)
    assert [row["status"] for row in list_rows(folder)] == ["keep", "keep"]


def test_one_crash_ends_the_search_if_the_policy_says_so(tmp_path: Path) -> None:
    mutation = {"mode": "function", "function": "my_crasher_of_tests:edit"}
    folder = make(tmp_path / "w", mutation=mutation, policy={"on_failure": "stop"}, budget={"max_iterations": 9})
    (folder / "my_crasher_of_tests.py").write_text(
        "def edit(request):\n    return {path: f'{text}CRASH {request.round}' for path, text in request.values.items()}"
    )
    result = run(folder)
    assert [row["status"] for row in list_rows(folder)] == ["keep", "crash"]
    assert result.stop is not None
    assert result.stop.reason == "max_failures"
