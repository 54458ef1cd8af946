"""task.yaml: the file of document 002 as printed, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from promptiter.config.build import build_run
from promptiter.config.file import read_config
from promptiter.config.task_yaml.document import is_task_yaml, read_task_file
from promptiter.config.task_yaml.parts import build_results_log
from promptiter.errors import SetupError
from promptiter.tasks.files.task import TaskConstraint, TaskTieBreaker
from tests.worlds.file_task import AS_PRINTED, make_skill_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_skill_folder(tmp_path)


def change(folder: Path, **keys: Any) -> Path:
    document = {**yaml.safe_load(AS_PRINTED), **keys}
    file = folder / "task.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return file


def test_the_file_of_the_document_is_read_as_printed(folder: Path) -> None:
    task = read_task_file(folder).task
    assert task.id == "skill-quality"
    assert task.runner is not None
    assert task.runner.arguments == ("python", "scripts/run_skill_eval.py")
    assert [each.command.arguments for each in task.scorers] == [("python", "scripts/score_skill.py")]
    assert task.constraints == (
        TaskConstraint(metric="violation_count", op="<=", value=0),
        TaskConstraint(metric="length_tokens", op="<=", value=2500),
    )
    assert task.tie_breakers == (
        TaskTieBreaker(metric="violation_count", better="lower"),
        TaskTieBreaker(metric="length_tokens", better="lower"),
    )


def test_scripts_and_the_task_itself_are_protected_and_logs_are_hidden(folder: Path) -> None:
    task = read_task_file(folder).task
    assert task.protected == ("scripts/run_skill_eval.py", "scripts/score_skill.py", "task.yaml")
    assert task.logs == ("work/results.jsonl", "work/candidates", "runs", ".promptiter")


def test_the_run_is_a_promptiter_yaml_in_other_words(folder: Path) -> None:
    parsed = read_config(folder / "task.yaml")
    assert parsed.problems == ()
    config = parsed.config
    assert config.agent.task == (folder / "task.yaml").absolute()
    assert config.max_rounds == 50
    assert config.stop is not None
    assert config.stop.max_failures == 10
    assert (config.edit_limits.max_files, config.edit_limits.max_changed_lines) == (2, 120)
    assert [each.figure for each in config.acceptance.bounds] == ["violation_count", "length_tokens", "tampered_files"]
    gain = config.acceptance.figure_gain
    assert gain is not None
    assert (gain.figure, gain.direction) == ("score", "maximize")
    assert [each.lower for each in gain.tie_breakers] == ["violation_count", "length_tokens"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mutaton": {}}, "unknown key 'mutaton' .did you mean 'mutation'"),
        ({"artifacts": {"include": []}}, "artifacts.include: must not be empty"),
        ({"artifacts": {"inclde": ["a.md"]}}, "unknown key 'inclde' .did you mean 'include'"),
        ({"policy": {"keep_if": "better"}}, "policy.keep_if: must be 'better_primary'"),
        ({"policy": {"tie_breakers": [{"lower": "a", "higher": "b"}]}}, "exactly one of lower and higher"),
        ({"constraints": [{"metric": "a", "op": "=<", "value": 1}]}, r"constraints\[0\].op: must be"),
        ({"scorer": None}, "needs a scorer or judges"),
        ({"scorer": {"type": "python"}}, "needs the key 'function'"),
        ({"runner": {"command": "a | b"}}, "only a shell reads; set shell: true"),
        ({"runner": {"command": "a 'b"}}, "cannot be split"),
        ({"runner": {"command": "a", "cwd": "../x"}}, r"runner.cwd: '../x' leaves the workspace"),
        ({"runner": {"command": "a", "cwd": "nowhere"}}, "is not a folder of the workspace"),
        ({"runner": {"command": "a", "environment": {"K": "${NOT_SET_HERE}"}}}, "'NOT_SET_HERE' is not set"),
        ({"workspace": "nowhere"}, "workspace: .* is not a folder"),
        ({"mutation": {"allowed_file_types": ["md"]}}, "write '.md'"),
        ({"mutation": {"mode": "command"}}, "needs the key 'command'"),
        ({"mutation": {"function": "a:b"}}, "only for the mode 'function'"),
        ({"objective": {"direction": "minimize", "scale": [0, 1]}}, "give the worst figure, then the best"),
        ({"judges": {"model": "m"}}, "write rubric.md beside task.yaml"),
        ({"holdout": {"command": "x", "files": ["../a"]}}, "leaves the workspace"),
        ({"holdout": {"command": "x", "files": ["hiden"]}}, "'hiden' matches nothing .* would hide nothing"),
        ({"holdout": {"command": "x", "files": ["*.hiden"]}}, "'.*hiden' matches nothing"),
        ({"protected": ["date/**"]}, r"protected: 'date/.*' matches no file"),
        ({"logging": {"results_file": "skills/writing/SKILL.md"}}, "which commands must see; write to another place"),
        ({"guards": {"forbidden_texts": ["("]}}, r"forbidden_texts: '\(' is not a regular expression"),
        ({"logging": {"candidate_dir": "skills"}}, "logging.candidate_dir: 'skills' holds 'skills/writing/SKILL.md'"),
    ],
)
def test_a_mistake_is_named_with_its_place(folder: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        read_task_file(change(folder, **keys))


def test_a_log_outside_of_the_workspace_is_hidden_from_nobody(folder: Path) -> None:
    logging = {"results_file": "../results.jsonl", "candidate_dir": str(folder.parent / "candidates")}
    assert read_task_file(change(folder, logging=logging)).task.logs == ("runs", ".promptiter")


def test_what_is_null_is_not_logged(folder: Path) -> None:
    file = change(folder, logging={"results_file": "work/rows.jsonl", "candidate_dir": None})
    assert read_task_file(file).task.logs == ("work/rows.jsonl", "runs", ".promptiter")
    file = change(folder, logging={"results_file": None, "candidate_dir": None})
    assert not read_config(file).config.observers


@pytest.mark.parametrize(
    ("logging", "message"),
    [
        ({"results_file": "notes.txt"}, "'notes.txt' has lines that are not results, and would be overwritten"),
        ({"results_file": "other"}, "'other' is not a file"),
        ({"results_file": "notes.txt/rows.jsonl"}, "is below '.*notes.txt', which is not a folder"),
        ({"results_file": "link.jsonl"}, "'link.jsonl' is a symbolic link, and would be replaced by a file"),
        ({"candidate_dir": "notes.txt"}, "'notes.txt' is not a folder"),
    ],
)
def test_a_log_does_not_replace_what_is_no_log(folder: Path, logging: dict[str, str], message: str) -> None:
    (folder / "notes.txt").write_text("my notes\nof today\n")
    (folder / "other").mkdir()
    (folder / "link.jsonl").symlink_to("rows.jsonl")
    with pytest.raises(SetupError, match=message):
        build_results_log(str(change(folder, logging=logging)))


def test_all_mistakes_of_the_keys_are_listed_at_once(folder: Path) -> None:
    with pytest.raises(SetupError) as raised:
        read_task_file(change(folder, repeats=0, parallel="two", seed=1.5))
    assert len(str(raised.value).splitlines()) == 3


def test_only_a_file_with_its_own_keys_is_a_task() -> None:
    assert is_task_yaml({"artifacts": {}})
    assert not is_task_yaml({"agent": "a:b", "scorer": "c:d"})


def test_notes_for_editors_in_another_encoding_are_refused(folder: Path) -> None:
    (folder / "prompt.md").write_bytes("café".encode("latin-1"))
    with pytest.raises(SetupError, match=r"prompt\.md: invalid UTF-8 at byte 3; save it as UTF-8"):
        read_task_file(folder)


def test_the_file_of_a_module_that_a_command_runs_is_protected(folder: Path) -> None:
    (folder / "checks").mkdir()
    for name in ("score.py", "__main__.py"):
        (folder / "checks" / name).write_text("")
    commands = [{"command": "python -m checks.score"}, {"command": "python -m checks --all", "metric": "other"}]
    protected = read_task_file(change(folder, scorer=commands)).task.protected
    assert {"checks/score.py", "checks/__main__.py"} <= set(protected)


def test_the_modules_in_a_folder_that_a_scorer_names_are_protected_but_not_its_artifacts(folder: Path) -> None:
    for path in ("tests/unit/test_it.py", "tests/data.json", "tests/helper.py", "work/made.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    keys = {
        "artifacts": {"include": ["tests/helper.py"]},
        "runner": {"command": "python scripts/run_skill_eval.py work"},
        "scorer": {"command": "python scripts/score_skill.py tests"},
    }
    protected = read_task_file(change(folder, **keys)).task.protected
    assert protected == ("scripts/run_skill_eval.py", "scripts/score_skill.py", "task.yaml", "tests/unit/test_it.py")


def test_what_commands_write_is_not_protected(folder: Path) -> None:
    """It may be there from an earlier run by hand, and the command of a scorer often names it, too."""
    for path in ("work/out.json", "work/trace.json", "cases.jsonl"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("")
    keys = {
        "runner": {"command": "python scripts/run_skill_eval.py cases.jsonl work/trace.json --output work/out.json"},
        "scorer": {"command": "python scripts/score_skill.py work/out.json"},
    }
    scripts = ("scripts/run_skill_eval.py", "scripts/score_skill.py", "task.yaml")
    protected = read_task_file(change(folder, **keys)).task.protected
    assert protected == ("cases.jsonl", *scripts, "work/trace.json")
    protected = read_task_file(change(folder, **keys, outputs=["./work/**"])).task.protected
    assert protected == ("cases.jsonl", *scripts)


def test_a_problem_of_the_artifacts_is_reported_once(folder: Path) -> None:
    with pytest.raises(SetupError) as raised:
        build_run(read_config(change(folder, artifacts={"include": ["docs/*.md"]})))
    assert str(raised.value).count("correct artifacts.include") == 1


def test_a_shell_reads_the_command_only_if_asked(folder: Path) -> None:
    task = read_task_file(change(folder, runner={"command": "a | b", "shell": True})).task
    assert task.runner is not None
    assert task.runner.arguments == ("/bin/sh", "-c", "a | b")


def test_a_program_that_may_change_is_not_protected(folder: Path) -> None:
    file = change(folder, artifacts={"include": ["scripts/run_skill_eval.py"]})
    assert "scripts/run_skill_eval.py" not in read_task_file(file).task.protected


def test_a_judge_takes_its_rubrics_from_the_file_beside_the_task(folder: Path) -> None:
    (folder / "rubric.md").write_text("# Rubric\n\n- is clear\n- names an example\n")
    task = read_task_file(change(folder, judges=[{"model": "m"}, {"model": "n"}])).task
    assert [each.metric for each in task.judges] == ["judge", "judge_2"]
    assert task.judges[0].rubrics == ("is clear", "names an example")
    assert "rubric.md" in task.protected


def test_repeats_several_objectives_and_history_become_keys_of_the_run(folder: Path) -> None:
    objective = [{"primary_metric": "score"}, {"primary_metric": "runtime_seconds", "direction": "minimize"}]
    config = read_config(change(folder, repeats=3, parallel=2, objective=objective, models="m")).config
    assert config.evaluation.repeats == 3
    assert set(config.stages.models.values()) == {"m"}


def test_with_repeats_a_candidate_must_exceed_the_noise(folder: Path) -> None:
    sigmas = []
    for repeats in (1, 3):
        gain = read_config(change(folder, repeats=repeats)).config.acceptance.figure_gain
        assert gain is not None
        sigmas.append(gain.sigma)
    assert sigmas == [0, 1]
