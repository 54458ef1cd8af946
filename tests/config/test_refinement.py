from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptiter.api import load_refinement
from promptiter.config.file import read_document
from promptiter.config.refinement_settings import RefinementSettings
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.tasks.refine.budget import BudgetFloors
from promptiter.tasks.refine.iteration_guard import NodeRoles
from promptiter.tasks.refine.loss import LossWeights
from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.tiers import TierPlan, parse_pair
from tests.tasks.refine.foreign_runs import write_run
from traces.model import Json

AGENT = """
from promptiter import Edge, GraphAgent, ModelNode

agent = GraphAgent(
    name="team",
    nodes=(ModelNode(name="plan", instruction="Plan.", model="simulated"),
           ModelNode(name="write", instruction="Write.", model="simulated")),
    edges=(Edge("plan", "write"),),
)
"""


@pytest.fixture
def seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configured_team.py").write_text(AGENT)
    sys.modules.pop("configured_team", None)
    yield write_run(tmp_path / "seed")
    sys.modules.pop("configured_team", None)


def write_config(folder: Path, text: str) -> Path:
    file = folder / "own.yaml"
    file.write_text(f"agent: configured_team:agent\nmetrics: [{{metric_name: exact_match}}]\n{text}")
    return file


def test_tiers_may_have_models_with_colons(seed: Path) -> None:
    text = "refine: {tiers: {low: 'a:b', high: {manager: 'simulated', worker: 'ollama/qwen:7b'}}, iterations: 5}\n"
    file = write_config(seed.parent, text)
    found = load_refinement(seed, RefinementSettings(config=file, command=("true",)))
    assert found.options.tiers.low == ModelPair(manager="a", worker="b")
    assert found.options.tiers.high == ModelPair(manager="simulated", worker="ollama/qwen:7b")
    assert found.options.iterations == 5


def test_what_a_command_says_comes_before_the_file(seed: Path) -> None:
    file = write_config(seed.parent, "refine: {tiers: {low: 'a:b'}, iterations: 5}\n")
    tiers = TierPlan(high=parse_pair("simulated:"))
    found = load_refinement(seed, RefinementSettings(config=file, command=("true",), tiers=tiers, iterations=2))
    assert (found.options.tiers, found.options.iterations) == (tiers, 2)
    pair = ModelPair(manager="simulated")
    found = load_refinement(seed, RefinementSettings(config=file, command=("true",), models=pair))
    assert (found.options.tiers.is_trivial, found.options.models, found.warnings) == (True, pair, ())


def test_weights_and_floors_are_configured(seed: Path) -> None:
    file = write_config(seed.parent, "refine: {loss: {high: 0.2, gate_rejection: 0.5}, floors: {tokens: 900}}\n")
    options = load_refinement(seed, RefinementSettings(config=file, command=("true",))).options
    assert options.weights == LossWeights(
        defects={"critical": 0.10, "high": 0.2, "medium": 0.03, "low": 0.01}, rejection=0.5
    )
    assert options.floors == BudgetFloors(tokens=900)
    assert options.least_wall_time_s == 0  # twice the time of the seed, however short it was


def test_the_manager_is_the_first_model_unless_it_is_named(seed: Path) -> None:
    plain = load_refinement(seed, RefinementSettings(config=write_config(seed.parent, "")))
    assert plain.runner.roles == NodeRoles(managers=("plan",), prefix_node="plan")
    file = write_config(seed.parent, "refine: {manager: write, prefix_node: plan}\n")
    named = load_refinement(seed, RefinementSettings(config=file))
    assert named.runner.roles == NodeRoles(managers=("write",), prefix_node="plan")


def test_a_node_that_does_not_exist_is_reported(seed: Path) -> None:
    file = write_config(seed.parent, "refine: {manager: plam}\n")
    with pytest.raises(SetupError, match=r"no node 'plam' \(did you mean 'plan'\?\)"):
        load_refinement(seed, RefinementSettings(config=file))


def test_an_agent_needs_something_to_be_measured_by(seed: Path) -> None:
    with pytest.raises(SetupError, match="nothing would measure"):
        load_refinement(seed, RefinementSettings(agent="configured_team:agent"))


def test_a_rubric_can_be_anywhere(seed: Path) -> None:
    rubric = seed.parent / "quality.md"
    rubric.write_text("1. It is short.\n2. It is true.\n")
    given = RefinementSettings(agent="configured_team:agent", rubric=rubric, judge="simulated")
    found = load_refinement(seed, given)
    assert found.runner.evaluator is not None
    [metric] = found.runner.evaluator.metrics
    assert isinstance(metric, JudgeMetric)
    assert metric.description == "a judge asks: It is short. / It is true."
    assert not found.seed.is_measured


def test_an_unknown_model_is_reported(seed: Path) -> None:
    file = write_config(seed.parent, "")
    with pytest.raises(RequestError, match="nobody-serves-this"):
        load_refinement(seed, RefinementSettings(config=file, models=ModelPair(manager="nobody-serves-this")))


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"iterations": 11}, "refine.iterations"),
        ({"tiers": {"lowest": "a:b"}}, "refine.tiers"),
        ({"loss": {"high": -1}}, "refine.loss.high"),
        ({"floors": {"tokens": 0}}, "refine.floors.tokens"),
        ({"threshold": 2}, "refine.threshold"),
    ],
)
def test_a_wrong_section_is_reported(section: Json, problem: str) -> None:
    parsed = read_document({"refine": section}, file=Path("promptiter.yaml"))
    assert any(problem in each for each in parsed.problems), parsed.problems
