"""Stage models that think aloud, draft, fence and wrap their answers: a run takes the same calls and ends the same."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import Model
from promptiter.policies.stopping import TargetScore
from tests.worlds.planted_world import EXPERT, PlantedWorld
from tests.worlds.planted_worlds import make_world
from tests.worlds.sighted_expert import SightedExpert
from traces.model import Json

WRAPPERS = (
    "Here is the improved instruction:\n\n{}",
    '<data name="current value">\n{}\n</data>',
    "```\n{}\n```",
)
BEGINNINGS = (
    "<think>maybe {draft}</think>\n",
    "[Step 2] of {{name}} is the cause. A first idea:\n```json\n{draft}\n```\nNo, better:\n",
    "Could it be {draft}? No.\n</think>\n",
)


class MessyModel:
    """Gives the answers of another model in the form of a model that is careless about form."""

    def __init__(self, model: Model) -> None:
        self.calls = 0
        self._model = model

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.calls += 1
        reply = await self._model(request, repeat=repeat)
        return replace(reply, text=make_messy(json.loads(reply.text), Random(request.digest)))


def make_messy(answer: dict[str, Json], rng: Random) -> str:
    draft = json.dumps({name: [] if isinstance(value, list) else "" for name, value in answer.items()})
    if isinstance(value := answer.get("value"), str):
        answer = {**answer, "value": rng.choice(WRAPPERS).format(value)}
    raw = json.dumps(answer, indent=1).replace("\\n", "\n").removesuffix("\n}")
    beginning = rng.choice(BEGINNINGS).format(draft=draft)
    return f"{beginning}```json\n{raw},\n}}\n```\nSee [1] for {{details}}."


async def optimize(world: PlantedWorld, expert: Model) -> dict[str, Json]:
    evaluator = world.build_evaluator()
    evaluator.gateway.add_model(EXPERT, expert)
    stages = LLMBackwarder(EXPERT), LLMAggregator(EXPERT), LLMOptimizer(EXPERT)
    request = RunRequest(
        train=world.train, validation=world.validation, final_test=None, stop=TargetScore(1.0), max_rounds=2
    )
    result = await Engine(world.agent, evaluator, *stages).run(request)
    return {change.surface_id: change.after for change in result.changes}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triage", "exit-loop"])
async def test_messy_answers_cost_no_call_and_change_no_result(name: str) -> None:
    world = make_world(name, seed=0)
    clean, careless = SightedExpert(world.knowledge), SightedExpert(world.knowledge)
    messy = MessyModel(careless)
    expected = await optimize(world, clean)
    assert expected.keys() == world.faulty
    assert await optimize(world, messy) == expected
    assert messy.calls == sum(clean.calls.values()) == sum(careless.calls.values())
