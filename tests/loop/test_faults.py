"""A run through litellm and an HTTP server that fails a third of its requests gives the result of one without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import Model
from promptiter.llm.retries import Retries
from promptiter.policies.stopping import TargetScore
from promptiter.runlog.results import RunResult
from tests.worlds.bars import take_cases
from tests.worlds.expert import Expert
from tests.worlds.model_server import LoopbackServer, reply_at_once, run_server
from tests.worlds.scenarios import Scenario, make_scenario


class Service:
    """The models behind the server: the scenario's simulated model for the agent, an expert for the stages."""

    def __init__(self, made: Scenario) -> None:
        self.made = made
        self.expert = Expert(made)

    def answer(self, body: dict[str, Any]) -> str:
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
        messages = tuple(Message(each["role"], each["content"]) for each in body["messages"])
        asked = ModelRequest(model="simulated", messages=messages, schema=schema)
        model = self.made.model if schema is None else self.expert.model
        return reply_at_once(model(asked, repeat=0)).text


class OverHttp:
    """A model of the scenario, served by the loopback server through litellm."""

    def __init__(self, url: str) -> None:
        self.model = LiteLLMModel(api_base=url, api_key="sk-loopback", timeout_s=10)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        return await self.model(replace(request, model="openai/local"), repeat=repeat)


async def optimize(made: Scenario, model: Model, expert: Model, *, with_models: bool) -> RunResult:
    retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
    gateway = Gateway(models={"simulated": model, "expert": expert}, retries=retries)
    evaluator = Evaluator(made.metrics, gateway=gateway)
    stages = (LLMBackwarder("expert"), LLMAggregator("expert"), LLMOptimizer("expert")) if with_models else ()
    request = RunRequest(train=made.train, validation=made.validation, stop=TargetScore(1.0), run_id="faults")
    return await Engine(made.agent, evaluator, *stages).run(request)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("with_models", [False, True])
async def test_faults_of_the_server_do_not_change_the_result(with_models: bool) -> None:
    made = take_cases(make_scenario("two_masked", 0), 4, 3)
    reliable = await optimize(made, made.model, Expert(made).model, with_models=with_models)
    with run_server(LoopbackServer(Service(made).answer, fault_rate=0.3, seed=5)) as server:
        served = OverHttp(server.url)
        faulty = await optimize(made, served, served, with_models=with_models)
    assert len(server.faults) >= 15
    assert reliable.accepted_score == faulty.accepted_score == 1.0
    assert reliable.accepted_profile == faulty.accepted_profile
    assert {change.surface_id for change in faulty.changes} == made.faulty
