"""What a call is counted as: in the budget, in the ledger and in the call log, as the server may count it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptiter.errors import (
    BudgetEndedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    TransientModelError,
)
from promptiter.llm.budget import Budget
from promptiter.llm.cache.call_log import CallLog, read_account
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import Spending
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.pool import bound_tokens
from promptiter.llm.prices import Price, Prices
from promptiter.llm.retries import Retries
from traces import Usage

PRICE = Price(input_usd_per_million=1_000.0, output_usd_per_million=10_000.0)
REQUEST = ModelRequest(model="m", messages=(Message("user", "hello"),), options={"max_tokens": 50})
TOKENS = bound_tokens(REQUEST)
USD = PRICE.bound_usd(TOKENS)
COUNTED = ModelReply(text="x", usage=Usage(input_tokens=10, output_tokens=20))
CUT = ModelUnavailableError("the connection broke off", may_be_billed=True)


class Server:
    """A model whose attempts end in these ways, one after the other."""

    def __init__(self, *outcomes: Exception | ModelReply | None) -> None:
        self.outcomes = list(outcomes)
        self.received = 0
        self.is_called = asyncio.Event()

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
        self.received += 1
        self.is_called.set()
        outcome = self.outcomes.pop(0)
        if outcome is None:
            await asyncio.sleep(3600)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome


class Door:
    """A gateway with a call log, as a run has one. It can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "calls.jsonl"
        self._open: list[CallLog] = []

    def open(self, server: Server, **caps: float) -> Gateway:
        self.close()
        log = CallLog(self.path)
        self._open.append(log)
        budget = Budget(**caps)  # type: ignore[arg-type]
        if self.path.stat().st_size:
            budget.charge(read_account(self.path).of_models, of="run")
        return Gateway(
            models={"m": server},
            cache=log,
            budget=budget,
            prices=Prices({"m": PRICE}),
            retries=Retries(attempts=3, first_delay_s=0.0),
            timeout_s=0.05 if None in server.outcomes else 60,
        )

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    with closing(Door(tmp_path)) as made:
        yield made


def check_counts(gateway: Gateway, path: Path, expected: Spending) -> None:
    """Ledger, log and budget agree."""
    total = gateway.ledger.snapshot().total
    assert total == read_account(path).total
    assert _figures(total) == _figures(expected)
    assert gateway.budget is not None
    budget = Budget()
    budget.charge(total, of="run")
    assert isinstance(gateway.budget, Budget)
    assert gateway.budget.state == budget.state


async def end_other_tasks() -> None:
    """Wait for all other tasks, also of calls that no caller waits for."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left)


def _figures(spent: Spending) -> tuple[Any, ...]:
    return (
        spent.calls,
        spent.lost_calls,
        spent.attempts,
        spent.tokens,
        spent.possible_tokens,
        spent.cost_usd,
        round(spent.possible_usd, 9),
    )


@pytest.mark.parametrize("fault", [None, ModelTimeoutError("late"), CUT])
async def test_attempts_that_may_have_been_billed_count_as_lost_calls_at_their_bound(
    door: Door, fault: Exception | None
) -> None:
    gateway = door.open(Server(fault, COUNTED))
    await gateway.ask(REQUEST, CallSite())
    cost = PRICE.cost_usd(COUNTED.usage)
    expected = Spending(
        calls=1, lost_calls=1, attempts=2, input_tokens=30, cost_usd=cost, possible_tokens=TOKENS, possible_usd=USD
    )
    check_counts(gateway, door.path, expected)


@pytest.mark.parametrize("fault", [RateLimitedError("429"), ModelUnavailableError("503")])
async def test_attempts_that_the_server_refused_cost_nothing(door: Door, fault: TransientModelError) -> None:
    gateway = door.open(Server(fault, COUNTED), max_calls=1)
    await gateway.ask(REQUEST, CallSite())
    cost = PRICE.cost_usd(COUNTED.usage)
    check_counts(gateway, door.path, Spending(calls=1, attempts=2, input_tokens=30, cost_usd=cost))


@pytest.mark.parametrize("caps", [{"max_calls": 2}, {"max_tokens": 2 * TOKENS}, {"max_usd": 2 * USD}])
async def test_no_attempt_is_made_that_does_not_fit_after_those_that_timed_out(
    door: Door, caps: dict[str, float]
) -> None:
    server = Server(CUT, CUT, COUNTED)
    gateway = door.open(server, **caps)
    with pytest.raises(BudgetEndedError):
        await gateway.ask(REQUEST, CallSite())
    assert server.received == 2
    resumed = Server(COUNTED)
    with pytest.raises(BudgetEndedError):
        await door.open(resumed, **caps).ask(REQUEST, CallSite())
    assert resumed.received == 0


async def test_a_retry_that_waits_for_the_budget_holds_no_slot() -> None:
    """Otherwise a call with a reservation would wait for the slot, and the retry for that call."""
    first, second = (ModelRequest(model="m", messages=(Message("user", text),)) for text in "12")
    server = Server(CUT, COUNTED, COUNTED)
    budget = Budget(max_tokens=3 * bound_tokens(ModelRequest(**_with_bound(first))) - 1)
    gateway = Gateway(models={"m": server}, budget=budget, concurrency=1, retries=Retries(first_delay_s=0.0))
    async with asyncio.timeout(30):
        await asyncio.gather(*(gateway.ask(each, CallSite()) for each in (first, second)))
    assert server.received == 3


def _with_bound(request: ModelRequest) -> dict[str, Any]:
    return {"model": request.model, "messages": request.messages, "options": {"max_tokens": 4096}}


async def test_a_call_that_is_cancelled_in_flight_counts_as_lost(door: Door) -> None:
    server = Server(None)
    gateway = door.open(server)
    gateway.pool.timeout_s = 60
    call = asyncio.create_task(gateway.ask(REQUEST, CallSite()))
    await server.is_called.wait()
    call.cancel()
    await asyncio.wait([call])
    await end_other_tasks()
    check_counts(gateway, door.path, Spending(lost_calls=1, attempts=1, possible_tokens=TOKENS, possible_usd=USD))


async def test_a_call_that_is_cancelled_before_it_is_sent_costs_nothing() -> None:
    server = Server(None)
    waiting = Gateway(models={"m": server}, budget=Budget(max_calls=1), concurrency=1)
    async with waiting.pool._slots:
        call = asyncio.create_task(waiting.ask(REQUEST, CallSite()))
        for _ in range(10):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await end_other_tasks()
    assert (server.received, waiting.ledger.snapshot().total) == (0, Spending())
    assert isinstance(waiting.budget, Budget)
    assert waiting.budget.state.calls == 0


@pytest.mark.parametrize(
    ("usage", "known"),
    [
        (Usage(), 0),
        (Usage(input_tokens=10), 10),
        (Usage(output_tokens=20), 20),
        (Usage(input_tokens=10, output_tokens=-20), 10),
        (Usage(input_tokens=-10, output_tokens=20, cached_input_tokens=-5), 20),
        (Usage(input_tokens=-10, output_tokens=-20, cost_usd=-1.0), 0),
    ],
)
async def test_unknown_usage_is_charged_at_its_bound_also_after_a_resume(door: Door, usage: Usage, known: int) -> None:
    gateway = door.open(Server(ModelReply(text="x", usage=usage)))
    await gateway.ask(REQUEST, CallSite())
    total = gateway.ledger.snapshot().total
    assert (total.tokens, total.possible_tokens, total.cost_usd) == (known, TOKENS - known, None)
    assert isinstance(gateway.budget, Budget)
    assert (gateway.budget.state.tokens, gateway.budget.state.cost_usd) == (TOKENS, USD)
    resumed = door.open(Server())
    assert isinstance(resumed.budget, Budget)
    assert (resumed.budget.state.calls, resumed.budget.state.tokens, resumed.budget.state.cost_usd) == (1, TOKENS, USD)


async def test_an_answer_longer_than_it_may_be_is_charged_and_counted(door: Door) -> None:
    long = ModelReply(text="x", usage=Usage(input_tokens=10, output_tokens=50 + 1_000))
    server = Server(long, COUNTED)
    gateway = door.open(server, max_tokens=TOKENS + 100)
    await gateway.ask(REQUEST, CallSite())
    with pytest.raises(BudgetEndedError, match="a call cost more than it had reserved"):
        await gateway.ask(REQUEST, CallSite(repeat=1))
    total = read_account(door.path).total
    assert (total.tokens, total.overlong_answers, total.excess_tokens) == (1_060, 1, 1_000)
    assert isinstance(gateway.budget, Budget)
    assert gateway.budget.state.tokens == 1_060


async def test_no_call_that_waited_is_sent_after_an_overlong_answer_exceeded_a_cap() -> None:
    long = ModelReply(text="x", usage=Usage(input_tokens=10, output_tokens=1_000))
    server, budget = Server(long, *[COUNTED] * 3), Budget(max_tokens=4 * TOKENS)
    gateway = Gateway(models={"m": server}, budget=budget, concurrency=1)
    async with gateway.pool._slots:
        calls = [asyncio.create_task(gateway.ask(REQUEST, CallSite(repeat=number))) for number in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert (budget.state.calls_in_flight, server.received) == (4, 0)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, BudgetEndedError)]
    assert (server.received, len(refused)) == (1, 3)
    assert "raise the cap, and max_tokens in the options of the node or model" in str(refused[0])
    assert (budget.state.calls, budget.state.calls_in_flight, budget.state.tokens) == (1, 0, 1_010)


async def test_more_cached_tokens_than_the_input_has_are_unknown_so_that_the_input_costs_its_full_price(
    door: Door,
) -> None:
    odd = Usage(input_tokens=10, output_tokens=20, cached_input_tokens=1_000)
    gateway = door.open(Server(ModelReply(text="x", usage=odd)))
    gateway.pool.catalog.prices = Prices({"m": replace(PRICE, cached_usd_per_million=100.0)})
    await gateway.ask(REQUEST, CallSite())
    total = gateway.ledger.snapshot().total
    assert total.cached_input_tokens == 0
    assert total.cost_usd == pytest.approx(10 * 1e-3 + 20 * 1e-2)
