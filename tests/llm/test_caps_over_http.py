"""500 calls at once against each kind of cap, through litellm and a server that fails: its own count stays below.

Of the requests, 30% fail; besides, the server may report no usage, or answer after the client has given up.
"""

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
ONE_CAP = ("calls", "tokens", "usd")


class OverHttp:
    """The model of the agent, served by the loopback server through litellm."""

    def __init__(self, server: LoopbackServer, *, timeout_s: float = 10) -> None:
        self.model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=timeout_s)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        return await self.model(ModelRequest(model="openai/local", messages=request.messages), repeat=repeat)


def answer_of_20_words(body: dict[str, Any]) -> str:
    """Twenty words, which the server reports as twenty tokens: the most that a call may have."""
    return " ".join([str(body["messages"][-1]["content"]).replace(" ", "-"), *["word"] * 19])


def faulty_server(**settings: Any) -> LoopbackServer:
    return LoopbackServer(answer_of_20_words, fault_rate=0.3, seed=3, **settings)


def gateway(server: LoopbackServer, budget: Budget | Budgets, *, timeout_s: float = 10) -> Gateway:
    return Gateway(
        models={MODEL: OverHttp(server, timeout_s=timeout_s)},
        budget=budget,
        prices=Prices({MODEL: PRICE}),
        retries=Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05),
        max_output_tokens=20,
        concurrency=100,
    )


def assert_within(spent: Spending, caps: dict[str, float]) -> None:
    calls, tokens, usd = _figures(spent)
    reported = {"max_calls": calls, "max_tokens": tokens, "max_usd": usd}
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
@pytest.mark.parametrize("kind", ["all", *(pytest.param(kind, marks=pytest.mark.long) for kind in ONE_CAP)])
@pytest.mark.parametrize(
    ("settings", "timeout_s"),
    [({}, 10.0), ({"reports_usage": False}, 10.0), pytest.param({"slow_s": 3.0}, 1.0, marks=pytest.mark.long)],
    ids=["faults", "no usage", "timeouts"],
)
async def test_what_the_server_bills_is_never_above_a_cap(
    kind: str, settings: dict[str, Any], timeout_s: float
) -> None:
    budget = Budget(**CAPS[kind])
    with run_server(faulty_server(**settings)) as server:
        door = gateway(server, budget, timeout_s=timeout_s)
        outcomes = await ask_all(door)
    assert set(server.faults) == set(HTTP_FAULTS) or not server.reports_usage  # few calls fit without usage
    spent = door.ledger.snapshot().total
    assert outcomes["ModelReply"] == spent.calls
    assert spent.calls + spent.lost_calls == budget.state.calls == len(server.billed)
    assert spent.lost_calls >= sum(server.faults.count(fault) for fault in ("cut", "malformed_body"))
    assert spent.tokens + spent.possible_tokens == budget.state.tokens
    billed_usd = sum((tokens[0] + 10 * tokens[1]) / 1e6 for tokens in server.billed)
    billed = {"max_calls": len(server.billed), "max_tokens": sum(map(sum, server.billed)), "max_usd": billed_usd}
    assert all(billed[name] <= cap for name, cap in CAPS[kind].items()), billed
    assert billed["max_tokens"] <= budget.state.tokens
    assert billed["max_usd"] <= budget.state.cost_usd + 1e-9
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
    """What a budget counts."""
    usd = (spent.cost_usd or 0.0) + spent.possible_usd
    return spent.calls + spent.lost_calls, spent.tokens + spent.possible_tokens, usd


def _caps(kind: str) -> list[float]:
    return [CAPS[kind].get(name, float("inf")) for name in ("max_calls", "max_tokens", "max_usd")]
