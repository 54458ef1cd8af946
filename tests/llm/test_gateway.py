from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, get_args

import pytest

from promptiter.errors import (
    BadRequestError,
    BudgetEndedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    SetupError,
    ToolFailedError,
    TransientModelError,
)
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import CacheKey, MemoryCache, StoredAnswer, open_cache
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.ledger import LedgerEntry, count_calls
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest, Role
from promptiter.llm.models import Answer, Model, ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.llm.rate import Grant, RateLimit
from promptiter.llm.redaction import Redactor
from promptiter.llm.retries import Retries
from traces import Usage

AGENT = CallSite(role="agent", case_id="c1", step_id="bot")


def request(text: str = "hi", **options: Any) -> ModelRequest:
    return ModelRequest(model="m", messages=(Message("user", text),), options=options)


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


def gateway(model: Any, **options: Any) -> Gateway:
    return Gateway(models={"m": model}, sleep=no_sleep, **options)


def failing(*errors: Exception, then: Answer = "done") -> Model:
    left = list(errors)

    class Failing:
        async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
            if left:
                raise left.pop(0)
            return ModelReply(text=str(then), usage=Usage(input_tokens=1, output_tokens=1))

    return Failing()


async def test_an_answer_is_requested_once_and_stored() -> None:
    model = ScriptedModel(["one", "two", "three", "four"])
    door = gateway(model)
    assert (await door.ask(request(), AGENT)).text == "one"
    assert (await door.ask(request(), AGENT)).text == "one"
    assert (await door.ask(request(), CallSite(role="agent", case_id="c2", step_id="bot"))).text == "two"
    assert (await door.ask(request(), CallSite(role="agent", case_id="c1", step_id="bot", repeat=1))).text == "three"
    assert (await door.ask(request(temperature=1), AGENT)).text == "four"
    total = door.ledger.snapshot().total
    assert (total.calls, total.cache_hits) == (4, 1)


@pytest.mark.parametrize("role", get_args(Role))
async def test_two_seeds_are_two_samples_and_one_seed_twice_is_one(role: Role) -> None:
    class Seeded:
        async def __call__(self, request: ModelRequest, *, repeat: int, seed: int = 0) -> ModelReply:  # noqa: ARG002
            return ModelReply(text=f"{seed}")

    door, site = gateway(Seeded(), cache=MemoryCache()), CallSite(role=role)
    texts = [(await door.for_run(seed=seed).ask(request(), site)).text for seed in (0, 1, 2, 1)]
    assert texts == ["0", "1", "2", "1"]
    assert (door.ledger.snapshot().total.calls, door.ledger.snapshot().total.cache_hits) == (3, 1)


async def test_a_tool_is_called_once_for_each_seed() -> None:
    calls: list[int] = []
    door = gateway(ScriptedModel([]), cache=MemoryCache())
    for seed in (0, 1, 0):
        await door.for_run(seed=seed).call_tool("t", {}, lambda: calls.append(1), AGENT)
    assert len(calls) == 2


async def test_a_run_has_a_cache_a_ledger_and_a_budget_of_its_own() -> None:
    door = gateway(ScriptedModel(["one", "two", "three"]), budget=Budget(max_calls=1))
    runs = [door.for_run(), door.for_run()]
    assert [(await run.ask(request(), AGENT)).text for run in runs] == ["one", "two"]
    for run in runs:
        assert run.ledger.snapshot().total.calls == 1
        with pytest.raises(BudgetEndedError):
            await run.ask(request(temperature=1), AGENT)
    assert door.ledger.snapshot().total.calls == 2
    assert (await door.ask(request(), AGENT)).text == "three"  # it has its own budget too


@pytest.mark.parametrize("shared", [None, "memory", "file.jsonl"])
async def test_an_answer_that_the_gateway_paid_itself_counts_as_paid(shared: str | None, tmp_path: Path) -> None:
    cache = None if shared is None else open_cache("memory" if shared == "memory" else tmp_path / shared)
    door = gateway(ScriptedModel(["old", "new"]), cache=cache).for_run()
    await door.ask(request("before"), AGENT)
    counting = door.counting_paid_since(await door.cache.mark())
    found = []
    for text in ("before", "after", "after"):
        with count_calls() as calls:
            await counting.ask(request(text), AGENT)
        found.append((calls.paid, calls.cached))
    assert found == [(0, 1), (1, 0), (1, 0)]
    if cache is not None:
        cache.close()


async def test_equal_calls_of_two_runs_at_once_are_two_calls() -> None:
    door = gateway(ScriptedModel(["one", "two"]))
    replies = await asyncio.gather(*(door.for_run().ask(request(), AGENT) for _ in range(2)))
    assert sorted(reply.text for reply in replies) == ["one", "two"]


async def test_inside_a_run_the_gateway_that_it_was_made_from_answers_for_the_run() -> None:
    door, other = gateway(ScriptedModel(["one"])), gateway(ScriptedModel(["other"]))
    run = door.for_run(seed=3)
    with run.active():
        assert (await door.ask(request(), AGENT)).text == "one"
        assert door.find_active() is run
        assert other.find_active() is other
        assert run.with_seed(4).find_active().seed == 4  # not the active one, but derived from it
    assert run.ledger.snapshot().total.calls == 1
    assert door.cache.stats().entries == 0
    assert door.find_active() is door


@pytest.mark.parametrize("role", [role for role in get_args(Role) if role != "agent"])
async def test_equal_requests_of_different_cases_are_answered_once(role: Role) -> None:
    door = gateway(ScriptedModel(["one"]))
    sites = [CallSite(role=role, case_id=f"c{n}", step_id=f"s{n}", number=n) for n in range(20)]
    assert {reply.text for reply in await asyncio.gather(*(door.ask(request(), site) for site in sites))} == {"one"}
    assert door.ledger.snapshot().total.calls == 1


async def test_equal_requests_of_the_agent_in_different_cases_are_answered_separately() -> None:
    door = gateway(ScriptedModel([str(n) for n in range(20)]))
    sites = [CallSite(case_id=f"c{n}") for n in range(20)]
    assert len({reply.text for reply in await asyncio.gather(*(door.ask(request(), site) for site in sites))}) == 20


async def test_live_calls_are_never_served_from_the_cache_and_are_counted() -> None:
    door = gateway(ScriptedModel(["one", "two", "three"]))
    assert [(await door.ask(request(), AGENT, is_live=True)).text for _ in range(2)] == ["one", "two"]
    assert (door.ledger.snapshot().total.calls, door.cache.stats().entries) == (2, 0)
    assert (await door.ask(request(), AGENT)).text == "three"
    assert (door.ledger.snapshot().total.calls, door.cache.stats().entries) == (3, 1)


async def test_the_cache_gets_the_cost_of_an_answer_after_the_ledger() -> None:
    costs: list[LedgerEntry | None] = []

    class RecordingCache(MemoryCache):
        async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:
            assert door.ledger.snapshot().total.calls == 1
            costs.append(paid)
            return await super().put(key, answer)

    door = gateway(failing(ModelUnavailableError("503")), cache=RecordingCache())
    for _ in range(2):
        await door.ask(request(), AGENT, node_id="bot")
    [paid] = costs
    assert paid is not None
    assert (paid.role, paid.model, paid.node_id) == ("agent", "m", "bot")
    assert (paid.spent.calls, paid.spent.attempts, paid.spent.tokens) == (1, 2, 2)
    assert paid.spent.seconds > 0


async def test_the_cache_is_notified_when_a_call_begins_and_ends() -> None:
    calls: list[str] = []

    class RecordingCache(MemoryCache):
        @asynccontextmanager
        async def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AsyncIterator[None]:
            calls.append(f"asking {lost.model} at {lost.node_id} for {key.step_id}")
            try:
                yield
            except BaseException as error:
                calls.append(type(error).__name__)
                raise
            calls.append("answered")

    left: list[Exception] = [ModelUnavailableError("503"), BadRequestError("no")]

    async def model(_: list[dict[str, Any]]) -> str:
        calls.append("called")
        if left:
            raise left.pop(0)
        return "x"

    def search() -> str:
        calls.append("called")
        return "x"

    door = gateway(model, cache=RecordingCache())
    with pytest.raises(BadRequestError):
        await door.ask(request(), AGENT, node_id="bot")
    started = ["asking m at bot for bot", "called"]
    assert calls == [*started, "ModelUnavailableError", *started, "BadRequestError"]
    calls.clear()
    await door.ask(request(), AGENT, node_id="bot")
    await door.call_tool("search", {}, search, AGENT, node_id="bot")
    assert calls == [
        *("asking m at bot for bot", "called", "answered"),
        *("asking tool:search at bot for bot", "called", "answered"),
    ]
    calls.clear()
    await door.ask(request(), AGENT, is_live=True)
    assert calls == ["asking m at  for bot", "called", "answered"]
    await door.ask(request(), AGENT)
    assert calls[3:] == []


async def test_a_call_that_the_budget_refuses_is_not_made() -> None:
    class Silent(MemoryCache):
        @asynccontextmanager
        async def asking(self, key: CacheKey, *, lost: LedgerEntry) -> AsyncIterator[None]:
            raise AssertionError(f"{key} was asked as {lost}")
            yield

    with pytest.raises(BudgetEndedError):
        await gateway(ScriptedModel([]), cache=Silent(), budget=Budget(max_calls=0)).ask(request(), AGENT)


async def test_an_answer_is_in_the_cache_before_it_is_used(tmp_path: Any) -> None:
    for script in (["paid"], []):
        with closing(open_cache(tmp_path / "cache.jsonl")) as cache:
            assert (await gateway(ScriptedModel(script), cache=cache).ask(request(), AGENT)).text == "paid"


@pytest.mark.parametrize(
    "errors",
    [
        [RateLimitedError("429", retry_after_s=7)],
        [ModelUnavailableError("503", retry_after_s=7)],
        [ModelUnavailableError("500"), ModelTimeoutError("slow"), RateLimitedError("429")],
    ],
)
async def test_transient_errors_are_retried(errors: list[TransientModelError]) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    door = Gateway(models={"m": failing(*errors)}, sleep=sleep)
    assert (await door.ask(request(), AGENT)).text == "done"
    assert len(slept) == len(errors)
    assert all(seconds > 0 for seconds in slept)
    assert door.ledger.snapshot().total.attempts == len(errors) + 1
    if errors[0].retry_after_s:
        assert slept == [7]


async def test_persistent_errors_are_raised_with_the_last_message_and_without_secrets() -> None:
    errors = [ModelUnavailableError(f"no {n}: key sk-secret-12345") for n in range(9)]
    door = gateway(failing(*errors), retries=Retries(attempts=3), redactor=Redactor(["sk-secret-12345"]))
    with pytest.raises(ModelUnavailableError, match=r"'m' failed 3 times, last: no 2") as caught:
        await door.ask(request(), AGENT)
    assert "sk-secret" not in str(caught.value)


async def test_a_retry_after_of_a_day_is_not_waited_for() -> None:
    with pytest.raises(RateLimitedError, match="asks to wait 86400 s, longer than 600 s"):
        await gateway(failing(RateLimitedError("429", retry_after_s=86_400))).ask(request(), AGENT)


async def test_a_rejected_request_is_not_retried() -> None:
    model = failing(BadRequestError("wrong"), then="never")
    with pytest.raises(BadRequestError):
        await gateway(model).ask(request(), AGENT)


async def test_a_model_that_does_not_answer_times_out() -> None:
    async def hangs(messages: list[dict[str, Any]]) -> str:
        await asyncio.sleep(60)
        return str(messages)

    with pytest.raises(ModelTimeoutError, match=r"no answer from 'm' in 0\.01 s"):
        await gateway(hangs, timeout_s=0.01, retries=Retries(attempts=2)).ask(request(), AGENT)


async def test_calls_at_once_stay_within_the_concurrency() -> None:
    running = most = 0

    async def count(_: list[dict[str, Any]]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return "x"

    door = gateway(count, concurrency=5)
    await asyncio.gather(*(door.ask(request(str(n)), AGENT) for n in range(50)))
    assert most == 5


async def test_a_cap_on_tokens_holds_with_500_calls_at_once() -> None:
    async def answer(_: ModelRequest, *, repeat: int) -> ModelReply:
        await asyncio.sleep(0)
        return ModelReply(text="x", usage=Usage(input_tokens=30, output_tokens=5))

    budget = Budget(max_tokens=4_000)
    door = gateway(answer, budget=budget, max_output_tokens=20, concurrency=64)
    done = await asyncio.gather(*(door.ask(request(str(n)), AGENT) for n in range(500)), return_exceptions=True)
    answered = [each for each in done if isinstance(each, ModelReply)]
    assert 0 < len(answered) < 500
    assert all(isinstance(each, ModelReply | BudgetEndedError) for each in done)
    assert door.ledger.snapshot().total.tokens == budget.state.tokens <= 4_000


async def test_prices_are_the_users_own_or_unknown() -> None:
    model = ScriptedModel([ModelReply(text="x", usage=Usage(input_tokens=1_000_000, output_tokens=500_000))] * 2)
    prices = Prices({"m": Price(input_usd_per_million=2.0, output_usd_per_million=10.0)})
    assert (await gateway(model, prices=prices).ask(request(), AGENT)).usage.cost_usd == 7.0
    assert (await gateway(model).ask(request(), AGENT)).usage.cost_usd is None


async def test_a_shared_call_is_cancelled_only_with_its_last_caller() -> None:
    started = asyncio.Event()

    async def slow(_: list[dict[str, Any]]) -> str:
        started.set()
        await asyncio.sleep(0.02)
        return "done"

    door = gateway(slow)
    first = asyncio.create_task(door.ask(request(), AGENT))
    await started.wait()
    second = asyncio.create_task(door.ask(request(), AGENT))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).text == "done"
    alone = asyncio.create_task(door.ask(request("other"), AGENT))
    await asyncio.sleep(0.005)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert door.ledger.snapshot().total.calls == 1


async def test_tools_are_answered_from_the_cache_and_their_errors_too() -> None:
    calls: list[str] = []

    def search(query: str) -> list[str]:
        calls.append(query)
        if query == "bad":
            raise OSError("down, key sk-secret-12345")
        return [query]

    door = gateway(ScriptedModel([]), cache=MemoryCache(), redactor=Redactor(["sk-secret-12345"]))
    for _ in range(2):
        assert await door.call_tool("search", {"query": "x"}, search, AGENT) == ["x"]
        with pytest.raises(ToolFailedError, match=r"OSError: down, key \*\*\*"):
            await door.call_tool("search", {"query": "bad"}, search, AGENT)
    assert calls == ["x", "bad"]
    await door.call_tool("search", {"query": "x"}, search, AGENT, is_live=True)
    assert calls == ["x", "bad", "x"]


async def test_rate_limits_hold_for_all_models_or_one() -> None:
    now = 0.0
    starts: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    async def answer(_: list[dict[str, Any]]) -> str:
        starts.append(now)
        return "x"

    rate = RateLimit(requests_per_minute=10, clock=lambda: now, sleep=sleep)
    door = Gateway(models={"m": answer}, rates={"*": rate})
    await asyncio.gather(*(door.ask(request(str(n)), AGENT) for n in range(35)))
    for start in starts:
        assert sum(start <= other < start + 60 for other in starts) <= 10


async def test_any_function_is_a_model() -> None:
    def synchronous(messages: list[dict[str, Any]]) -> str:
        return str(messages[-1]["content"]).upper()

    async def asynchronous(messages: list[dict[str, Any]]) -> ModelReply:
        return ModelReply(text=messages[-1]["content"] + "!")

    assert (await gateway(synchronous).ask(request(), AGENT)).text == "HI"
    assert (await gateway(asynchronous).ask(request(), AGENT)).text == "hi!"


async def test_the_active_gateway_is_that_of_the_context() -> None:
    one, two = gateway(ScriptedModel([])), gateway(ScriptedModel([]))

    async def inside(door: Gateway) -> bool:
        with door.active():
            await asyncio.sleep(0.001)
            return current_gateway() is door

    assert all(await asyncio.gather(inside(one), inside(two)))
    assert current_gateway() not in (one, two)


async def test_a_call_is_sent_as_soon_as_the_rate_limit_grants_it() -> None:
    """A call that was granted must not wait for a slot: it would be sent in a later, fuller minute."""
    now = 0.0
    starts: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    async def slow(_: list[dict[str, Any]]) -> str:
        nonlocal now
        starts.append(now)
        now += 11
        await asyncio.sleep(0)
        return "x"

    door = Gateway(
        models={"m": slow},
        rates={"*": RateLimit(requests_per_minute=10, clock=lambda: now, sleep=sleep)},
        concurrency=5,
    )
    await asyncio.gather(*(door.ask(request(str(n)), AGENT) for n in range(40)))
    assert max(sum(start <= other < start + 60 for other in starts) for start in starts) <= 10


async def test_uncounted_tokens_are_not_returned() -> None:
    rate = RateLimit(tokens_per_minute=6_000)
    settled: list[int] = []

    def settle(grant: Grant, actual: int) -> None:
        settled.append(grant.tokens - actual)

    rate.settle = settle  # type: ignore[method-assign]
    door = Gateway(models={"m": lambda _: "x"}, rates={"m": rate})
    await door.ask(request(), AGENT)
    assert settled == []


async def test_a_cancelled_call_is_not_joined() -> None:
    async def slow(_: list[dict[str, Any]]) -> str:
        try:
            await asyncio.sleep(0.05)
        finally:
            await asyncio.sleep(0.02)  # takes a while to give up
        return "done"

    door = gateway(slow)
    first = asyncio.create_task(door.ask(request(), AGENT))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    assert (await door.ask(request(), AGENT)).text == "done"


def test_one_gateway_serves_several_event_loops_one_after_the_other() -> None:
    door = Gateway(models={"m": lambda _: "x"}, rates={"*": RateLimit(requests_per_minute=1000)}, concurrency=2)

    async def many(start: int) -> int:
        return len(await asyncio.gather(*(door.ask(request(str(n)), AGENT) for n in range(start, start + 20))))

    assert [asyncio.run(many(start)) for start in (0, 20, 40)] == [20, 20, 20]


@pytest.mark.parametrize(
    ("name", "bound"), [("max_tokens", -1), ("max_tokens", "many"), ("max_completion_tokens", 0.5)]
)
async def test_a_wrong_bound_is_refused(name: str, bound: Any) -> None:
    with pytest.raises(SetupError, match="give a whole number"):
        await gateway(ScriptedModel([])).ask(request(**{name: bound}), AGENT)


async def test_the_timeout_of_a_request_replaces_that_of_the_gateway() -> None:
    async def answer(_: list[dict[str, Any]]) -> str:
        await asyncio.sleep(0.02)
        return "late"

    door = Gateway(models={"m": answer}, timeout_s=0.001, retries=Retries(attempts=1))
    with pytest.raises(ModelTimeoutError, match=r"no answer from 'm' in 0\.001 s"):
        await door.ask(request(), AGENT)
    assert (await door.ask(request(timeout=60), AGENT)).text == "late"


async def test_both_names_of_the_bound_count_against_the_budget() -> None:
    door = gateway(ScriptedModel([]), budget=Budget(max_tokens=8_000))
    with pytest.raises(BudgetEndedError):
        await door.ask(request(max_completion_tokens=9_000), AGENT)


async def test_a_cap_in_dollars_names_the_model_without_a_price() -> None:
    with pytest.raises(SetupError, match=r"model 'm': max_usd is set"):
        await gateway(ScriptedModel([]), budget=Budget(max_usd=1.0)).ask(request(), AGENT)


def test_threads_with_short_lived_event_loops_share_a_gateway() -> None:
    """As the views of a synchronous web server do: each call has an event loop that ends with it."""

    async def answer(_: list[dict[str, Any]]) -> str:
        await asyncio.sleep(0.004)
        return "ok"

    gateway = Gateway(models={"slow": answer})

    def ask(number: int) -> str:
        site = CallSite(role="agent", case_id=f"case-{number // 2}", step_id="bot", repeat=number % 3)
        asked = ModelRequest(model="slow", messages=(Message(role="user", content="hi"),))
        return asyncio.run(asyncio.wait_for(gateway.ask(asked, site, is_live=number % 4 == 0), 60)).text

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(40))) == ["ok"] * 40
