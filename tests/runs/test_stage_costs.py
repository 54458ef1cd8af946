"""What each stage of a run took: every paid call counts once, in the stage where a forecast counts it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

import promptiter
from promptiter.agents.declarations import Tool
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.engine.engine import Engine
from promptiter.engine.run import RunFailedError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runs.directory import RunDirectory
from promptiter.runs.stage_costs import STAGE_OF_PHASE, spent_by_stage
from promptiter.search.gepa import GepaSearch
from promptiter.testing.store_hooks import Killed
from tests.worlds import desk, desk_stages, two_cares
from tests.worlds.starter import Shop, kill_runs_at
from traces import Usage


def calls_of(folder: Path) -> dict[str, int]:
    [run] = folder.glob("[!.]*")
    return {stage: spent.calls for stage, spent in spent_by_stage(run).items()}


@pytest.mark.slow
def test_the_stages_of_a_run_add_up_to_what_it_paid(tmp_path: Path) -> None:
    result = Shop().run(tmp_path)
    [run] = tmp_path.glob("[!.]*")
    found = spent_by_stage(run)
    assert list(found) == ["baseline", "train", "rerun", "validation", "ablation", "final_test"]
    assert found["baseline"].calls == 6 * 6
    assert found["train"].calls == 8 * 6
    paid = result.measured.spent.of_models
    assert sum(spent.calls for spent in found.values()) == paid.calls
    assert sum(spent.tokens for spent in found.values()) == paid.tokens
    assert sum(spent.cost_usd or 0 for spent in found.values()) == pytest.approx(paid.cost_usd)


def test_every_phase_that_runs_cases_has_a_stage() -> None:
    """Phases are words of the searches, so they are read from the code."""
    words = {
        word
        for file in Path(promptiter.__file__).parent.glob("search/**/*.py")
        for word in re.findall(r'phase="(\w+)"', file.read_text())
    }
    assert {"screening", "repeat", "trial"} <= words
    assert words <= STAGE_OF_PHASE.keys()


def test_the_case_runs_of_gepa_are_part_of_stages(tmp_path: Path) -> None:
    search = GepaSearch(desk_stages.Blames(), desk_stages.Merges(), reflection_model=two_cares.EDITOR, seed=0)
    directory = RunDirectory.begin(tmp_path, two_cares.build_engine(search), two_cares.build_request())
    result = directory.run_sync()
    found = calls_of(tmp_path)
    assert list(found) == ["baseline", "train", "optimizer", "rerun", "validation"]
    assert sum(found.values()) == result.measured.spent.of_models.calls


@pytest.mark.slow
def test_a_run_that_was_killed_took_the_same(tmp_path: Path) -> None:
    Shop().run(tmp_path / "whole")
    for seq in (12, 60):
        with kill_runs_at(seq), suppress(Killed):
            Shop().run(tmp_path / "killed")
    Shop().run(tmp_path / "killed")
    assert calls_of(tmp_path / "killed") == calls_of(tmp_path / "whole")


def test_a_call_that_is_not_the_agents_counts_for_its_role_and_one_of_a_tool_not_at_all(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> ModelReply:
        has_looked = any(message.role == "tool" for message in request.messages)
        wishes = () if has_looked else (ToolRequest(id="t", name="look", arguments={}),)
        return ModelReply(text="" if wishes else "done", tool_requests=wishes, usage=Usage(input_tokens=1))

    tool = Tool(name="look", description="Looks.", function=lambda: "seen")
    nodes = (ModelNode(name="seeker", instruction="Look.", model="scripted", tools=(tool,)),)
    gateway = Gateway(
        models={"scripted": ScriptedModel(script), "blamer": ScriptedModel(lambda _: ModelReply(text="no idea"))}
    )
    evaluator = Evaluator([FunctionMetric(name="careful", function=desk.score)], gateway=gateway)
    engine = Engine(GraphAgent(name="seeking", nodes=nodes), evaluator, LLMBackwarder("blamer"))
    with pytest.raises(RunFailedError) as failed:
        RunDirectory.begin(tmp_path, engine, desk.request(run_id="", max_rounds=1)).run_sync()
    blaming = failed.value.result.measured.spent.by_role()["backwarder"]
    assert calls_of(tmp_path) == {"baseline": 2 * 2, "train": 3 * 2, "backwarder": blaming.calls}


def test_a_folder_without_calls_took_nothing(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    assert spent_by_stage(tmp_path) == {}
