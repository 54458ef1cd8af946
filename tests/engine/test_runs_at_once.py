"""Eight runs of one engine at once have the results and the ledgers of eight single runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.rate import Grant, RateLimit
from promptiter.llm.retries import Retries
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.sources import FileSource
from promptiter.testing.store_hooks import Killed
from tests.marks import take_some
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries
from tests.worlds.model_server import LoopbackServer, run_server

pytestmark = pytest.mark.slow

CONCURRENCY = 5
REQUESTS = range(8)


class Moody:
    """A model that forgets its instruction now and then, and judges: by request, repeat and seed."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most_in_flight = 0

    async def __call__(self, request: ModelRequest, *, repeat: int, seed: int = 0) -> ModelReply:
        mood = random.Random(f"{request.digest} {repeat} {seed}")
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for _ in range(mood.randrange(4)):  # calls end in another order than they begin
            await asyncio.sleep(0)
        self.in_flight -= 1
        reply = desk.answer(request)
        if request.schema is not None:
            is_valid = "careful careful" in request.text and mood.random() < 0.9
            return replace(reply, text=f'{{"reason": "r", "valid": {str(is_valid).lower()}}}')
        return reply if mood.random() < 0.8 else replace(reply, text=request.messages[-1].content)


def make_engine(model: Moody | None = None, **gateway: Any) -> Engine:
    """An engine with a judge, whose gateway is the one that the user made."""
    door = Gateway(models={"scripted": model or Moody()}, concurrency=CONCURRENCY, **gateway)
    criterion = {"llm_judge": {"judge_model": {"model_name": "scripted"}}}
    config = parse_eval_config([{"metric_name": "llm_final_response", "criterion": criterion}])
    judges = build_metrics(config, gateway=door)
    metrics = [FunctionMetric(name="careful", function=desk.score), *judges]
    evaluator = Evaluator(metrics, gateway=door, options=EvaluationOptions(concurrency=4))
    return Engine(desk.agent(), evaluator, search=Tries(WORSE, DRAFT | POLISH))


def make_request(number: int) -> RunRequest:
    return desk.request(
        run_id=f"run-{number}",
        seed=number % 5,
        train=desk.eval_set("train", 1),
        validation=desk.eval_set(f"validation {number}", 2 + number % 2),  # each run is the first on its cases
        final_test=FinalTest(repeats=2, ablate=False),
    )


def read_ledger(result: RunResult) -> LedgerSnapshot:
    return without_seconds(result.measured.spent)


def without_seconds(ledger: LedgerSnapshot) -> LedgerSnapshot:
    return LedgerSnapshot(tuple(replace(entry, spent=replace(entry.spent, seconds=0.0)) for entry in ledger.entries))


def add_up(results: Iterable[RunResult]) -> LedgerSnapshot:
    return sum(map(read_ledger, results), LedgerSnapshot())


@pytest.fixture(scope="module")
def singles() -> list[RunResult]:
    """The results of single runs, each of an engine of its own."""
    return [make_engine().run_sync(make_request(number)) for number in REQUESTS]


def begin(folder: Path, engine: Engine, number: int) -> RunDirectory:
    return RunDirectory.begin(folder, engine, make_request(number))


@pytest.mark.parametrize("where", take_some(["memory", "folder"], ["folder"]))
async def test_eight_runs_at_once_equal_eight_single_runs(where: str, singles: list[RunResult], tmp_path: Path) -> None:
    model = Moody()
    engine = make_engine(model)
    if where == "memory":
        runs = [engine.run(make_request(number)) for number in REQUESTS]
    else:
        runs = [begin(tmp_path, engine, number).run() for number in REQUESTS]
    results = await asyncio.gather(*runs)
    assert results == singles
    assert len({each.to_json() for each in singles}) == len(singles)
    assert [read_ledger(each) for each in results] == [read_ledger(each) for each in singles]
    assert add_up(results) == without_seconds(engine.evaluator.gateway.ledger.snapshot())
    assert {entry.role for entry in add_up(results).entries} == {"agent", "judge"}
    assert model.most_in_flight <= CONCURRENCY


class EndsItself:
    """An observer that ends its run at an event: as a kill of its process would, or by cancelling its task."""

    def __init__(self, seq: int, *, how: Literal["killed", "cancelled"]) -> None:
        self.seq = seq
        self.how = how

    async def observe(self, event: Event) -> None:
        if event.seq != self.seq:
            return
        if self.how == "killed":
            raise Killed
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


@pytest.mark.long
@pytest.mark.parametrize("seq", [0, 17, 40])
async def test_a_run_that_is_killed_or_cancelled_leaves_the_others_unharmed(
    seq: int, singles: list[RunResult], tmp_path: Path
) -> None:
    engine = make_engine()
    ending: dict[int, EndsItself] = {2: EndsItself(seq, how="killed"), 5: EndsItself(seq, how="cancelled")}
    ended = await asyncio.gather(
        *(
            begin(tmp_path, engine, number).run(observers=[ending[number]] if number in ending else [])
            for number in REQUESTS
        ),
        return_exceptions=True,
    )
    assert [type(ended[number]) for number in ending] == [Killed, asyncio.CancelledError]
    for number in set(REQUESTS) - set(ending):
        result = ended[number]
        assert isinstance(result, RunResult)
        assert (result, read_ledger(result)) == (singles[number], read_ledger(singles[number]))
    for number in ending:
        folder = tmp_path / f"run-{number}"
        assert await RunDirectory.resume(folder, engine, make_request(number)).run() == singles[number]


async def test_a_run_that_is_started_inside_another_run_is_a_run_of_its_own(singles: list[RunResult]) -> None:
    engine = make_engine()
    inner: list[RunResult] = []

    class Starts:
        async def observe(self, event: Event) -> None:
            if event.type == "round_started" and not inner:
                inner.append(await engine.run(make_request(1)))

    outer = await engine.run(make_request(0), observers=[Starts()])
    assert [outer, *inner] == singles[:2]
    assert [read_ledger(each) for each in (outer, *inner)] == [read_ledger(each) for each in singles[:2]]


@pytest.mark.long
@pytest.mark.parametrize("where", ["memory", "folder"])
async def test_each_run_has_the_caps_of_the_budget_for_itself(where: str, tmp_path: Path) -> None:
    def engine_with_budget() -> Engine:
        engine = make_engine(budget=Budget(max_calls=100))
        engine.evaluator = engine.evaluator.with_options(EvaluationOptions(concurrency=1))  # which call is the last
        return engine

    expected = [await engine_with_budget().run(make_request(number)) for number in REQUESTS]
    assert {each.stop_reason for each in expected} >= {"max_calls", "exhausted"}
    engine = engine_with_budget()
    results = await asyncio.gather(
        *(
            engine.run(make_request(number)) if where == "memory" else begin(tmp_path, engine, number).run()
            for number in REQUESTS
        )
    )
    assert results == expected
    assert [read_ledger(each) for each in results] == [read_ledger(each) for each in expected]


async def test_a_shared_budget_is_a_cap_over_all_runs() -> None:
    engine = make_engine(budget=Budgets(Budget(max_calls=100, shared=True), Budget(max_calls=64)))
    results = await asyncio.gather(*(engine.run(make_request(number)) for number in REQUESTS))
    spent = [each.measured.spent.total.calls for each in results]
    assert sum(spent) <= 100
    assert max(spent) <= 64
    assert "max_calls" in {each.stop_reason for each in results}


def test_a_shared_budget_holds_over_the_runs_of_several_threads() -> None:
    engine = make_engine(budget=Budget(max_calls=100, shared=True))
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        results = list(pool.map(lambda number: engine.run_sync(make_request(number)), REQUESTS))
    assert 0 < sum(each.measured.spent.total.calls for each in results) <= 100
    assert "max_calls" in {each.stop_reason for each in results}


async def test_runs_share_a_cache_only_if_the_gateway_was_given_one() -> None:
    for shared in (None, MemoryCache()):
        engine = make_engine(cache=shared)
        results = [await engine.run(make_request(0)) for _ in range(2)]
        assert results[0] == results[1]
        paid = [each.measured.spent.total.calls for each in results]
        assert paid == [94, 0 if shared else 94]


def make_in_place_engine(folder: Path, *, pause: Callable[[str], Awaitable[None]]) -> tuple[Engine, Path]:
    """An agent that reads its instruction from a file, and fails if the file changes during a call."""
    folder.mkdir()
    file = folder / "bot.md"
    file.write_text("Answer.")

    async def ask(question: str) -> str:
        instruction = file.read_text()
        await pause(instruction)
        assert file.read_text() == instruction
        return f"{question} {instruction}"

    agent = InPlaceAgent(ask, {"bot#instruction": FileSource(file)}, state_folder=folder / "state")
    search = Tries(*({"bot#instruction": text} for text in ("Be careful.", "Be careful, careful.")))
    return Engine(agent, desk.evaluator(), search=search), file


async def test_runs_of_an_in_place_agent_take_turns(tmp_path: Path) -> None:
    async def pause(_: str) -> None:
        await asyncio.sleep(0.001)

    expected = []
    for number in range(3):
        single, _ = make_in_place_engine(tmp_path / f"{number}", pause=pause)
        expected.append(await single.run(make_request(number)))
    engine, file = make_in_place_engine(tmp_path / "all", pause=pause)
    assert await asyncio.gather(*(engine.run(make_request(number)) for number in range(3))) == expected
    assert file.read_text() == "Answer."


async def test_a_cancelled_run_leaves_the_candidate_of_another_in_place(tmp_path: Path) -> None:
    is_in_place, may_answer = asyncio.Event(), asyncio.Event()

    async def pause(instruction: str) -> None:
        if instruction != "Answer.":
            is_in_place.set()
            await may_answer.wait()

    engine, file = make_in_place_engine(tmp_path / "all", pause=pause)
    other = asyncio.create_task(engine.run(make_request(0)))
    await is_in_place.wait()
    run = asyncio.create_task(engine.run(make_request(1)))
    for _ in range(200):  # again and again, as an impatient user would
        await asyncio.sleep(0.001)
        run.cancel()
    assert run.cancelled()
    assert file.read_text() == "Be careful."
    may_answer.set()
    assert (await other).verdict == "improved_on_validation"
    assert file.read_text() == "Answer."


@pytest.mark.long
def test_eight_runs_in_eight_threads_equal_eight_single_runs(singles: list[RunResult]) -> None:
    engine = make_engine()
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        results = list(pool.map(lambda number: engine.run_sync(make_request(number)), REQUESTS))
    assert results == singles
    assert [read_ledger(each) for each in results] == [read_ledger(each) for each in singles]


@pytest.mark.long
async def test_eight_runs_share_one_rate_limit_over_http() -> None:
    class CountingRate(RateLimit):
        granted = 0

        async def acquire(self, tokens: int = 0) -> Grant:
            self.granted += 1
            return await super().acquire(tokens)

    def reply(body: dict[str, Any]) -> str:
        instruction, asked = body["messages"][0]["content"], body["messages"][-1]["content"]
        return f"{asked} careful" if "careful" in instruction else str(asked)

    def engine_over_http(server: LoopbackServer, rate: RateLimit | None = None) -> Engine:
        model = LiteLLMModel(api_base=server.url, api_key="key")
        retries = Retries(first_delay_s=0.001, max_delay_s=0.01)
        gateway = Gateway(models={"openai/scripted": model}, rates={"*": rate} if rate else None, retries=retries)
        nodes = (
            ModelNode(name="draft", instruction="Draft.", model="openai/scripted"),
            ModelNode(name="polish", instruction="Polish.", model="openai/scripted"),
        )
        agent = GraphAgent(name="desk", nodes=nodes, edges=(Edge("draft", "polish"),))
        return Engine(agent, desk.evaluator(gateway), search=Tries(WORSE, DRAFT | POLISH))

    with run_server(LoopbackServer(reply, fault_rate=0.1, seed=1)) as server:
        expected = [await engine_over_http(server).run(make_request(number)) for number in range(2)]
        rate = CountingRate(requests_per_minute=10_000)
        engine = engine_over_http(server, rate)
        results = await asyncio.gather(*(engine.run(make_request(number % 2)) for number in REQUESTS))
    assert results == expected * 4
    assert {each.verdict for each in results} == {"improved_on_validation"}
    assert rate.granted == sum(each.measured.spent.total.attempts for each in results)
