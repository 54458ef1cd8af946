"""What must hold before a run starts: all problems in one report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from promptiter.config.agent_yaml.checks import find_warnings
from promptiter.config.agent_yaml.subagents import FOLDER, ROLES, find_file, install, read_subagent
from promptiter.config.build import build_run
from promptiter.config.file import read_config
from promptiter.errors import RequestError, SetupError
from tests.config.agent_yaml.conftest import Write, block


def find_problems(file: Path) -> str:
    with pytest.raises(RequestError) as caught:
        build_run(read_config(file))
    return str(caught.value)


@pytest.mark.slow
def test_all_problems_are_in_one_report(project: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for role in ROLES:
        text = "model: {provider: openai, name: gpt-4o}\ninstructions: {inline: Hi.}\n"
        find_file(role, project).write_text(text)

    def change(document: dict[str, Any]) -> None:
        document["model"] = {"provider": "anthropic", "name": "claude-sonnet-4-6", "temperature": "hot"}
        document["evaluations"]["metrics"].append({"metric": "bleu"})
        block(document)["repeat"] = 2
        block(document)["accept_sigma"] = -1
        block(document)["axes"]["numeric"] += [{"path": "model.top_p", "range": ["a", 1]}, {"range": [0, 1]}]
        block(document)["loss"] = {"numbers": 1.0}
        block(document)["train_cases_file"] = "data/none.yaml"
        block(document)["min_holdout_cases"] = 9
        block(document)["axes"]["numeric"][0]["range"] = [1.0, 0.0]
        block(document)["axes"]["textual"][1]["max_chars"] = 3
        block(document)["co_optimize"] = [["instructions.file", "tools[name=divide].description"]]
        document["tools"][0]["top_k"] = 2

    found = find_problems(write(change))
    for part in (
        "agent.yaml: model.temperature: must be a number, not 'hot'",
        "agent.yaml: evaluations.metrics[2]: unknown metric: 'bleu'",
        "evaluations.optimizer: unknown key 'repeat' (did you mean 'repeats'?)",
        "evaluations.optimizer.accept_sigma: must be at least 0, not -1",
        "evaluations.optimizer.axes.numeric[4].range[0]: must be a number, not 'a'",
        "evaluations.optimizer.axes.numeric[5].path: is missing",
        "needs ANTHROPIC_API_KEY; set it, or model.api_key in agent.yaml",
        "critic, applier: openai/gpt-4o needs OPENAI_API_KEY; set it, or model.api_key in critic.yaml and applier.yaml",
        "evaluations.optimizer.loss: unknown metric 'numbers' in the weights (did you mean 'numeric'?)",
        "evaluations.optimizer.train_cases_file: ",
        "none.yaml: cannot be read",
        "holdout.yaml has 8 cases, and min_holdout_cases is 9",
        "model.temperature: the range [1, 0] is empty",
        "tools[name=subtract].description: max_chars is 3, and the current text has 15",
        "tools[name=archive].top_k: its current value is not allowed: 2 is not between 3",
        "co_optimize: 'tools[name=divide].description' is not one of the textual axes",
    ):
        assert part in found
    assert f"it has {len(found.splitlines()) - 1} problems" in found


def test_tools_that_cannot_be_built_are_all_named(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        document["tools"][0]["source"] = None
        document["tools"][1]["function"] = "subtracts"

    found = find_problems(write(change))
    assert "tools[name=archive]: is of type 'vectorstore' and has no function" in found
    assert "tools[name=subtract]: 'subtracts' is not a function of tools/financial_tools.py" in found


def test_a_file_without_a_model_cannot_be_used(write: Write) -> None:
    with pytest.raises(RequestError, match=r"model.name: is missing"):
        read_config(write(lambda document: document.update(model={})))


def test_the_model_of_a_subagent_has_its_own_key_and_address(project: Path) -> None:
    text = "model: {provider: openai, name: c, endpoint: 'http://c', api_key: k}\ninstructions: {inline: Hi.}\n"
    find_file("critic", project).write_text(text)
    found = read_config(project / "agent.yaml").config.models.settings["openai/c"]
    assert found.api_base == "http://c"


def test_a_file_without_a_block_gets_one_to_start_from(write: Write) -> None:
    found = find_problems(write(lambda document: document["evaluations"].pop("optimizer")))
    starter = found.partition("such as this one:\n\n")[2].partition("\n\n")[0]
    assert "it has a problem" in found
    read = yaml.safe_load(starter)["evaluations"]["optimizer"]
    assert (read["loss"], read["repeats"]) == ({"numeric": 1.0}, 3)
    assert read["axes"]["textual"][0]["path"] == "instructions.file"


def test_one_file_of_cases_is_not_enough(write: Write) -> None:
    found = find_problems(write(lambda document: block(document).pop("holdout_cases_file")))
    assert "Optimizer requires both train_cases_file and holdout_cases_file." in found
    assert "it has a problem" in found


def test_cases_in_both_files_are_named(project: Path) -> None:
    shutil.copy(project / "data" / "train.yaml", project / "data" / "holdout.yaml")
    assert "AAPL-2008-net-revenue-change" in find_problems(project / "agent.yaml")


def test_a_broken_subagent_is_named(project: Path) -> None:
    (project / ".holodeck" / "optimizer" / "agents" / "critic.yaml").write_text("model: {}\n")
    with pytest.raises(SetupError, match=r"critic.yaml: model.*name"):
        build_run(read_config(project / "agent.yaml"))


def test_subagents_are_installed_once_and_never_overwritten(project: Path) -> None:
    shutil.rmtree(project / ".holodeck")
    assert [each.name for each in install(project)] == ["critic.yaml", "applier.yaml"]
    critic = project / FOLDER / "critic.yaml"
    critic.write_text("instructions: {inline: Mine.}\n")
    assert install(project) == []
    assert find_file("critic", project) == critic
    assert critic.read_text() == "instructions: {inline: Mine.}\n"


def test_subagents_without_a_model_ask_that_of_the_agent(project: Path, write: Write) -> None:
    shutil.rmtree(project / ".holodeck")
    given = read_config(write(lambda document: document.update(model={"name": "simulated"})))
    assert given.config.search is not None
    assert "critic" not in given.config.search.options  # a simulated model cannot diagnose
    again = read_config(write(lambda document: document.update(model={"provider": "openai", "name": "gpt-4o"})))
    assert again.config.search is not None
    assert again.config.search.options["applier"] == "openai/gpt-4o"


def test_the_model_of_a_subagent_has_its_options(project: Path) -> None:
    from promptiter.config.agent_yaml.sections import ModelBlock

    file = project / ".holodeck" / "optimizer" / "agents" / "critic.yaml"
    text = "model: {provider: anthropic, name: c, temperature: 0.2}\ninstructions: {inline: Hi.}\n"
    file.write_text(text)
    found = read_subagent("critic", project, ModelBlock(name="simulated"))
    assert (found.model, found.options) == ("anthropic/c", {"temperature": 0.2})


def test_risky_settings_are_warnings(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        block(document).update(repeats=1, holdout_eval_policy="skip")
        block(document)["budget"]["numeric_phase"]["max_trials"] = 4

    config = read_config(write(change)).config
    found = list(find_warnings(config.search, config.acceptance))
    assert [text.partition(":")[0] for text in found] == [
        "repeats is 1",
        "holdout_eval_policy is skip",
        "numeric_phase.max_trials is 4, below the 10 start-up trials of a study",
    ]
    assert list(find_warnings(config.search, config.acceptance, is_numeric=False)) == found[:2]
