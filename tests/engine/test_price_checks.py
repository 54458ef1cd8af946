"""Models that a cap in dollars does not cover are refused before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest

from promptiter.agents.declarations import Parameter
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.request_checks import check_request_for
from promptiter.errors import RequestError
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from tests.worlds import desk

PRICES = {
    "cheap": Price(input_usd_per_million=0.1, output_usd_per_million=0.4),
    "dear": Price(input_usd_per_million=100, output_usd_per_million=400),
}


def find_problems(
    max_usd: float, *, targets: tuple[str, ...] = ("w#model",), models: tuple[str, ...] = ("cheap", "dear"), **node: Any
) -> tuple[str, ...]:
    subject = ModelNode(name="w", instruction="Answer.", model="cheap", models=models, **node)
    served = {name: ScriptedModel([]) for name in (*PRICES, "unpriced")}
    gateway = Gateway(models=served, prices=Prices(PRICES), budget=Budget(max_usd=max_usd))
    agent = GraphAgent(name="outer", nodes=(GraphAgent(name="inner", nodes=(subject,)),))
    request = desk.request(targets=[f"inner/{each}" for each in targets])
    try:
        check_request_for(agent, request, desk.evaluator(gateway), None)
    except RequestError as error:
        return error.problems
    return ()


def test_a_model_of_which_one_call_exceeds_the_cap_is_refused() -> None:
    [problem] = find_problems(0.5)
    assert problem == (
        "inner/w#model: one call of model 'dear' may cost $1.638 or more (an answer of up to 4,096 tokens), but "
        "max_usd is $0.5, so it could never be called; raise max_usd, remove 'dear' from the models of node 'inner/w', "
        "or set a lower max_tokens in the options of the node"
    )
    assert find_problems(2.0) == ()
    assert find_problems(0.5, targets=("w#instruction",)) == (), "the search does not choose the model"


@pytest.mark.parametrize(
    ("limit", "targets", "problems"),
    [
        ({"options": {"max_tokens": 1000}}, (), 0),
        ({"options": {"max_tokens": 2000}}, (), 1),
        ({"parameters": {"max_tokens": Parameter(value=2000, minimum=100)}}, (), 1),
        ({"parameters": {"max_tokens": Parameter(value=2000, minimum=100)}}, ("w#parameter.max_tokens",), 0),
    ],
)
def test_the_longest_answer_is_that_of_the_nodes_options(limit: Any, targets: tuple[str, ...], problems: int) -> None:
    assert len(find_problems(0.5, targets=("w#model", *targets), **limit)) == problems


def test_a_cap_in_dollars_needs_the_price_of_every_model_that_the_search_may_choose() -> None:
    [problem] = find_problems(0.5, models=("cheap", "unpriced"))
    assert problem.startswith("max_usd cannot be enforced: the price of model 'unpriced' is unknown")
    assert find_problems(0.5, models=("cheap", "unpriced"), targets=("w#instruction",)) == ()
