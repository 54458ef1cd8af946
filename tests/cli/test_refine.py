from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.cli.conftest import Run
from tests.tasks.refine.foreign_runs import write_completion, write_json, write_run

pytestmark = pytest.mark.slow

AGENT = """
from promptiter.agents import agent

@agent(instruction="Answer.")
def bot(message):
    if "[REFINEMENT" in message:
        return "paris, with sources" if "paris" in message else "oslo"
    return "paris" if "France" in message else "oslo, with sources"

def judge(message):
    import json
    verdicts = [{"id": f"criterion_{at}", "reason": "looked", "passed": word in message}
                for at, word in enumerate(["with sources", "paris"], start=1)]
    return json.dumps({"verdicts": verdicts})
"""
CONFIG = """
agent: refined_bot:bot
cases: cases.jsonl
metrics: [{metric_name: contains, threshold: 1, criterion: {text: with sources}}]
"""
METRIC = """
def sources(case, run):
    return ("with sources" in run.output, "" if "with sources" in run.output else "it names no sources")
"""
CASES = [
    {"id": "capital of France", "input": "What is the capital of France?", "expected": "paris"},
    {"id": "norway", "input": "What is the capital of Norway?", "expected": "oslo"},
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose agent does better if it is asked again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refined_bot.py").write_text(AGENT + METRIC)
    (tmp_path / "promptiter.yaml").write_text(
        CONFIG.replace("contains", "refined_bot:sources").replace(", criterion: {text: with sources}", "")
    )
    (tmp_path / "cases.jsonl").write_bytes(b"".join(orjson.dumps(case) + b"\n" for case in CASES))
    sys.modules.pop("refined_bot", None)
    yield tmp_path
    sys.modules.pop("refined_bot", None)


@pytest.fixture
def finished(project: Path, run: Run) -> Path:
    run("run", "--max-rounds", "0", "--quiet")
    [folder] = (project / "runs").glob("20*")
    return folder


def test_the_weakest_case_of_a_run_is_refined(run: Run, finished: Path) -> None:
    printed = run("refine", "latest")
    home = next((finished / "refined").iterdir())
    assert home.name.startswith("capital-of-France-")
    assert "Refined: iteration 1 lowered the loss from 1.000 to 0.000." in printed
    assert "empty_gradient_midloop" in printed
    assert (home / "BEST" / "answer.md").read_text() == "paris, with sources"
    assert (home / "FINAL" / "answer.md").read_text() == "paris"
    assert "with a loss of 0.000" in printed
    assert sorted(path.name for path in home.iterdir()) == [
        ".BEST.lock",
        "BEST",
        "FINAL",
        "refinement_sessions",
        "refinements_work",
        "run_completion.json",
    ]


def test_a_case_can_be_chosen(run: Run, finished: Path) -> None:
    printed = run("refine", finished, "--case", "norway")
    assert "Nothing to refine." in printed
    assert not (finished / "refined" / "norway" / "BEST").exists()
    assert "has no case 'norwey' (did you mean 'norway'?)" in run("refine", finished, "--case", "norwey", code=2)


def test_the_result_can_be_json(run: Run, finished: Path) -> None:
    printed = json.loads(run("refine", "latest", "--json", "--iterations", "2"))
    assert (printed["improved"], printed["exit_code"]) == (True, 0)
    assert printed["session"]["seed_run_id"] == f"{finished.name}:capital of France"
    assert Path(printed["best"], "manifest.json").exists()
    assert json.loads(Path(printed["session_file"]).read_bytes())["best_iter"] == 1


def test_progress_is_on_standard_error(run: Run, finished: Path) -> None:
    printed = run("refine", finished, stream="err")
    assert "refine: the seed has a loss of 1.000: 1 defect, 1 metric below its threshold" in printed
    assert "refine: iteration 1 has a loss of 0.000 (-1.000)" in printed


def test_sessions_are_listed(run: Run, finished: Path) -> None:
    assert "There are no sessions yet." in run("refine", finished, "--sessions")
    run("refine", finished)
    printed = run("refine", finished, "--sessions")
    assert "iteration 1" in printed
    assert "empty_gradient_midloop" in printed
    [listed] = json.loads(run("refine", finished, "--sessions", "--json"))
    assert listed["chain"][0] == f"{finished.name}:capital of France"
    assert len(listed["chain"]) == 2


def test_a_run_that_is_not_better_exits_with_1(run: Run, finished: Path, project: Path) -> None:
    (project / "refined_bot.py").write_text(AGENT.replace('"paris, with', '"pari, without') + METRIC)
    sys.modules.pop("refined_bot")
    run("refine", finished, code=1)
    [file] = (finished / "refined").glob("*/refinement_sessions/*.json")
    assert json.loads(file.read_bytes())["best_iter"] == 0


STEP = """
import os, pathlib
text = pathlib.Path("input/report.md").read_text()
pathlib.Path(os.environ["PROMPTITER_REFINE_OUTPUT"], "report.md").write_text(text + " with sources, paris")
"""


def test_a_folder_with_a_rubric_is_refined_by_a_command(run: Run, project: Path) -> None:
    folder = project / "essay"
    folder.mkdir()
    (folder / "report.md").write_text("an essay")
    (folder / "rubric.md").write_text("# What counts\n\n- names its sources\n- mentions the capital\n")
    (folder / "task.md").write_text("Write an essay.")
    (project / "step.py").write_text(STEP)
    (project / "promptiter.yaml").write_text("judge: refined_bot:judge\n")
    before = sorted(path.name for path in project.iterdir())
    printed = run("refine", folder, "--command", f"{sys.executable} step.py", "--iterations", "1")
    assert "Refined: iteration 1 lowered the loss from 1.000 to 0.000." in printed
    assert (folder / "BEST" / "report.md").read_text() == "an essay with sources, paris"
    assert (folder / "report.md").read_text() == "an essay"
    assert not (folder / "BEST" / "rubric.md").exists()
    after = {path.name for path in project.iterdir()} - {"__pycache__"}
    assert after == set(before) - {"__pycache__"}


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        ("no-such-model", "no-such-model names no provider"),
        ("refined_bot:broken_judge", "the deliverable could not be measured"),
    ],
)
def test_a_judge_that_cannot_be_asked_exits_with_2(run: Run, project: Path, judge: str, problem: str) -> None:
    folder = project / "essay"
    folder.mkdir()
    (folder / "report.md").write_text("an essay")
    (folder / "rubric.md").write_text("- names its sources\n")
    (project / "refined_bot.py").write_text("def broken_judge(message: str) -> str:\n    return 'no verdict'\n")
    sys.modules.pop("refined_bot", None)
    stream = "err" if judge == "no-such-model" else "out"
    printed = run("refine", folder, "--judge", judge, "--command", "true", code=2, stream=stream)
    assert problem in printed
    assert not list(folder.glob("refinements_work/refine_*"))


def test_a_run_of_another_program_needs_an_agent_or_a_command(run: Run, tmp_path: Path) -> None:
    seed = write_run(tmp_path / "seed")
    assert "--agent module:attr, or give a --command" in run("refine", seed, code=2)
    assert "give one of them" in run("refine", seed, "--agent", "a:b", "--command", "true", code=2)
    assert "give a RUN, or --target" in run("refine", code=2)
    assert "not in PATH" in run("refine", seed, "--command", "no-such-program-here", code=2)


def test_options_that_cannot_be_used_are_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seed = write_run(tmp_path / "seed")
    assert "close its quotes" in run("refine", seed, "--command", "python 'step.py", code=2)
    assert "--command is empty" in run("refine", seed, "--command", " ", code=2)
    assert "this result has no cases" in run("refine", seed, "--command", "true", "--case", "a", code=2)
    (tmp_path / "file").touch()
    printed = run("refine", seed, "--command", "true", "--work-dir", tmp_path / "file" / "work", code=2)
    assert "cannot be created" in printed
    printed = run("refine", seed, "--command", "true", "--work-dir", seed / "FINAL" / "work", code=2)
    assert "is among the files that are refined; name a folder elsewhere" in printed
    (tmp_path / "rubric.md").write_text("- It is good.")
    printed = run("refine", seed, "--command", "true", "--rubric", tmp_path / "rubric.md", code=2)
    assert "give --judge MODEL" in printed
    for wrong in (tmp_path / "missing.md", tmp_path):
        printed = run("refine", seed, "--command", "true", "--rubric", wrong, code=2)
        assert f"the rubric {str(wrong)!r} cannot be read" in printed
    rubric = ("--rubric", tmp_path / "rubric.md", "--judge", "simulated")
    printed = run("refine", seed / "FINAL", "--command", "true", *rubric, "--work-dir", seed / "FINAL" / "w", code=2)
    assert "is among the files that are refined" in printed
    shutil.rmtree(seed / "FINAL" / "refinements_work")
    printed = run("refine", seed / "FINAL", "--command", "true", code=2)
    assert "is not a finished result: it has no run_completion.json and no rubric.md" in printed
    write_run(tmp_path / "study" / "tasks" / "intro" / "runs" / "r1", run_id="r1")
    assert "has no task 'x'; its tasks are intro" in run("refine", "--target", "study:x", "--command", "true", code=2)
    target = ("--target", "study:intro", "--command", "true", "--work-dir", tmp_path / "work")
    assert "must be below" in run("refine", *target, code=2)
    assert not (seed / "refinement_sessions").exists()


def test_a_run_has_its_own_agent_and_metrics(run: Run, finished: Path) -> None:
    for option in ("--agent", "--rubric", "--task", "--judge", "--config"):
        assert f"{option} is for other results: the run" in run("refine", finished, option, "other", code=2)


def test_an_agent_that_has_changed_is_refused(run: Run, finished: Path, project: Path) -> None:
    (project / "refined_bot.py").write_text(AGENT.replace("def bot", "def other") + METRIC)
    sys.modules.pop("refined_bot", None)
    config = project / "promptiter.yaml"
    config.write_text(config.read_text().replace("refined_bot:bot", "refined_bot:other"))
    printed = run("refine", finished, code=2)
    assert f"the agent has changed since the run {finished.name!r} (bot#instruction, other#instruction)" in printed
    assert "start a new run" in printed


@pytest.mark.parametrize("problem", ["missing", "without deliverable", "not a run"])
def test_a_seed_that_cannot_be_read_exits_with_2(run: Run, tmp_path: Path, problem: str) -> None:
    seed = tmp_path / "seed"
    if problem != "missing":
        seed.mkdir()
    if problem == "without deliverable":
        write_completion(seed)
    run("refine", seed, "--command", "true", code=2)
    assert not (seed / "refinement_sessions").exists()


def test_an_empty_gradient_exits_with_0(run: Run, tmp_path: Path) -> None:
    seed = write_run(tmp_path / "seed")
    (seed / "iterations" / "1" / "critique.json").unlink()
    printed = run("refine", seed, "--command", "false")
    assert "nothing to refine" in printed


def test_mixed_models_warn(run: Run, tmp_path: Path) -> None:
    seed = write_run(tmp_path / "seed")
    (seed / "iterations" / "1" / "critique.json").unlink()
    given = ("--model", "a", "--tier-low", "b:c")
    printed = run("refine", seed, "--command", "false", *given, stream="err")
    assert "refinement.mixed_body: tier_* set; ignoring legacy model/worker_model" in printed


def test_paths_and_errors_are_printed_line_by_line(run: Run, tmp_path: Path) -> None:
    seed = write_run(tmp_path / ("long" * 30))
    (tmp_path / "step.py").write_text("import sys\nsys.exit('one\\ntwo')")
    command = f"{sys.executable} {tmp_path / 'step.py'}"
    printed = run("refine", seed, "--command", command, code=1, stream="out").splitlines()
    assert "Not refined: no iteration was finished." in printed
    assert "stopped  error:CommandError: an iteration failed" in printed
    assert printed[printed.index("         two") - 1].endswith("ended with exit code 1: one")
    assert [line.startswith("session  ") for line in printed if line.endswith(".json")] == [True]


def test_a_command_that_nothing_measures_is_explained(run: Run, tmp_path: Path) -> None:
    seed = write_run(tmp_path / "seed")
    printed = run("refine", seed, "--command", "echo better", code=1, stream="out")
    assert "give --rubric FILE, or let the command" in printed
    assert "no_prior_deliverable" in run("refine", seed, "--command", "true", code=1, stream="out")


SCRIPT = """
import json, os, sys, urllib.request

def ask(prompt, message):
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": message}]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "own", "messages": messages}).encode(),
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

draft = ask(SENT, sys.stdin.read())
print(ask("Say it again.", ask("Say it again.", draft)))
"""
SCRIPT_CONFIG = """
agent: {command: [python, script.py, "{file:plan}"], prompts: {plan: plan.md}}
cases: cases.jsonl
metrics: [{metric_name: "refined_bot:sources"}]
models: {own: {model: "refined_bot:echo"}}
"""
ECHO = """
def echo(messages):
    prompt, message = (each["content"] for each in messages)
    if prompt == "Say it again.":
        return "paris" if "[REFINEMENT" in message else message
    return "paris, with sources" if "[REFINEMENT" in message else "paris"
"""


@pytest.mark.parametrize("sent", ["open(sys.argv[1]).read()", "'a prompt of its own'"], ids=["known", "unknown"])
def test_the_first_call_of_a_script_is_shown_what_was_wrong(run: Run, project: Path, sent: str) -> None:
    (project / "promptiter.yaml").write_text(SCRIPT_CONFIG)
    (project / "refined_bot.py").write_text(METRIC + ECHO)
    (project / "script.py").write_text(SCRIPT.replace("SENT", sent))
    (project / "plan.md").write_text("You plan the answer.")
    run("run", "--max-rounds", "0", "--quiet")
    printed = run("refine", "latest", stream="err")
    assert "refine: the case is 'capital of France'" in printed
    assert "refine: iteration 1 has a loss of 0.000 (-1.000)" in printed


REPORT = """
import json, os, pathlib
run_dir = pathlib.Path(os.environ["PROMPTITER_REFINE_RUN_DIR"])
pathlib.Path(os.environ["PROMPTITER_REFINE_OUTPUT"], "report.md").write_text("better")
models = {"manager": os.environ["PROMPTITER_REFINE_MANAGER_MODEL"]}
(run_dir / "run_completion.json").write_text(json.dumps({"run_id": run_dir.name, "models": models}))
"""


def test_a_target_keeps_its_sessions_with_the_task(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "experiments" / "report" / "tasks" / "intro"
    write_run(home / "runs" / "r1", severity="low", run_id="r1")
    write_run(home / "runs" / "r2", run_id="r2")
    write_json(home / "BEST" / "manifest.json", {"best_run_id": "r2"})
    (tmp_path / "step.py").write_text(REPORT)
    arguments = ("--target", "report:intro", "--command", f"{sys.executable} step.py", "--tier-high", "strong:")
    printed = json.loads(run("refine", *arguments, "--iterations", "1", "--json"))
    assert printed["session"]["seed_run_id"] == "r2"
    assert (
        printed["session"]["iterations"][0] | {"tier": "high", "model_manager": "strong"}
        == (printed["session"]["iterations"][0])
    )
    files = sorted(path.name for path in (home / "refinements").iterdir())
    assert [name[:8] for name in files] == ["session.", "session_"]
    assert (home / "BEST" / "report.md").read_text() == "better"
    again = json.loads(run("refine", *arguments, "--iterations", "1", "--json"))
    assert again["session"]["stop_reason"] == "empty_gradient"
    assert again["session"]["seed_run_id"] == printed["session"]["iterations"][0]["run_id"]
    assert "has no task 'intr' (did you mean 'intro'?)" in run("refine", "--target", "report:intr", code=2)
    assert "must be EXPERIMENT:TASK" in run("refine", "--target", "report", code=2)
    assert "must be EXPERIMENT:TASK" in run("refine", "--target", "report:../x", code=2)


SLOW_STEP = """
import os, pathlib, time
(pathlib.Path(os.environ["PROMPTITER_REFINE_RUN_DIR"]).parents[2] / "pid").write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_refinement_leaves_its_session_and_no_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    seed = write_run(tmp_path / "seed")
    (tmp_path / "step.py").write_text(SLOW_STEP)
    arguments = ("refine", str(seed), "--command", f"{sys.executable} step.py")
    with subprocess.Popen(
        [sys.executable, "-m", "promptiter", *arguments], cwd=tmp_path, stderr=subprocess.PIPE
    ) as process:
        pid = wait_for_file(seed)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    [file] = (seed / "refinement_sessions").iterdir()
    stored = json.loads(file.read_bytes())
    assert stored["stop_reason"] == (None if number == signal.SIGKILL else "error:CancelledError")
    assert (stored["completed_at"] is None) == (number == signal.SIGKILL)
    assert not (seed / "BEST").exists()
    wait_for_end(pid)


def wait_for_file(seed: Path) -> int:
    """The process id that the command of the first iteration has written."""
    for _ in range(600):
        found = [file.read_text() for file in seed.glob("refinements_work/*/iter_1/pid")]
        if found and found[0]:
            return int(found[0])
        time.sleep(0.1)
    raise AssertionError("the command did not start")


def wait_for_end(pid: int) -> None:
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the command still runs")
