from __future__ import annotations

import os

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.model_checks import check_models
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import Function, Model, ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.profile import Profile
from promptiter.search.rounds import BackpropRounds
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import Watcher

LINE = "gpt-4o-mini needs OPENAI_API_KEY; set it, or models.gpt-4o-mini.api_key in promptiter.yaml"
AGENT = GraphAgent(name="bot", nodes=(ModelNode(name="bot", instruction="Answer.", model="gpt-4o-mini"),))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)


@pytest.mark.slow
async def test_a_run_from_python_does_not_start_without_a_key() -> None:
    watcher = Watcher()
    engine = Engine(AGENT, desk.evaluator(Gateway()), search=desk.Tries())
    with pytest.raises(RequestError) as refused:
        await engine.run(desk.request(), observers=[watcher])
    assert (refused.value.problems, watcher.events) == ((f"bot#model: {LINE}",), [])


@pytest.mark.slow
def test_the_model_of_the_initial_profile_is_checked() -> None:
    evaluator = desk.evaluator(Gateway(models={"own": lambda _: "hello"}))
    own = Profile.of(AGENT.describe(), {"bot#model": "own"})
    check_models(AGENT, evaluator, profile=own)
    with pytest.raises(RequestError, match=LINE):
        check_models(AGENT, evaluator)


class OwnSdkAgent:
    """An agent that calls its model itself."""

    def describe(self) -> StructureSnapshot:
        return AGENT.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        raise NotImplementedError


def test_an_agent_that_may_bypass_the_gateway_is_not_refused() -> None:
    check_models(OwnSdkAgent(), desk.evaluator(Gateway()))


async def test_a_cap_in_dollars_needs_the_prices_of_stages_from_python_too() -> None:
    free = Price(input_usd_per_million=0, output_usd_per_million=0)
    models: dict[str, Model | Function] = {"scripted": desk.model(), "mine": ScriptedModel([])}
    gateway = Gateway(models=models, prices=Prices({"scripted": free}), budget=Budget(max_usd=1))
    search = BackpropRounds(optimizer=LLMOptimizer("mine"))
    with pytest.raises(RequestError) as caught:
        await Engine(desk.agent(), desk.evaluator(gateway), search=search).run(desk.request())
    [problem] = caught.value.problems
    assert problem == (
        "LLMOptimizer: max_usd cannot be enforced: the price of model 'mine' is unknown; give it one as "
        "models.mine.price in promptiter.yaml or prices= of the Gateway, or set budget.allow_unknown_price"
    )


async def test_a_cap_in_dollars_needs_the_price_of_every_judge_before_the_first_call() -> None:
    free = Price(input_usd_per_million=0, output_usd_per_million=0)
    models: dict[str, Model | Function] = {"scripted": desk.model(), "house-judge": ScriptedModel([])}
    gateway = Gateway(models=models, prices=Prices({"scripted": free}), budget=Budget(max_usd=1))
    criterion = {"llm_judge": {"judge_model": "house-judge", "rubrics": [{"id": "ready", "content": "It is ready."}]}}
    entry = {"metric_name": "ready", "evaluator_name": "llm_rubric_response", "criterion": criterion}
    evaluator = Evaluator(build_metrics([entry], gateway=gateway), gateway=gateway)
    watcher = Watcher()
    with pytest.raises(RequestError, match="the price of model 'house-judge' is unknown"):
        await Engine(desk.agent(), evaluator, search=desk.Tries()).run(desk.request(), observers=[watcher])
    assert watcher.events == []
    assert gateway.ledger.snapshot().total.calls == 0
