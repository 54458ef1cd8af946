from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from promptiter.agents.base import CaseInput, RunContext
from promptiter.config.agents import build_agent
from promptiter.config.file import read_config
from promptiter.errors import AgentError, SetupError
from promptiter.profile import Profile
from tests.config.agent_yaml.conftest import Write, block


def describe(file: Path) -> dict[str, Any]:
    config = read_config(file).config
    agent = build_agent(config.agent, folders=config.python_path)
    return {each.id.partition("#")[2]: each for each in agent.describe().surfaces}


def test_the_agent_has_the_model_instructions_and_tools_of_the_file(project: Path) -> None:
    found = describe(project / "agent.yaml")
    assert found["model"].value == "offline_model:analyst"
    assert found["instruction"].value.startswith("You are a financial analyst.")
    assert (found["parameter.temperature"].value, found["parameter.archive.top_k"].value) == (0.9, 3)
    assert found["tool.subtract"].value == "Computes a - b."
    assert set(found["tool.subtract"].arguments["properties"]) == {"a", "b"}
    assert set(found["tool.archive"].arguments["properties"]) == {"query"}


def test_an_axis_without_a_value_gets_the_default(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["model"]["top_p"], document["tools"][0]["top_k"]

    found = describe(write(change))
    assert (found["parameter.top_p"].value, found["parameter.archive.top_k"].value) == (1.0, 5)


def test_a_model_name_can_be_an_axis(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        document["model"] = {"provider": "openai", "name": "gpt-4o", "temperature": 0.5, "top_p": 1.0}
        axis = {"path": "model.name", "type": "categorical", "choices": ["gpt-4o", "gpt-4o-mini"]}
        block(document)["axes"]["numeric"].append(axis)

    assert describe(write(change))["model"].limits.choices == ("openai/gpt-4o", "openai/gpt-4o-mini")


@pytest.mark.parametrize("place", ["tools[name=divide].", "financial-assistant#parameter.divide."])
@pytest.mark.parametrize("written", [{}, {"embedding_model": "large"}])
def test_a_setting_that_is_a_text_can_be_an_axis_with_choices(
    write: Write, project: Path, place: str, written: dict[str, str]
) -> None:
    (project / "tools" / "texts.py").write_text(
        "def divide(a: float, b: float, *, embedding_model: str = 'small', mode: str = 'exact') -> str:\n    return ''"
    )

    def change(document: dict[str, Any]) -> None:
        document["tools"][2] |= {"file": "tools/texts.py", "function": "divide", "mode": "fuzzy", **written}
        axis = {"path": f"{place}embedding_model", "type": "categorical", "choices": ["small", "large"]}
        axis |= {"rebuild": "echo {value}"}
        block(document)["axes"]["numeric"].append(axis)

    found = describe(write(change))
    setting = found["parameter.divide.embedding_model"]
    assert (setting.value, setting.limits.choices) == (written.get("embedding_model", "small"), ("small", "large"))
    assert "parameter.divide.mode" not in found


def test_an_optional_tool_can_be_off(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        document["tools"][2] |= {"optional": True, "enabled": False}
        block(document)["axes"]["numeric"].append({"path": "tools[name=divide].enabled", "type": "bool"})

    assert describe(write(change))["parameter.divide.enabled"].value is False


def test_a_tool_that_is_off_and_not_optional_is_left_out(write: Write) -> None:
    assert "tool.divide" not in describe(write(lambda document: document["tools"][2].update(enabled=False)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda document: document["tools"][1].pop("function"),
            r"subtract\]: is of type 'function' and has",
        ),
        (lambda document: document["tools"][1].update(function="nope"), "'nope' is not a function of tools/"),
        (lambda document: document["tools"][1].update(file="no.py"), r"no.py' does not exist"),
        (lambda document: document["tools"][0].update(source="agent.yaml"), "has no text files"),
        (lambda document: document["tools"][1].pop("file"), "has no file; give its file, or write it as module:attr"),
    ],
)
def test_what_is_wrong_with_a_tool_is_named(write: Write, change: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        describe(write(change))


async def test_a_setting_with_a_command_is_rebuilt_once_per_value(write: Write, project: Path) -> None:
    (project / "ingest.py").write_text("import sys\nopen('log.txt', 'a').write(sys.argv[1] + ' ')")
    import sys

    def change(document: dict[str, Any]) -> None:
        axis = next(each for each in block(document)["axes"]["numeric"] if each["path"].endswith("top_k"))
        axis["rebuild"] = f"{sys.executable} ingest.py {{value}}"

    config = read_config(write(change)).config
    agent = build_agent(config.agent, folders=config.python_path)
    structure = agent.describe()
    case = CaseInput(text="What was the net revenue of Apple in 2008?")
    name = "financial-assistant#parameter.archive.top_k"
    for value in (3, 9, 3):
        profile = Profile.of(structure, {name: value})
        found = await agent.run(case, profile, RunContext(case_id=f"c{value}"))
        assert found.error is None
    again = build_agent(config.agent, folders=config.python_path)
    await again.run(case, Profile.baseline(structure), RunContext())
    assert (project / "log.txt").read_text() == "3 9 "


async def test_a_command_that_fails_is_the_error_of_the_run(write: Write) -> None:
    import sys

    def change(document: dict[str, Any]) -> None:
        block(document)["axes"]["numeric"][2]["rebuild"] = f"{sys.executable} -c 'raise SystemExit({{value}})'"

    config = read_config(write(change)).config
    agent = build_agent(config.agent, folders=config.python_path)
    run = await agent.run(CaseInput(text="Hi 2008"), Profile.baseline(agent.describe()), RunContext())
    assert run.error is not None or any(call.error for call in run.tool_calls)
    assert AgentError.__name__ in str([run.error, *(call.error for call in run.tool_calls)])
