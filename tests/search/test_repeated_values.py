"""An optimizer that repeats rejected values is told so once; then the search moves on, or ends."""

from __future__ import annotations

import json

from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.patch_writing import DIFFERENTLY
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.stopping import TargetScore
from promptiter.search.propose import ONLY_REPEATS
from tests.worlds import desk
from tests.worlds.desk_stages import Blames, Merges

USELESS = "Draft something else."
RUINS = "Draft something that ruins it all."


def build_engine(draft: str, *, polish: str | None = None) -> tuple[Engine, ScriptedModel]:
    """The desk with an optimizer whose model always writes the same values, and that model."""

    def write(request: ModelRequest) -> ModelReply:
        value = draft if "surface: draft#instruction" in request.messages[1].content else polish
        return ModelReply(text=json.dumps({"reason": "care", "value": value}))

    def ruin(request: ModelRequest) -> None:
        if RUINS in request.messages[0].content:
            raise RuntimeError("ruined")

    writer = ScriptedModel(write)
    evaluator = desk.evaluator(Gateway(models={"scripted": desk.model(ruin), "writer": writer}))
    return Engine(desk.agent(), evaluator, Blames(), Merges(), LLMOptimizer("writer")), writer


async def test_a_repeated_value_is_pointed_out_once_with_what_failed_with_it() -> None:
    built, writer = build_engine(USELESS)
    result = await built.run(desk.request(max_rounds=6, targets=["draft#instruction"]))
    assert result.stop_reason == "exhausted"
    assert len(writer.requests) == 5, "one is tried, twice it changes nothing, twice it is a repetition"
    *_, second, told = (each.messages[-1].content for each in writer.requests)
    assert DIFFERENTLY in told
    assert DIFFERENTLY not in second
    assert told.count("this value was rejected before") == 1
    assert 'name="rejected 2"' not in told, "the value is shown once"
    assert 'name="with rejected 1, case 1"' in told, "with what failed with it"
    assert not result.measured.problems


async def test_of_a_rejected_pair_that_is_written_again_each_half_is_tried() -> None:
    built, _ = build_engine(RUINS, polish="Polish: careful.")
    result = await built.run(desk.request(max_rounds=4, stop=TargetScore(1.0)))
    tried = [[patch.surface_id for patch in each.patches] for each in result.rounds]
    assert tried[0] == ["draft#instruction", "polish#instruction"]
    assert ["draft#instruction"] in tried[1:]
    assert [change.surface_id for change in result.changes] == ["polish#instruction"]


async def test_what_the_optimizer_cannot_answer_is_not_asked_again() -> None:
    built, writer = build_engine(USELESS, polish="Polish: careful.")
    result = await built.run(desk.request(max_rounds=8))
    asked = [each.messages[1].content.partition("surface: ")[2].split("\n")[0] for each in writer.requests]
    assert result.accepted_score == 0.5
    assert asked == ["draft#instruction", "polish#instruction", *["draft#instruction"] * 2]
    assert result.rounds[-1].skipped == f"draft#instruction: {ONLY_REPEATS}"


async def test_a_value_that_changes_nothing_does_not_stop_the_others() -> None:
    built, _ = build_engine("Draft.", polish="Polish: careful.")
    result = await built.run(desk.request(max_rounds=1))
    assert [change.surface_id for change in result.changes] == ["polish#instruction"]
    [refused, again] = get_passes(result.rounds[0])[0].refused
    assert refused.reason == again.reason == "this is the current value; change something"
    assert not result.measured.problems
