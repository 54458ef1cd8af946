"""500 calls at once against each kind of cap, through litellm and a server that fails: reported usage stays below."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from promptiter.errors import BudgetEndedError
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import Spending
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.prices import Price, Prices
from promptiter.llm.retries import Retries
from tests.worlds import desk
from tests.worlds.model_server import HTTP_FAULTS, LoopbackServer, run_server

MODEL = "scripted"
CALLS = 500
PRICE = Price(input_usd_per_million=1.0, output_usd_per_million=10.0)
CAPS: dict[str, Any] = {
    "calls": {"max_calls": 150},
    "tokens": {"max_tokens": 4_000},
    "usd": {"max_usd": 0.03},
    "all": {"max_calls": 200, "max_tokens": 5_000, "max_usd": 0.04},
}


class OverHttp:
    """The model of the agent, served by the loopback server through litellm."""

    def __init__(self, server: LoopbackServer) -> None:
        self.model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        return await self.model(ModelRequest(model="openai/local", messages=request.messages), repeat=repeat)


def answer_of_20_words(body: dict[str, Any]) -> str:
    """Twenty words, which the server reports as twenty tokens: the most that a call may have."""
    return " ".join([str(body["messages"][-1]["content"]).replace(" ", "-"), *["word"] * 19])


def faulty_server() -> LoopbackServer:
    return LoopbackServer(answer_of_20_words, fault_rate=0.3, seed=3)


def gateway(server: LoopbackServer, budget: Budget | Budgets) -> Gateway:
    return Gateway(
        models={MODEL: OverHttp(server)},
        budget=budget,
        prices=Prices({MODEL: PRICE}),
        retries=Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05),
        max_output_tokens=20,
        concurrency=100,
    )


def assert_within(spent: Spending, caps: dict[str, float]) -> None:
    reported = {"max_calls": spent.calls, "max_tokens": spent.tokens, "max_usd": spent.cost_usd or 0.0}
    assert all(reported[name] <= cap for name, cap in caps.items()), reported
    assert any(reported[name] > 0.85 * cap for name, cap in caps.items()), reported


async def ask_all(door: Gateway) -> Counter[str]:
    calls = (
        door.ask(ModelRequest(model=MODEL, messages=(Message("user", f"question {n}"),)), CallSite(case_id=str(n)))
        for n in range(CALLS)
    )
    done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 120)
    outcomes = Counter(type(each).__name__ for each in done)
    assert set(outcomes) == {ModelReply.__name__, BudgetEndedError.__name__}
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPS)
async def test_reported_usage_is_never_above_a_cap(kind: str) -> None:
    budget = Budget(**CAPS[kind])
    with run_server(faulty_server()) as server:
        door = gateway(server, budget)
        outcomes = await ask_all(door)
    assert set(server.faults) == set(HTTP_FAULTS)
    spent = door.ledger.snapshot().total
    assert outcomes["ModelReply"] == spent.calls == budget.state.calls
    assert (spent.tokens, spent.cost_usd) == (budget.state.tokens, budget.state.cost_usd)
    assert_within(spent, CAPS[kind])
    assert (budget.state.calls_in_flight, budget.state.over_bound_calls) == (0, 0)


@pytest.mark.slow
async def test_neither_of_two_budgets_is_exceeded_and_held_amounts_stay_available() -> None:
    run, stage = Budget(max_calls=400, max_tokens=8_000), Budget(max_usd=0.05)
    both = Budgets(run, stage)
    both.hold(Spending(calls=100, input_tokens=4_000, cost_usd=0.02), share=0.5)
    with run_server(faulty_server()) as server:
        door = gateway(server, both)
        await ask_all(door)
        first = door.ledger.snapshot().total
        assert_within(first, {"max_calls": 300, "max_tokens": 4_000, "max_usd": 0.03})
        both.release()
        await ask_all(door)
    assert_within(door.ledger.snapshot().total, {"max_calls": 400, "max_tokens": 8_000, "max_usd": 0.05})
    assert door.ledger.snapshot().total.calls > first.calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPS)
async def test_evaluations_at_the_same_time_stay_within_a_cap_together(kind: str) -> None:
    """Two evaluations of 125 cases, with two calls each."""
    with run_server(faulty_server()) as server:
        door = gateway(server, Budget(**CAPS[kind]))
        evaluator = desk.evaluator(door, concurrency=64)
        done = await asyncio.gather(
            *(evaluator.evaluate(desk.agent(), desk.eval_set(name, 125)) for name in ("one", "two")),
            return_exceptions=True,
        )
    assert [type(each) for each in done] == [BudgetEndedError, BudgetEndedError]
    spent = door.ledger.snapshot().total
    assert all(figure <= cap for figure, cap in zip(_figures(spent), _caps(kind), strict=True))


def _figures(spent: Spending) -> tuple[float, float, float]:
    return spent.calls, spent.tokens, spent.cost_usd or 0.0


def _caps(kind: str) -> list[float]:
    return [CAPS[kind].get(name, float("inf")) for name in ("max_calls", "max_tokens", "max_usd")]
