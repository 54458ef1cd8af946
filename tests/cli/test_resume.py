"""The commands for existing runs: `resume`, `rerun` and `runs`, on the starter's support desk."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from promptiter.api import load_run, resume_run
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.manager import ConfiguredApp, EngineApp, Manager
from promptiter.runs.directory import RunDirectory
from promptiter.runs.event_file import EventFile
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.lock import RunLock
from promptiter.testing.small_run import SmallRun
from tests.cli.conftest import Run
from tests.worlds import desk as desk_world
from tests.worlds.results import drop_measured, forget_final_tests, read_unmeasured
from traces.model import Json

pytestmark = pytest.mark.slow

HEADLINE = "✓ Improved on these 8 cases: mean score 0.500 → 1.000 (same in every repeat)"


def only_run(desk: Path) -> Path:
    [path] = (desk / "runs").glob("[!.]*")
    return path


def cut(path: Path, events: int) -> None:
    """Leave the files of a process that was killed after this many events."""
    journal = path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:events]))
    (path / "result.json").unlink()
    forget_final_tests(path.parent)


def list_as_json(run: Run) -> Json:
    return orjson.loads(run("runs", "--json"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_killed_run_is_listed_as_interrupted_and_resumes_to_the_same_end(run: Run, desk: Path) -> None:
    shown = run("run")
    path = only_run(desk)
    whole = read_unmeasured(desk / "runs")
    cut(path, 40)
    assert [each["status"] for each in list_as_json(run)] == ["interrupted"]
    assert f"1 run can be resumed: promptiter resume runs/{path.name}" in run("runs")
    again = run("resume", path.name)
    assert HEADLINE in again.splitlines()
    assert HEADLINE in shown.splitlines()
    assert read_unmeasured(desk / "runs") == whole
    [one] = list_as_json(run)
    assert (one["status"], one["verdict"], one["rounds"]) == ("succeeded", "improved_on_validation", 1)
    assert (one["baseline"], one["best"], one["can_resume"]) == (0.5, 1.0, False)


def test_a_run_is_found_by_path_by_id_by_a_part_of_it_or_as_the_latest(run: Run, finished_run: Path) -> None:
    for named in (["latest"], [str(finished_run)], [finished_run.name], [finished_run.name[-8:]], []):
        assert run("resume", *named, "--quiet").startswith("support_desk: Improved")


def test_an_unknown_run_is_reported_with_the_nearest(run: Run, finished_run: Path) -> None:
    name = finished_run.name
    wrong = f"{name[:-1]}x"
    assert f"there is no run '{wrong}'" in run("resume", wrong, code=2)
    assert f"did you mean '{name}'?" in run("resume", wrong, code=2)


def test_a_folder_without_runs_is_reported(run: Run, desk: Path) -> None:
    assert run("runs") == f"no runs in {desk}/runs\n"
    assert f"there are no runs in '{desk}/runs'" in run("resume", code=2)


def test_a_folder_without_runs_is_reported_by_the_name_it_was_given(run: Run, desk: Path) -> None:
    (desk / "elsewhere" / "runs").mkdir(parents=True)
    for command in ("resume", "show"):
        assert "there are no runs in 'elsewhere/runs'" in run(command, "elsewhere/runs", code=2)
        assert "there is no run 'elsewhere/none' in" in run(command, "elsewhere/none", code=2)


def test_the_folder_with_the_runs_is_given_as_in_other_commands(run: Run, finished_run: Path) -> None:
    listed = run("runs", finished_run.parent)
    assert finished_run.name in listed
    assert run("runs", "--runs", finished_run.parent) == listed
    assert "both name a place; give one of them" in run("runs", "runs", "--runs", "runs", code=2)


def test_a_finished_run_that_cannot_be_built_again_is_shown(run: Run, tmp_path: Path) -> None:
    engine = desk_world.engine(gateway=Gateway(models={"scripted": desk_world.model()}))
    request = desk_world.request(max_rounds=0)
    path = RunDirectory.begin(tmp_path, engine, request).path
    assert "was started from Python, and cannot be built again" in run("resume", path, code=2)
    RunDirectory.resume(path, engine, request).run_sync()
    assert run("resume", path, "--quiet").startswith("desk: Baseline: mean score 0.000")
    assert orjson.loads(run("resume", path, "--json"))["path"] == str(path)


@pytest.mark.parametrize(
    ("file", "old", "new", "change"),
    [
        ("promptiter.yaml", "max_rounds: 4", "max_rounds: 5", "max_rounds was 4 and is now 5"),
        ("data/train.jsonl", "Porto", "Faro", "train: case 'lamp' was changed"),
        ("metrics.json", "known_fields", "other_fields", "the file 'metrics' was changed"),
        ("agent.py", "You lead", "You run", "the agent's own value of surface 'lead#instruction' was edited"),
    ],
)
def test_a_run_with_changed_inputs_is_refused_and_the_change_named(
    file: str, old: str, new: str, change: str, run: Run, desk: Path, finished_run: Path
) -> None:
    cut(finished_run, 40)
    edit(desk / file, old, new)
    sys.modules.pop("agent", None)
    refused = run("resume", code=2)
    assert "cannot be resumed, its inputs have changed:" in refused
    assert f"  - {change}" in refused
    edit(desk / file, new, old)
    sys.modules.pop("agent", None)
    assert run("resume", "--quiet").startswith("support_desk: Improved")


def test_options_of_the_first_command_hold_when_a_run_is_resumed_and_others_may_change(run: Run, desk: Path) -> None:
    run("run", "--max-rounds", "2", "--seed", "3", "--quiet")
    cut(only_run(desk), 20)
    found = orjson.loads(run("resume", "--concurrency", "1", "--no-quiet", "--json"))
    assert found["verdict"] == "improved_on_validation"
    header = orjson.loads((only_run(desk) / "run.json").read_bytes())
    assert header["configuration"]["settings"] == {"max_rounds": 2, "seed": 3, "quiet": True}
    assert header["request"]["max_rounds"] == 2


def test_a_moved_project_can_be_resumed(
    run: Run, desk: Path, finished_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cut(finished_run, 40)
    moved = tmp_path_factory.mktemp("moved") / "project"
    desk.rename(moved)
    os.chdir(moved)
    sys.modules.pop("agent", None)
    assert run("resume", "--quiet").startswith("support_desk: Improved")
    desk.mkdir()


def test_a_run_locked_by_another_process_is_refused_and_listed_as_running(run: Run, finished_run: Path) -> None:
    cut(finished_run, 40)
    with RunLock(finished_run):
        assert f"locked by process {os.getpid()}" in run("resume", code=2)
        [one] = list_as_json(run)
        assert (one["status"], one["holder"]["pid"], one["can_resume"]) == ("running", os.getpid(), False)


def test_rerun_starts_a_new_run_with_the_same_settings(run: Run, desk: Path) -> None:
    run("run", "--max-rounds", "0", "--quiet")
    first = only_run(desk)
    edit(desk / "promptiter.yaml", "max_rounds: 4", "max_rounds: 3")
    assert "● Baseline: mean score 0.500" in run("rerun", first.name).splitlines()  # not as quiet as the first command
    [second] = [path for path in (desk / "runs").glob("[!.]*") if path != first]
    headers = [orjson.loads((path / "run.json").read_bytes()) for path in (first, second)]
    assert headers[0]["request"] == headers[1]["request"]
    assert headers[1]["request"]["max_rounds"] == 0


def test_rerun_takes_secrets_from_the_configuration(run: Run, desk: Path) -> None:
    config = desk / "promptiter.yaml"
    edit(config, "  simulated:\n", "  openai/mine:\n    api_key: canary-of-mine\n  simulated:\n")
    run("run", "--max-rounds", "0", "--quiet")
    assert b"canary-of-mine" not in b"".join(path.read_bytes() for path in only_run(desk).rglob("*") if path.is_file())
    run("rerun", "--quiet")
    assert len(list((desk / "runs").glob("[!.]*"))) == 2
    config.unlink()
    errors = run("rerun", "--runs", desk / "runs", code=2)
    assert "models.openai/mine.api_key is a secret, which is not stored in run.json" in errors


def test_a_run_that_cannot_be_read_does_not_hide_the_others(run: Run, finished_run: Path) -> None:
    broken = finished_run.parent / "2026-01-01T00-00-00_00000000"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    first, second = list_as_json(run)
    assert (first["status"], second["status"]) == ("unreadable", "succeeded")
    assert "run.json' cannot be read" in first["error"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "promptiter", *words]


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "where"),
    [("SIGTERM", b'"phase":"train"'), ("stop", b'"phase":"validation"'), ("SIGINT", b'"phase":"final_test"')],
)
def test_a_signal_and_the_stop_file_end_the_command_after_the_work_in_progress(
    how: str, where: bytes, run: Run, desk: Path
) -> None:
    edit(desk / "promptiter.yaml", "compliance: 1.0", "compliance: 1.0\n    latency_s: 0.05")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command("run"), env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not (there := list(desk.glob("runs/*/journal.jsonl"))) or where not in there[0].read_bytes():
            assert process.poll() is None
            time.sleep(0.02)
        if how == "stop":
            (there[0].parent / "stop").touch()
        else:
            process.send_signal(getattr(signal, how))
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    last = EventFile(there[0]).last()
    assert last is not None
    assert (last.type, last.round) == ("run_completed", 1)
    assert [reason["kind"] for reason in last.data["stop"]["reasons"]] == ["user_stop"]
    assert b"Stopped on request in round 1" in shown
    edit(desk / "promptiter.yaml", "latency_s: 0.05", "latency_s: 0.0")
    run("run", "--runs", desk / "other")
    edit(desk / "promptiter.yaml", "latency_s: 0.0", "latency_s: 0.05")
    assert "Improved on these 8 cases" in run("resume", there[0].parent)
    results = (*desk.glob("runs/*/result.json"), *desk.glob("other/*/result.json"))
    stopped, other = (drop_measured(orjson.loads(path.read_bytes())) for path in results)
    assert stopped == other


HANGS = """
import time
from pathlib import Path
from promptiter.agents.function import agent

@agent(instruction="Repeat the question.")
def agent(question: str) -> str:
    Path(__file__).with_name("hangs").touch()
    time.sleep(60)
    return question
"""


@pytest.mark.long
def test_a_second_signal_does_not_wait_for_a_function_that_hangs(desk: Path) -> None:
    (desk / "agent.py").write_text(HANGS)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command("run"), env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not (desk / "hangs").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        shown, errors = process.communicate(timeout=40)
    assert process.returncode == 130, errors.decode()
    assert b"Cancelled" in shown
    assert orjson.loads(next(desk.glob("runs/*/result.json")).read_bytes())["status"] == "cancelled"


def test_a_secret_in_the_settings_has_to_be_given_again(desk: Path) -> None:
    secret = {"models": {"openai/mine": {"api_key": "canary-of-mine-4711"}}}
    run = load_run(desk, settings={**secret, "max_rounds": 0}).begin()
    with pytest.raises(SetupError, match=r"models\.openai/mine\.api_key is a secret"):
        resume_run(run.path)
    assert resume_run(run.path, settings=secret).run_sync().stop_reason == "max_rounds"


SCRIPT = """
from pathlib import Path

from agent import agent

from promptiter import Engine, Evaluator, Gateway, RunRequest, build_metrics, load_eval_config, load_eval_set
from promptiter.offline import RuleOptimizer, SimulatedModel
from promptiter.runs import Interrupt, RunDirectory

gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})


class Wrapped:
    def __init__(self, inner):
        self.inner = inner

    async def optimize(self, request):
        return await self.inner.optimize(request)


if __name__ == "__main__":
    here = Path(__file__).parent
    train, validation = (load_eval_set(here / "data" / f"{name}.jsonl") for name in ("train", "validation"))
    evaluator = Evaluator(build_metrics(load_eval_config(here / "metrics.json")), gateway=gateway)
    engine = Engine(agent, evaluator, optimizer=Wrapped(RuleOptimizer()))
    interrupt = Interrupt()
    interrupt.stop("a button")
    run = RunDirectory.begin(here / "runs", engine, RunRequest(train=train, validation=validation))
    run.run_sync(interrupt=interrupt)
"""


@pytest.mark.long
def test_a_run_that_a_script_began_is_resumed_by_the_command(run: Run, desk: Path) -> None:
    (desk / "optimize.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    elsewhere = desk / "data"
    subprocess.run([sys.executable, desk / "optimize.py"], env=environ, cwd=elsewhere, check=True)
    assert HEADLINE in run("resume", only_run(desk)).splitlines()
    first = only_run(desk)
    assert HEADLINE.removeprefix("✓ ") in run("rerun", first, "--quiet")
    sys.modules.pop("optimize", None)


def test_a_run_behind_a_link_resumes(run: Run, finished_run: Path, tmp_path: Path) -> None:
    journal = finished_run / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    elsewhere = tmp_path / "disk" / finished_run.name
    elsewhere.parent.mkdir()
    finished_run.rename(elsewhere)
    finished_run.symlink_to(elsewhere)
    assert "Improved" in run("resume", finished_run)
    assert list_as_json(run)[0]["status"] == "succeeded"


def test_a_run_whose_configuration_is_gone_names_the_file(run: Run, finished_run: Path) -> None:
    journal = finished_run / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    (finished_run.parent.parent / "promptiter.yaml").unlink()
    errors = run("resume", finished_run, code=2)
    assert "promptiter.yaml', which does not exist; move the file or the run back" in errors


def test_a_finished_run_that_does_not_meet_a_requirement_says_why_and_what_to_do(run: Run, finished_run: Path) -> None:
    shown = run("resume", finished_run, "--require", "unseen", "--quiet", code=8)
    assert "--require unseen is not met: not shown for new cases: 8 validation cases, which the search " in shown
    assert "give a test set (`test`) of 8 cases or more" in shown


def run_managed(app: EngineApp | ConfiguredApp, changes: Json) -> Path:
    """The folder of a run that a Manager made, cut as if its process had been killed."""

    async def manage() -> str:
        async with asyncio.timeout(60), Manager(app, store=FolderStore("runs")) as manager:
            started = await manager.start(changes)
            return (await manager.wait(started.run_id)).run_id

    return Path("runs", app.name, asyncio.run(manage()))


@pytest.mark.long
def test_a_run_of_a_manager_resumes_with_what_its_request_changed(run: Run, desk: Path) -> None:
    rows = [orjson.loads(line) for line in (desk / "data" / "validation.jsonl").read_bytes().splitlines()]
    profile = {"values": {"reception#instruction": "Read the message."}}
    changes = {"validation": {"id": "mine", "cases": rows[:4]}, "initial_profile": profile, "seed": 3}
    path = run_managed(ConfiguredApp(desk, name="desk"), changes)
    whole = read_unmeasured(path.parent)
    cut(path, 30)
    (path / "cancel").touch()
    run("resume", path)
    assert read_unmeasured(path.parent) == whole
    assert orjson.loads((path / "run.json").read_bytes())["validation"]["id"] == "mine"
    (desk / "again").mkdir()
    run("rerun", path, "--runs", desk / "again")
    [again] = (desk / "again").glob("[!.]*")
    assert read_unmeasured(again.parent) == whole
    assert run("resume", again, "--quiet").startswith("support_desk: ")


def test_the_run_of_a_managers_engine_is_left_to_the_manager(run: Run, desk: Path) -> None:
    small = SmallRun()
    path = run_managed(EngineApp(small.engine, "small", request=small.request), {"max_rounds": 1})
    cut(path, 5)
    assert "it was started by a Manager, which has its engine" in run("resume", desk / path, code=2)
