"""A candidate is run and scored in a private copy: figures, crashes, tampering, hidden files, traces and judges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from promptiter.agents.base import RunContext
from promptiter.config.task_yaml.document import read_task_file
from promptiter.config.task_yaml.parts import build_file_scorer
from promptiter.errors import CommandError, SetupError
from promptiter.evaluation.scorer import ScoredProfile
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.sandbox import find_sandbox
from promptiter.tasks.files.file_scorer import FileScorer
from promptiter.tasks.files.workspace import name_surface
from traces import ExecutionTrace, Snapshot, Step
from traces.documents import to_json

pytestmark = pytest.mark.slow

CONTEXT = RunContext(case_id="scorer")
SCORE = 'import json, pathlib; print(json.dumps({"score": len(pathlib.Path("a.md").read_text()) / 100}))'


@pytest.fixture(autouse=True)
def python_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


def make(folder: Path, *, script: str = "", score: str = SCORE, **keys: Any) -> FileScorer:
    """A task whose only artifact is a.md, with these scripts."""
    folder.mkdir(exist_ok=True)
    document = {"id": "t", "artifacts": {"include": ["a.md"]}, "scorer": {"command": "python score.py"}, **keys}
    files = {"a.md": "# A\n", "score.py": score}
    if script:
        document = {"runner": {"command": "python run.py"}, **document}
        files["run.py"] = script
    for name, text in files.items():
        if not (folder / name).exists():
            (folder / name).write_text(text)
    (folder / "task.yaml").write_text(yaml.safe_dump(document))
    return build_file_scorer(read_task_file(folder))


async def measure(scorer: FileScorer, text: str | None = None, *, repeat: int = 0) -> ScoredProfile:
    values = {} if text is None else {name_surface("a.md"): text}
    profile = Profile.of(scorer.workspace.structure, values)
    with Gateway().active():
        return await scorer.score(profile, RunContext(case_id="scorer", repeat=repeat))


async def test_the_candidate_is_scored_and_the_files_of_the_user_stay(tmp_path: Path) -> None:
    scorer = make(tmp_path / "w", script="import pathlib; pathlib.Path('new').write_text('x'); print('ran')")
    found = await measure(scorer, "x" * 50)
    assert (found.scores[0].metric, found.scores[0].value) == ("score", 0.5)
    assert dict(found.figures) == {"score": 0.5, "tampered_files": 0.0}
    assert "ran" in found.output
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["a.md", "run.py", "score.py", "task.yaml"]
    assert (tmp_path / "w" / "a.md").read_text() == "# A\n"


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("import sys; sys.exit('no such rule' if len(open('a.md').read()) > 9 else 0)", "exit code 1: no such rule"),
        ("import time; time.sleep(60 if len(open('a.md').read()) > 9 else 0)", "did not end in 3 s"),
        ("print('x' * (5000 if len(open('a.md').read()) > 9 else 1))", "more than 1,000 bytes to standard output"),
    ],
)
async def test_a_crash_of_the_runner_is_an_error_of_the_candidate(tmp_path: Path, runner: str, message: str) -> None:
    given = {"command": "python run.py", "timeout_seconds": 3, "max_output_bytes": 1000}
    scorer = make(tmp_path / "w", script=runner, runner=given)
    with pytest.raises(CommandError, match=f"the runner: .*{message}"):
        await measure(scorer, "a longer text")


async def test_a_baseline_that_crashes_is_a_mistake_in_the_task(tmp_path: Path) -> None:
    scorer = make(tmp_path / "w", score="print('no json')")
    with pytest.raises(SetupError, match=r"the files as they are cannot be measured: .*print a JSON object"):
        await measure(scorer)


@pytest.mark.parametrize("kind", ["auto", "none"])
async def test_a_command_that_always_writes_a_file_that_it_names_is_a_mistake_in_the_task(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out.txt").write_text("from an earlier run, by hand")
    keys: dict[str, Any] = {"runner": {"command": "python run.py out.txt"}, "sandbox": {"kind": kind}}
    script = "import sys, time; open(sys.argv[1], 'w').write(str(time.time()))"
    with pytest.raises(SetupError, match=r"'?out\.txt'?,? .* protected.*; if commands write it, list it in outputs"):
        await measure(make(tmp_path / "w", script=script, **keys))
    found = await measure(make(tmp_path / "w", script=script, **keys, outputs=["out.txt"]))
    assert found.figures["tampered_files"] == 0


async def test_a_figure_that_no_scorer_gives_is_a_mistake_with_the_nearest(tmp_path: Path) -> None:
    score = 'print(\'{"score": 1, "metrics": {"violations": 1}}\')'
    scorer = make(tmp_path / "w", score=score, constraints=[{"metric": "violation", "op": "<=", "value": 0}])
    with pytest.raises(SetupError, match=r"'violation', which no scorer gives .did you mean 'violations'"):
        await measure(scorer)


async def test_the_figures_of_several_scorers_are_joined_and_must_have_different_names(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "lint.py").write_text("print('{\"score\": 3}')")
    scorers = [{"command": "python score.py", "metric": "score"}, {"command": "python lint.py", "metric": "warnings"}]
    found = await measure(make(tmp_path / "w", scorer=scorers))
    assert found.figures["warnings"] == 3
    with pytest.raises(SetupError, match="'score' is given twice"):
        await measure(make(tmp_path / "w", scorer=[scorers[0], {**scorers[1], "metric": "score"}]))


async def test_the_primary_metric_may_be_one_of_the_metrics_of_a_scorer(tmp_path: Path) -> None:
    score = 'print(\'{"score": 0.5, "metrics": {"coverage": 0.25}}\')'
    found = await measure(make(tmp_path / "w", score=score, objective={"primary_metric": "coverage"}))
    assert found.figures == {"coverage": 0.25, "score": 0.5, "tampered_files": 0}
    assert [(each.metric, each.value) for each in found.scores] == [("coverage", 0.25)]


async def test_a_python_function_can_score(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    code = (
        "def score(folder, output):\n    print('noise')\n    return {'score': len(output) / 10, 'metrics': {'n': 2}}\n"
    )
    (tmp_path / "w" / "mine.py").write_text(code)
    scorer = make(tmp_path / "w", script="print('four', end='')", scorer={"type": "python", "function": "mine:score"})
    found = await measure(scorer)
    assert (found.figures["score"], found.figures["n"]) == (0.4, 2)
    assert "mine.py" in scorer.task.protected


async def test_the_runtime_is_a_figure_if_the_task_names_it(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"policy": {"tie_breakers": [{"lower": "runtime_seconds"}]}}
    found = await measure(make(tmp_path / "w", script="pass", **keys))
    assert found.figures["runtime_seconds"] > 0
    assert "runtime_seconds" not in (await measure(make(tmp_path / "v", script="pass"))).figures


async def test_variables_are_passed_by_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "x")
    score = "import os; print('{\"score\": %d}' % (('MY_SECRET' in os.environ) + 2 * (os.environ.get('MODE') == 'y')))"
    assert (await measure(make(tmp_path / "w", score=score, environment={"MODE": "y"}))).figures["score"] == 2
    inherit = ["PATH", "HOME", "MY_SECRET"]
    assert (await measure(make(tmp_path / "v", score=score, inherit=inherit))).figures["score"] == 1


async def test_the_key_of_the_endpoint_is_not_in_the_output(tmp_path: Path) -> None:
    scorer = make(tmp_path / "w", script="import os; print('key', os.environ['OPENAI_API_KEY'])")
    assert "key ***" in (await measure(scorer)).output


async def test_a_module_beside_the_scorer_is_tampering_and_is_named(tmp_path: Path) -> None:
    runner = "import pathlib\nif len(open('a.md').read()) > 9: pathlib.Path('json.py').write_text('x = 1')"
    scorer = make(tmp_path / "w", script=runner, score="print('{\"score\": 1}')")
    found = await measure(scorer, "a longer text")
    assert found.figures["tampered_files"] == 1
    assert "the commands changed protected files: json.py" in found.scores[0].reason


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        ("os.mkdir('json'); open('json/__init__.py', 'w').write(FAKE)", "json/__init__.py"),
        ("open('lib/read.py', 'w').write(FAKE)", "lib/read.py"),
        ("open('a.md', 'w').write('x' * 90)", "a.md"),
        ("os.remove('a.md'); os.symlink('score.py', 'a.md')", "a.md"),
        ("os.remove('a.md'); os.mkfifo('a.md')", "a.md"),
        ("open('text', 'w').write(FAKE); os.symlink('text', 'json.py')", "json.py"),
        ("os.makedirs('out/in'); open('out/in/__init__.py', 'w').write(FAKE); os.symlink('out/in', 'json')", "json"),
        ("os.remove('lib/read.py')", "lib/read.py"),
        ("os.mkdir('new'); open('new/conftest.py', 'w').write(FAKE)", "new/conftest.py"),
    ],
)
async def test_a_runner_that_fools_the_scorer_is_found(tmp_path: Path, attack: str, named: str) -> None:
    folder = tmp_path / "w"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "read.py").write_text("")
    runner = f"import os\nFAKE = 'def dumps(x): return 1'\nif len(open('a.md').read()) > 9: {attack}"
    scorer = make(folder, script=runner, score="print('{\"score\": 1}')")
    found = await measure(scorer, "a longer text")
    assert found.figures["tampered_files"] == 1
    assert f"the commands changed protected files: {named}" in found.scores[0].reason


@pytest.mark.parametrize("command", ["python -m checks.score", "checks.score:measure"])
async def test_modules_where_a_module_is_started_are_found(tmp_path: Path, command: str) -> None:
    """Python looks for modules in the working directory first, before the folder of the scorer."""
    folder = tmp_path / "w"
    (folder / "checks").mkdir(parents=True)
    (folder / "checks" / "score.py").write_text(
        "def measure(folder):\n    return 1\nif __name__ == '__main__':\n    print('{\"score\": 1}')\n"
    )
    is_function = ":" in command
    keys = {"type": "python", "function": command} if is_function else {"command": command}
    (folder / "checks" / "run.py").write_text("if len(open('a.md').read()) > 9: open('colorsys.py', 'w').write('')")
    found = await measure(make(folder, runner={"command": "python checks/run.py"}, scorer=keys), "a longer text")
    assert "the commands changed protected files: colorsys.py" in found.scores[0].reason


async def test_a_scorer_that_fails_after_the_runner_changed_its_files_names_them(tmp_path: Path) -> None:
    runner = "import os\nif len(open('a.md').read()) > 9: os.remove('a.md')"
    scorer = make(tmp_path / "w", script=runner, score="print('{\"score\": %d}' % len(open('a.md').read()))")
    with pytest.raises(CommandError, match=r"^the runner changed a\.md; the scorer 'python score\.py': .*exit code 1"):
        await measure(scorer, "a longer text")


async def test_a_runner_may_write_an_artifact_again_and_modules_elsewhere(tmp_path: Path) -> None:
    runner = (
        "import os\nopen('a.md', 'r+').write(open('a.md').read())\nos.mkdir('out')\nopen('out/x.py', 'w').write('')"
    )
    found = await measure(make(tmp_path / "w", script=runner), "a longer text")
    assert found.figures["tampered_files"] == 0


async def test_a_scorer_runs_its_own_sources_not_what_the_runner_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "lib.py").write_text("SCORE = 0.25\n")
    runner = (
        "import importlib.util, os, py_compile\n"
        "open('/tmp/fake.py', 'w').write('SCORE = 1')\n"
        "mode = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
        "py_compile.compile('/tmp/fake.py', importlib.util.cache_from_source('lib.py'), invalidation_mode=mode)\n"
    )
    scorer = make(folder, script=runner, score="import lib; print('{\"score\": %s}' % lib.SCORE)")
    found = await measure(scorer)
    assert dict(found.figures) == {"score": 0.25, "tampered_files": 0}


async def test_a_protected_scorer_cannot_be_changed(tmp_path: Path) -> None:
    runner = "import pathlib\nif len(open('a.md').read()) > 9: pathlib.Path('score.py').write_text('print(1)')"
    scorer = make(tmp_path / "w", script=runner, score="print('{\"score\": 0.25}')")
    try:
        found = await measure(scorer, "a longer text")
    except CommandError as error:
        assert "score.py" in str(error)  # noqa: PT017 - either it cannot be written, or the change is found
    else:
        assert found.figures["score"] == 0.25 or found.figures["tampered_files"] > 0


async def test_the_hold_out_is_hidden_from_the_runner_and_scored_by_case(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    (folder / "hidden").mkdir(parents=True)
    (folder / "hidden" / "answers.json").write_text('{"x": 0.5, "y": 1}')
    runner = (
        "import pathlib, sys\nfound = [p for p in pathlib.Path('hidden').rglob('*') if p.is_file() and p.read_text()] "
        "if pathlib.Path('hidden').is_dir() else []\nsys.exit(f'sees {found}' if found else 0)"
    )
    (folder / "hold.py").write_text(
        "import json; print(json.dumps({'score': 0, 'cases': json.load(open('hidden/answers.json'))}))"
    )
    holdout = {"command": "python hold.py", "cases": ["x", "y"], "files": ["hidden"]}
    scorer = make(folder, script=runner, holdout=holdout)
    profile = Profile.baseline(scorer.workspace.structure)
    with Gateway().active():
        await scorer.score(profile, CONTEXT)
        found = [await scorer.score_holdout(profile, CONTEXT, case) for case in ("x", "y")]
        with pytest.raises(CommandError, match="no case 'z'"):
            await scorer.score_holdout(profile, CONTEXT, "z")
    assert [each.scores[0].value for each in found] == [0.5, 1.0]


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A workspace in a repository, with a hold-out that was compiled and committed."""
    folder = tmp_path / "repository" / "w"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "hold.py").write_text("import json; print(json.dumps({'score': 1}))  # SECRET")
    (folder / "__pycache__" / "hold.cpython-311.pyc").write_text("SECRET")
    git = ("git", "-C", str(folder.parent), "-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *command], check=True)
    return folder


@pytest.mark.parametrize("kind", ["namespaces", "landlock"])
async def test_nothing_tells_the_runner_what_is_in_the_hold_out(
    committed: Path, kind: Literal["namespaces", "landlock"]
) -> None:
    """Its script, what Python compiled from it, and the history of the repository above the workspace."""
    folder = committed
    try:
        find_sandbox(kind)
    except SetupError as error:
        pytest.skip(str(error))
    runner = (
        "import glob, pathlib, subprocess, sys\n"
        f"folder = {str(folder)!r}\n"
        "files = [*glob.glob('**/*', recursive=True), *glob.glob(folder + '/**/*', recursive=True)]\n"
        "def read(file):\n"
        "    try: return pathlib.Path(file).read_bytes()\n"
        "    except OSError: return b''\n"
        "found = [each for each in files if b'SECRET' in read(each) and not each.endswith('run.py')]\n"
        "for start in ('.', folder):\n"
        "    shown = subprocess.run(['git', '-C', start, 'show', 'HEAD:./hold.py'], capture_output=True)\n"
        "    found += [shown.stdout] if b'SECRET' in shown.stdout else []\n"
        "sys.exit(f'sees {found}' if found else 0)"
    )
    scorer = make(folder, script=runner, holdout={"command": "python hold.py"}, sandbox={"kind": kind})
    assert scorer.task.holdout is not None
    assert scorer.task.holdout.files == ("hold.py",)
    profile = Profile.baseline(scorer.workspace.structure)
    with Gateway().active():
        await scorer.score(profile, CONTEXT)
        assert (await scorer.score_holdout(profile, CONTEXT, "holdout")).scores[0].value == 1.0


def test_scripts_that_others_need_are_not_hidden(tmp_path: Path) -> None:
    scorer = make(tmp_path / "w", holdout={"command": "python score.py --all hold.json"})
    (tmp_path / "w" / "hold.json").touch()
    scorer = build_file_scorer(read_task_file(tmp_path / "w"))
    assert scorer.task.holdout is not None
    assert scorer.task.holdout.files == ("hold.json",)


async def test_the_traces_of_the_runner_are_steps_before_the_measurement(tmp_path: Path) -> None:
    trace = ExecutionTrace(
        id="t", steps=(Step(id="plan", node_id="planner", input=Snapshot("q"), output=Snapshot("a"), start_ns=5),)
    )
    runner = f"import pathlib; pathlib.Path('out.jsonl').write_bytes({to_json(trace)!r} + b'\\n')"
    make(tmp_path / "w", script=runner)
    document = yaml.safe_load((tmp_path / "w" / "task.yaml").read_text())
    document["runner"]["traces"] = ["*.jsonl"]
    (tmp_path / "w" / "task.yaml").write_text(yaml.safe_dump(document))
    scorer = build_file_scorer(read_task_file(tmp_path / "w"))
    [found] = (await measure(scorer)).traces
    assert [step.id for step in found.steps] == ["run0/plan", "measure"]
    assert found.steps[1].predecessors == ("run0/plan",)
    assert {step.node_id for step in found.steps} == {"workspace"}
    assert all(name_surface("a.md") in (step.surface_reads or {}) for step in found.steps)


async def test_what_was_measured_once_is_not_measured_again(tmp_path: Path) -> None:
    score = "import json, random; print(json.dumps({'score': random.random()}))"
    scorer = make(tmp_path / "w", score=score)
    profile = Profile.baseline(scorer.workspace.structure)
    with Gateway().active():
        first, again = [await scorer.score(profile, CONTEXT) for _ in range(2)]
        other = await scorer.score(profile, RunContext(case_id="scorer", repeat=1))
    assert first.figures == again.figures
    assert other.figures != first.figures


def judge(messages: Any) -> str:
    """A judge that wants an example."""
    passed = "example" in str(messages[-1].content if hasattr(messages[-1], "content") else messages).lower()
    return f'{{"verdicts": [{{"id": "1", "reason": "there is none", "passed": {str(passed).lower()}}}]}}'


async def test_a_judge_gives_a_figure_and_a_finding(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "rubric.md").write_text("- gives one\n")
    keys: dict[str, Any] = {"judges": [{"model": f"{__name__}:judge"}], "objective": {"primary_metric": "judge"}}
    scorer = make(tmp_path / "w", **keys)
    assert (await measure(scorer)).figures["judge"] == 0.0
    assert (await measure(scorer, "For example: this.")).figures["judge"] == 1.0


@pytest.mark.parametrize("kind", ["namespaces", "landlock", "none"])
async def test_every_sandbox_gives_the_same_measurement(tmp_path: Path, kind: str) -> None:
    """The place of a copy differs between kinds, and is not in what is recorded."""
    runner = "import os; print('in', os.getcwd()); open('out.txt', 'w').write('x')"
    scorer = make(tmp_path / "w", script=runner, sandbox={"kind": kind})
    try:
        found = await measure(scorer, "x" * 50)
    except SetupError as error:
        if kind in str(error) and "this machine has no sandbox" in str(error):
            pytest.skip(str(error))
        raise
    assert dict(found.figures) == {"score": 0.5, "tampered_files": 0.0}
    assert found.output.startswith("runner:\nin .\n")
    assert not (tmp_path / "w" / "out.txt").exists()


async def test_without_a_sandbox_a_change_of_the_users_files_is_tampering(tmp_path: Path) -> None:
    place = tmp_path / "w" / "note.txt"
    runner = f"import pathlib\nif len(open('a.md').read()) > 9: pathlib.Path({str(place)!r}).write_text('x')"
    scorer = make(tmp_path / "w", script=runner, sandbox={"kind": "none"})
    found = await measure(scorer, "a longer text")
    assert found.figures["tampered_files"] == 1
    assert "note.txt (not in the copy)" in found.scores[0].reason
