from __future__ import annotations

from typing import Any

import pytest

from promptiter.agents.declarations import Parameter, Tool
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.config.agent_yaml.axes import find_surface, name_path, resolve_axes, suggest_axes
from promptiter.config.agent_yaml.sections import NumericAxis, TextualAxis
from promptiter.errors import SetupError

ARCHIVE = Tool(
    name="archive",
    description="Search.",
    function=lambda **named: named,
    settings={"top_k": Parameter(value=5), "fuzzy": Parameter(value=False)},
    is_optional=True,
)
AGENT = GraphAgent(
    name="a",
    nodes=(
        ModelNode(
            name="a",
            instruction="Answer.",
            tools=(ARCHIVE,),
            parameters={"temperature": Parameter(value=0.5)},
            models=("simulated", "other"),
        ),
    ),
)
STRUCTURE = AGENT.describe()

PATHS = {
    "model.temperature": "a#parameter.temperature",
    "model.name": "a#model",
    "instructions.inline": "a#instruction",
    "instructions.file": "a#instruction",
    "tools[name=archive].top_k": "a#parameter.archive.top_k",
    "tools[archive].top_k": "a#parameter.archive.top_k",
    "tools[name=archive].enabled": "a#parameter.archive.enabled",
    "tools[name=archive].description": "a#tool.archive",
    "a#parameter.temperature": "a#parameter.temperature",
}


@pytest.mark.parametrize(("path", "surface_id"), PATHS.items())
def test_a_path_names_a_surface(path: str, surface_id: str) -> None:
    assert find_surface(path, STRUCTURE).id == surface_id


def test_each_surface_of_the_file_has_a_path() -> None:
    named = {each.id: name_path(each) for each in STRUCTURE.surfaces if each.type != "examples"}
    assert all(path is not None and find_surface(path, STRUCTURE).id == name for name, path in named.items())


def test_a_path_of_several_nodes_is_refused() -> None:
    both = GraphAgent(
        name="both", nodes=(ModelNode(name="x", instruction=""), ModelNode(name="y", instruction="")), output="x"
    )
    with pytest.raises(SetupError, match="several nodes; name one of x#instruction, y#instruction"):
        find_surface("instructions.inline", both.describe())


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (NumericAxis(path="model.top_p", range=(0, 1)), r"the agent has no 'model.top_p'.* it has .*model.temperature"),
        (NumericAxis(path="model.temperature"), "has no range"),
        (NumericAxis(path="model.temperature", range=(1, 0)), "is empty"),
        (NumericAxis(path="model.temperature", range=(0.6, 1)), "its current value is not allowed: 0.5 is not between"),
        (NumericAxis(path="model.temperature", range=(0, 1), scale="log"), "a log scale needs a range above 0"),
        (NumericAxis(path="tools[name=archive].top_k", range=(0.5, 9), type="int"), "must have whole numbers"),
        (NumericAxis(path="model.name", range=(0, 1)), "is the name of a model"),
        (NumericAxis(path="model.name", type="categorical", choices=["simulated"]), "list at least two"),
        (NumericAxis(path="instructions.inline", range=(0, 1)), "move it to axes.textual"),
        (TextualAxis(path="model.temperature"), "move it to axes.numeric"),
        (TextualAxis(path="instructions.inline", max_chars=3), "max_chars is 3, and the current text has 7"),
        (NumericAxis(path="temperature", range=(0, 1)), "is not a path; write model.NAME"),
    ],
)
def test_what_is_wrong_with_an_axis_is_named(axis: Any, message: str) -> None:
    _, _, problems = resolve_axes([axis], STRUCTURE)
    assert len(problems) == 1
    with pytest.raises(SetupError, match=message):
        raise SetupError(problems[0])


def test_axes_become_limits() -> None:
    axes: list[NumericAxis | TextualAxis] = [
        NumericAxis(path="model.temperature", range=(0.01, 1), scale="log"),
        NumericAxis(path="tools[name=archive].top_k", range=(3, 20), type="int"),
        NumericAxis(path="tools[name=archive].fuzzy", type="bool"),
        TextualAxis(path="instructions.inline", max_chars=40),
    ]
    ids, limits, problems = resolve_axes(axes, STRUCTURE)
    assert not problems
    limited = AGENT.with_limits(limits).describe()
    found = [limited.surface(ids[axis.path]).limits for axis in axes]
    assert [each.kind for each in found] == ["number", "integer", "boolean", None]
    assert (found[0].scale, found[1].minimum, found[1].maximum, found[3].max_chars) == ("log", 3, 20, 40)


def test_an_axis_that_is_there_twice_is_refused() -> None:
    twice = [TextualAxis(path="instructions.inline"), TextualAxis(path="instructions.file")]
    assert resolve_axes(twice, STRUCTURE)[2] == ["instructions.file: is there twice; remove one of them"]


def test_ingestion_needs_a_command() -> None:
    tool = Tool(
        name="t",
        description="",
        function=str,
        settings={"max_chunk_tokens": Parameter(value=9)},
    )
    agent = GraphAgent(name="a", nodes=(ModelNode(name="a", instruction="", tools=(tool,)),))
    axis = NumericAxis(path="tools[name=t].max_chunk_tokens", range=(1, 9), type="int")
    assert "give the command that does it as rebuild" in resolve_axes([axis], agent.describe())[2][0]
    with_command = axis.model_copy(update={"rebuild": "ingest {value}"})
    assert not resolve_axes([with_command], agent.describe())[2]


def test_suggested_axes_are_valid() -> None:
    found = suggest_axes(STRUCTURE)
    axes = [NumericAxis.model_validate(each) for each in found["numeric"]]
    texts = [TextualAxis.model_validate(each) for each in found["textual"]]
    ids, _, problems = resolve_axes([*axes, *texts], STRUCTURE)
    assert not problems
    assert set(ids.values()) == {each.id for each in STRUCTURE.surfaces if each.type != "examples"}
