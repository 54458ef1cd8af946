"""Ordinary mistakes in a project: each is found before anything is paid, in one line that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.llm.test_served_models import ModelList, serve

pytestmark = pytest.mark.slow

MINE = """
from promptiter.agents import CommandAgent, agent

bot = CommandAgent(command=("no-such-bot", "{file:reply}"), prompts={"reply": "Answer."})

@agent(instruction="Answer.")
async def forgetful(question):
    pass

@agent(instruction="Answer.")
async def odd(question):
    return {"reply": print}
"""


@pytest.fixture(autouse=True)
def mine(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The starter with agents of one's own, and no keys."""
    (desk / "mine.py").write_text(MINE)
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    yield
    sys.modules.pop("mine", None)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_wrong_choice_of_an_option_is_reported_in_plain_words(run: Run, desk: Path) -> None:
    shown = run("run", desk, "--require", "seen", code=2)
    assert "Invalid value for '--require': 'seen' is not one of 'unseen'" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--port", "99999"), "'--port': must be less than or equal to 65535, not '99999'"),
        (("run", "--max-usd", "-1"), "'--max-usd': must be greater than or equal to 0, not '-1'"),
        (("run", "--max-rounds", "two"), "'--max-rounds': must be a valid integer, not 'two'"),
    ],
)
def test_a_wrong_number_is_reported_with_its_value(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in " ".join(run(*arguments, code=2).split())


PROVIDER = "gpt-4o-mni names no provider that litellm knows (did you mean 'gpt-4o-mini'?); write provider/model"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "promptiter.yaml",
            "target_score: 1.0",
            "target_score: 95",
            "target_score is 95, but mean_score is from 0 to 1",
        ),
        ("agent.py", 'MODEL = "simulated"', 'MODEL = "gpt-4o-mini"', "gpt-4o-mini needs OPENAI_API_KEY; set it, or"),
        ("agent.py", 'MODEL = "simulated"', 'MODEL = "gpt-4o-mni"', PROVIDER),
        (
            "promptiter.yaml",
            "max_rounds: 4",
            "max_rounds: 4\nstages: gpt-4o-mini",
            "gpt-4o-mini needs OPENAI_API_KEY; set",
        ),
        ("promptiter.yaml", "max_rounds: 4", "max_rounds: 4\nstages: gpt-4o-mni", PROVIDER),
    ],
)
def test_a_mistake_is_found_before_anything_is_paid(
    run: Run, desk: Path, file: str, old: str, new: str, message: str
) -> None:
    edit(desk / file, old, new)
    errors = run("run", code=2)
    assert len(errors.splitlines()) == 2
    assert message in errors
    assert not (desk / "runs").exists()


def test_a_key_of_a_model_that_is_not_set_is_one_problem(run: Run, desk: Path) -> None:
    edit(desk / "promptiter.yaml", "models:\n", "models:\n  gpt-4o-mini: {api_key: '${NOT_SET}'}\n")
    edit(desk / "promptiter.yaml", "max_rounds: 4", "max_rounds: 4\nstages: gpt-4o-mini")
    errors = run("run", code=2)
    [line] = errors.splitlines()[1:]
    assert line.endswith("models.gpt-4o-mini.api_key: the environment variable 'NOT_SET' is not set; export it")


COMMAND = """agent:
  command: [{program}, "{{file:reception}}"]
  prompts: {{reception: Pass it on.}}
  health: {health}
# """
NO_PROGRAM = "the command 'no-such-bot' cannot be started: it is not in PATH; install it, or name it with its path"


def use_command(desk: Path, program: str, *, health: str = "null") -> None:
    edit(desk / "promptiter.yaml", "agent: agent:agent ", COMMAND.format(program=program, health=health))


@pytest.mark.parametrize(
    "command", [("run",), ("run", "--dry-run"), ("evaluate",), ("check", "data/train.jsonl", "--agent", "mine:bot")]
)
def test_a_program_of_an_agent_that_is_missing_is_found_before_anything_is_spent(
    run: Run, desk: Path, command: tuple[str, ...]
) -> None:
    use_command(desk, "no-such-bot")
    errors = run(*command, code=2)
    assert f"agent: {NO_PROGRAM}" in errors
    assert len(errors.splitlines()) <= 2
    assert not (desk / "runs").exists()


@pytest.mark.parametrize("command", [("run",), ("run", "--dry-run")])
def test_a_program_of_a_stage_that_is_missing_is_found_before_anything_is_spent(
    run: Run, desk: Path, command: tuple[str, ...]
) -> None:
    stages = "stages: {optimizer: {command: [no-such-bot, '{folder}']}, aggregator: {command: [./data]}}"
    edit(desk / "promptiter.yaml", "max_rounds: 4", f"max_rounds: 4\n{stages}")
    errors = run(*command, code=2)
    assert "stages.aggregator: the command './data' cannot be started: it is a folder" in errors
    assert not (desk / "runs").exists()
    edit(desk / "promptiter.yaml", ", aggregator: {command: [./data]}", "")
    assert f"stages.optimizer: {NO_PROGRAM}" in run(*command, code=2)


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_a_failed_health_check_is_found_before_there_is_a_folder(run: Run, desk: Path, command: str) -> None:
    use_command(desk, "cat", health="[sh, -c, 'echo no license >&2; exit 3']")
    errors = run(command, code=2)
    assert "the health check of the agent failed: the command 'sh' ended with exit code 3: no license" in errors
    assert "runs/" not in errors
    assert not (desk / "runs").exists()


def test_gepa_that_is_not_installed_is_found_before_there_is_a_folder(
    run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "gepa"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gepa", None)
    edit(desk / "promptiter.yaml", "max_rounds: 4", "max_rounds: 4\nsearch: gepa")
    errors = run("run", code=2)
    assert "run `pip install 'promptiter[gepa]'`" in errors
    assert "runs/" not in errors
    assert not (desk / "runs").exists()


@pytest.mark.parametrize("place", ["agent", "stages"])
def test_a_misspelled_model_of_a_server_is_found_before_anything_is_paid(run: Run, desk: Path, place: str) -> None:
    with serve(ModelList("tiny")) as url:
        address = f"  openai/tny: {{api_base: '{url}', api_key: k-1}}\n"
        edit(desk / "promptiter.yaml", "models:\n", f"models:\n{address}")
        if place == "agent":
            edit(desk / "agent.py", 'MODEL = "simulated"', 'MODEL = "openai/tny"')
        else:
            edit(desk / "promptiter.yaml", "max_rounds: 4", "max_rounds: 4\nstages: openai/tny")
        errors = run("run", code=2)
    where = "reception#model, returns#model, payments#model and 3 more" if place == "agent" else "stages"
    assert errors.splitlines()[1:] == [
        f"  - {where}: {url} does not list the model 'tny' (did you mean 'tiny'?); it has tiny"
    ]
    assert not (desk / "runs").exists()


@pytest.mark.parametrize(
    ("agent", "cause"),
    [
        ("forgetful", "'forgetful' returned None; return the answer, as a text or as data"),
        (
            "odd",
            "'odd' returned {'reply': <built-in function print>}, which is not data; return a text, a dict or a list",
        ),
    ],
)
def test_an_agent_without_an_answer_ends_the_run_at_its_first_cases(
    run: Run, desk: Path, agent: str, cause: str
) -> None:
    edit(desk / "promptiter.yaml", "agent: agent:agent", f"agent: mine:{agent}")
    shown = run("run", "--quiet", code=1, stream="out")
    assert "the first 3 case runs failed by a mistake in the code or the settings, and no other was made: " in shown
    assert f"AnswerError: {cause}" in shown
