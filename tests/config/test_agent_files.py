from __future__ import annotations

import sys
from pathlib import Path

from promptiter.api import load_run
from promptiter.config.agent_files import ReadFiles, list_agent_files
from tests.config.conftest import FILE, folder, load, write_config

__all__ = ["folder"]

READING_AGENT = """
from pathlib import Path

from agent_files_helper import NAME
from promptiter import GraphAgent, ModelNode

text = (Path(__file__).parent / "prompts" / "echo.md").read_text()
agent = GraphAgent(name=NAME, nodes=(ModelNode(name=NAME, instruction=text),))
"""


def test_the_files_of_an_agent_are_its_configuration_its_modules_and_its_prompts(folder: Path) -> None:
    (folder / "prompts").mkdir()
    for name, text in (
        ("config_agent.py", READING_AGENT),
        ("agent_files_helper.py", "NAME = 'echo'\n"),
        ("other.py", "TEXT = 'Repeat the question.'\n"),
        ("prompts/echo.md", "Repeat the question.\n"),
        ("README.md", "How to repeat a question.\n"),
    ):
        (folder / name).write_text(text)
    run = load(folder)
    found = list_agent_files(run.config, file=folder / "promptiter.yaml", structure=run.engine.describe())
    names = sorted(str(each.relative_to(folder.resolve())) for each in found)
    assert names == ["agent_files_helper.py", "config_agent.py", "promptiter.yaml", "prompts/echo.md"]
    del sys.modules["agent_files_helper"]


def test_prompts_of_a_command_are_among_its_files(folder: Path) -> None:
    (folder / "bot.txt").write_text("Be brief.")
    agent = "agent: {command: [cat], prompts: {bot: bot.txt}, stdin: '{prompt:bot}{input}'}"
    run = load_run(write_config(folder, FILE.replace("agent: config_agent:agent", agent)), environ={})
    found = list_agent_files(run.config, file=folder / "promptiter.yaml", structure=run.engine.describe())
    assert {each.name for each in found} == {"promptiter.yaml", "bot.txt"}


def test_a_file_that_was_changed_or_deleted_is_found_once(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("kept", "saved", "edited", "deleted")]
    for file in files:
        file.write_text("before")
    read = ReadFiles(files)
    assert read.take_changed() == []
    for name, text in (("saved", "before"), ("edited", "afterwards")):
        (tmp_path / name).write_text(text)
    (tmp_path / "deleted").unlink()
    assert [each.name for each in read.take_changed()] == ["edited", "deleted"]
    assert read.take_changed() == []
