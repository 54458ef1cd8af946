"""`promptiter run optimizer.json`: the same as promptiter.optimize, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.worlds.prompt_bot import PromptBot

AGENT = """
from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"


async def call_agent(query: str) -> str:
    prompts = "".join(file.read_text() for file in sorted(PROMPTS.glob("*.md")))
    fields = query.partition("(")[2].rstrip(")").split("; ")
    return f"Thank you! {', '.join(each for each in fields if each.partition(':')[0] in prompts)}"
"""
SCRIPT = """
import asyncio, os, sys
from promptiter import TargetPrompt, optimize
import prompt_bot_agent as module

def call(query, count=[0]):
    count[0] += 1
    if "--kill" in sys.argv and "order id" in (module.PROMPTS / "skill.md").read_text():
        os.kill(os.getpid(), 9)

async def call_agent(query):
    call(query)
    return await module.call_agent(query)

if __name__ == "__main__":
    target = TargetPrompt().add_path("system_prompt", "prompts/system.md").add_path("skill", "prompts/skill.md")
    result = asyncio.run(optimize(
        config_path="optimizer.json", call_agent=call_agent, target_prompt=target, verbose=0,
        train_dataset_path="train.evalset.json", validation_dataset_path="val.evalset.json", output_dir="out",
    ))
    print(result.status, result.best_pass_rate)
"""
OPTIONS = (
    *("--agent", "prompt_bot_agent:call_agent", "--train", "train.evalset.json", "--validation", "val.evalset.json"),
    *("--source", "system_prompt=prompts/system.md", "--source", "skill=prompts/skill.md"),
)


@pytest.fixture
def bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PromptBot]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    found = PromptBot(tmp_path)
    found.write()
    (tmp_path / "prompt_bot_agent.py").write_text(AGENT)
    sys.modules.pop("prompt_bot_agent", None)
    yield found
    sys.modules.pop("prompt_bot_agent", None)


def test_a_run_is_shown_reported_and_applied_like_any_other(bot: PromptBot, run: Run) -> None:
    printed = run("run", "optimizer.json", *OPTIONS)
    assert "Improved on these 4 cases" in printed
    assert bot.skill.read_text() == "Answer in one line.\n"
    [folder] = (bot.folder / "runs").glob("[!.]*")
    assert not (folder / "layout_001").exists()
    assert "skill#instruction" in run("show", "latest", "--diff")
    run("report", "latest")
    assert "skill#instruction" in run("apply", "latest")
    assert "order id" in bot.skill.read_text()


def test_the_layout_is_written_into_the_run_with_its_exit_codes(bot: PromptBot, run: Run) -> None:
    bot.configure(max_metric_calls=13)
    run("run", "optimizer.json", *OPTIONS, code=6)
    run("run", "optimizer.json", *OPTIONS, "--layout", "001", code=0)
    *_, folder = sorted((bot.folder / "runs").glob("[!.]*"))
    result = json.loads((folder / "layout_001" / "result.json").read_text())
    assert (result["status"], result["stopReason"]) == ("SUCCEEDED", "budget_exhausted")
    run("resume", folder, code=0)
    (bot.folder / "prompt_bot_agent.py").write_text("async def call_agent(query):\n    raise OSError('down')\n")
    sys.modules.pop("prompt_bot_agent")
    run("run", "optimizer.json", *OPTIONS, "--layout", "001", "--output-dir", "out", code=1)
    assert json.loads((bot.folder / "out" / "result.json").read_text())["status"] == "FAILED"


def test_the_file_optimize_stop_in_the_output_folder_ends_the_search(bot: PromptBot, run: Run) -> None:
    bot.configure(stop={"required_metrics": []})
    (bot.folder / "out").mkdir()
    (bot.folder / "out" / "optimize.stop").touch()
    run("run", "optimizer.json", *OPTIONS, "--layout", "001", "--output-dir", "out")
    assert json.loads((bot.folder / "out" / "result.json").read_text())["stopReason"] == "user_requested_stop"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "skill"], "--source 'skill' must be NAME=PLACE"),
        (["--source", "skill=a.md", "--source", "skill=b.md"], "--source names 'skill' twice"),
        (["--agent", "prompt_bot_agent:call_agent"], "is a plain function, not an agent"),
        (["--source", "skill=a.md"], "name the function with --agent"),
    ],
)
def test_wrong_options_are_refused(bot: PromptBot, run: Run, options: list[str], message: str) -> None:
    assert message in run("run", "optimizer.json", *options, code=2)


@pytest.mark.long
def test_after_a_kill_the_prompts_are_restored_and_the_command_line_resumes(bot: PromptBot, run: Run) -> None:
    (bot.folder / "prompt_bot_script.py").write_text(SCRIPT)

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "prompt_bot_script.py", *arguments]
        return subprocess.run(command, cwd=bot.folder, capture_output=True, text=True)

    assert start("--kill").returncode == -9
    assert "order id" in bot.skill.read_text(), "the candidate is still in place"
    [folder] = (bot.folder / "out" / "run").glob("[!.]*")
    printed = run("resume", folder)
    assert "Improved on these 4 cases" in printed
    assert bot.skill.read_text() == "Answer in one line.\n"
    assert json.loads((bot.folder / "out" / "result.json").read_text())["bestPassRate"] == 1.0
    sys.modules.pop("prompt_bot_script", None)
