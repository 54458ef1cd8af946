from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from promptiter.agents.base import CaseInput
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.cli.commands.restore import restore
from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.sources import CallbackSource, FileSource, Source

app = typer.Typer()
app.command()(restore)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bot.md").write_text("Be brief.")
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def leave_candidates(**sources: Source) -> None:
    """Leave the files of an agent that was killed."""
    agent = InPlaceAgent(lambda question: question, {f"bot#{name}": each for name, each in sources.items()})
    values = {f"bot#{name}": f"candidate {name}" for name in sources}
    asyncio.run(agent.run(CaseInput(text=""), Profile.of(agent.describe(), values)))


def test_nothing_to_do_is_reported() -> None:
    output = run().stdout
    assert output == "nothing to do: no candidate was left in place by an agent with the state folder .promptiter\n"
    Path("elsewhere").mkdir()
    assert run("elsewhere").stdout.endswith("the state folder elsewhere\n")
    with pytest.raises(SetupError, match="there is no folder 'nowhere'"):
        run("nowhere")


def test_a_candidate_left_by_a_kill_is_restored_and_reported(folder: Path) -> None:
    leave_candidates(instruction=FileSource("bot.md"))
    assert (folder / "bot.md").read_text() == "candidate instruction"
    assert run(".promptiter").stdout == f"bot#instruction  {folder / 'bot.md'}  restored\n"
    assert (folder / "bot.md").read_text() == "Be brief."
    assert run().stdout.startswith("nothing to do")


def test_a_source_that_holds_the_baseline_is_reported(folder: Path) -> None:
    leave_candidates(instruction=FileSource("bot.md"))
    (folder / "bot.md").write_text("Be brief.")
    assert run().stdout == f"bot#instruction  {folder / 'bot.md'}  already the baseline\n"


def test_an_edit_is_kept_unless_forced(folder: Path) -> None:
    leave_candidates(instruction=FileSource("bot.md"))
    (folder / "bot.md").write_text("Mine!")
    output = run(code=1).stderr
    assert "bot.md  not restored: it was edited while a candidate was in place" in output
    assert (folder / "bot.md").read_text() == "Mine!"
    assert (folder / "bot.md.promptiter-baseline").read_text() == "Be brief."
    assert run("--force").stdout.endswith("bot.md  restored\n")
    assert (folder / "bot.md").read_text() == "Be brief."
    assert not (folder / "bot.md.promptiter-baseline").exists()


def test_a_callback_is_restored_with_its_agent(folder: Path) -> None:
    (folder / "key").write_text("base")
    (folder / "my_remote_bot.py").write_text(
        "from pathlib import Path\n"
        "from promptiter.agents.function import agent\n"
        "from promptiter.agents.in_place.agent import InPlaceAgent\n"
        "from promptiter.sources import CallbackSource\n"
        "key = CallbackSource(Path('key').read_text, Path('key').write_text)\n"
        "bot = InPlaceAgent(len, {'bot#instruction': key})\n"
        "@agent()\ndef other(question): return ''\n"
    )
    leave_candidates(instruction=CallbackSource(Path("key").read_text, Path("key").write_text))
    assert "the callback of bot#instruction  not restored: only the program" in run(code=1).stderr
    with pytest.raises(SetupError, match="is a FunctionAgent, not an in-place agent"):
        run("--agent", "my_remote_bot:other")
    assert run("--agent", "my_remote_bot:bot").stdout == "bot#instruction  the callback of bot#instruction  restored\n"
    assert (folder / "key").read_text() == "base"
