from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from promptiter.agents.declarations import Parameter
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.profile import Profile
from promptiter.runs.layout_000.candidate_files import AgentYaml, link, set_field, write_candidate

TEXT = """\
name: a # keep me
model: {provider: openai, name: small, temperature: 0.5}
instructions:
  file: prompt.md
"""
AGENT = GraphAgent(
    name="a",
    nodes=(
        ModelNode(
            name="a",
            instruction="Old.",
            model="openai/small",
            models=("openai/small", "openai/large"),
            parameters={"temperature": Parameter(value=0.5), "top_p": Parameter(value=1.0)},
        ),
    ),
)
STRUCTURE = AGENT.describe()
BASELINE = AgentYaml(
    file=Path("agent.yaml"),
    text=TEXT,
    fields={
        "a#model": ("model", "name"),
        "a#parameter.temperature": ("model", "temperature"),
        "a#parameter.top_p": ("model", "top_p"),
    },
    prompt="a#instruction",
    prefix="openai/",
)


def write(folder: Path, prompts: dict[str, Path], number: int, **values: object) -> tuple[str, Path | None]:
    profile = Profile.of(STRUCTURE, {name.replace("_", "#", 1): value for name, value in values.items()})
    at = folder / "candidates" / f"iter-{number:02}.yaml"
    prompt = write_candidate(BASELINE, profile, STRUCTURE, at=at, prompts=prompts)
    return at.read_text(), prompt


def test_the_baseline_is_copied_as_it_is(tmp_path: Path) -> None:
    assert write(tmp_path, {}, 0) == (TEXT, None)


def test_values_change_in_place_and_comments_stay(tmp_path: Path) -> None:
    text, _ = write(tmp_path, {}, 3, **{"a_parameter.temperature": 0.25, "a_model": "openai/large"})
    assert text == TEXT.replace("0.5", "0.25").replace("small", "large")


def test_a_value_that_the_file_does_not_have_is_added(tmp_path: Path) -> None:
    text, _ = write(tmp_path, {}, 3, **{"a_parameter.top_p": 0.5})
    assert text == TEXT.replace("temperature: 0.5", "temperature: 0.5, top_p: 0.5")


def test_a_prompt_gets_a_file_once(tmp_path: Path) -> None:
    prompts: dict[str, Path] = {}
    text, first = write(tmp_path, prompts, 3, a_instruction="New.")
    assert first == tmp_path / "instructions" / "system-prompt.iter-03.md"
    assert first.read_text() == "New."
    assert yaml.safe_load(text)["instructions"]["file"] == "../instructions/system-prompt.iter-03.md"
    _, again = write(tmp_path, prompts, 5, **{"a_instruction": "New.", "a_parameter.temperature": 0.1})
    assert again == first


def test_an_added_value_has_a_line_of_its_own_and_comments_stay() -> None:
    text = "# mine\ntools:\n  - type: function # plain\n    # its name\n    name: x"
    assert set_field(text, ("tools", "0", "top_k"), 9) == text.replace("plain\n", "plain\n    top_k: 9\n")
    assert set_field("a:\n  b: 1", ("a", "c"), 0.5) == "a:\n  b: 1\n  c: 0.5\n"


@pytest.mark.parametrize("names", [("tools", "0", "top_k"), ("tools", "0", "new")])
def test_fields_of_lists_are_set(names: tuple[str, ...]) -> None:
    found = yaml.safe_load(set_field("tools:\n  - name: x\n    top_k: 3\n", names, 9))
    assert found["tools"][0][names[2]] == 9


def test_a_link_is_replaced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        link(tmp_path / "best", tmp_path / name)
        assert (tmp_path / "best").read_text() == name
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best", "one", "two"]
