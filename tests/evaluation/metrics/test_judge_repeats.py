"""Each repeat of a case is judged by answers of its own, whatever judges and wherever the case runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.function import agent, ask
from promptiter.agents.runner import Runner
from promptiter.agents.surface_scope import surface
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.result import Evaluation
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.profile import Profile, SurfacePatch
from promptiter.structure import StructureSnapshot
from traces.model import Json

HERE = __name__
REPEATS, SAMPLES = 4, 3


@agent(instruction="Answer politely.")
async def steady(message: str) -> str:
    """Answers the same each time, but not under each profile."""
    return f"{message}, {surface('instruction')}"


class Coin:
    """A judge whose answers alternate, and which counts how often it is asked about each exchange."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
        return ModelReply(text=self.toss(request.text))

    def toss(self, text: str) -> str:
        self.asked[text] += 1
        return json.dumps({"verdicts": [{"id": "good", "reason": "it fell so", "passed": self.asked[text] % 2 == 0}]})


@agent(instruction="You toss a coin.")
async def judging_agent(message: str) -> str:
    return await ask(message, instruction=surface("instruction"), model="coin")


class SeededJudge:
    """An agent without a model, whose verdict depends on the repeat that it is given."""

    def describe(self) -> StructureSnapshot:
        return judging_agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        passed = Random(f"{case.text} {context.repeat}").random() < 0.5
        return AgentRun(output=json.dumps({"verdicts": [{"id": "good", "reason": "", "passed": passed}]}))


def build_judge(judge: Runner | str, gateway: Gateway, *, samples: int = 1) -> Metric:
    named = {"judge_model": {"model_name": judge, "num_samples": samples}} if isinstance(judge, str) else {}
    criterion: Json = {"llm_judge": {**named, "rubrics": [{"id": "good", "content": "It is good."}]}}
    listed: Json = [{"metric_name": "good", "evaluator_name": "llm_rubric_response", "criterion": criterion}]
    return build_metrics(listed, gateway=gateway, judge=None if named else judge)[0]


async def ask_coin(_: EvalCase, run: AgentRun) -> float:
    request = ModelRequest(model="coin", messages=(Message("user", run.output),))
    reply = await current_gateway().ask(request, CallSite(role="judge"))
    return float(json.loads(reply.text)["verdicts"][0]["passed"])


def ask_coin_in_thread(case: EvalCase, run: AgentRun) -> float:
    return asyncio.run(ask_coin(case, run))


OWN, IN_THREAD = (FunctionMetric(name="good", function=each) for each in (ask_coin, ask_coin_in_thread))

BuildMetric = Callable[[Gateway], Metric]
JUDGES: dict[str, BuildMetric] = {
    "model": lambda gateway: build_judge("coin", gateway),
    "agent": lambda gateway: build_judge(f"{HERE}:judging_agent", gateway),
    "own metric": lambda _: OWN,
    "metric in a thread": lambda _: IN_THREAD,
}

CASES = EvalSet(id="s", cases=tuple(EvalCase(id=name, turns=(Turn(user="Hello"),)) for name in ("one", "two")))


def list_scores(evaluation: Evaluation, case_id: str) -> list[float | None]:
    """The scores of a case in the order of its repeats."""
    rows = sorted((row.repeat, row.scores[0].value) for row in evaluation.rows if row.case_id == case_id)
    return [value for _, value in rows]


@pytest.mark.parametrize("kind", JUDGES)
async def test_a_judge_is_asked_once_per_exchange_and_repeat(kind: str) -> None:
    coin = Coin()
    gateway = Gateway(models={"coin": coin}, cache=MemoryCache())
    evaluator = Evaluator([JUDGES[kind](gateway)], gateway=gateway, options=EvaluationOptions(repeats=REPEATS))
    first = await evaluator.evaluate(steady, CASES)
    assert list(coin.asked.values()) == [REPEATS]  # both cases have the same exchange
    assert Counter(list_scores(first, "one")) == {0.0: 2, 1.0: 2}
    assert list_scores(first, "one") == list_scores(first, "two")

    again = await evaluator.evaluate(steady, CASES)
    assert (again, list(coin.asked.values())) == (first, [REPEATS])

    patch = SurfacePatch(surface_id="steady#instruction", value="Be brief.", reason="why not")
    structure = steady.describe()
    await evaluator.evaluate(steady, CASES, Profile.baseline(structure).apply([patch], structure))
    assert list(coin.asked.values()) == [REPEATS, REPEATS]


async def test_a_judging_agent_without_a_model_knows_the_repeat() -> None:
    gateway = Gateway()
    judge = build_judge(SeededJudge(), gateway)
    evaluator = Evaluator([judge], gateway=gateway, options=EvaluationOptions(repeats=12))
    assert set(list_scores(await evaluator.evaluate(steady, CASES), "one")) == {0.0, 1.0}


async def test_a_function_that_judges_is_called_once_per_exchange_and_repeat() -> None:
    coin, gateway = Coin(), Gateway()
    judge = build_judge(coin.toss, gateway)
    await Evaluator([judge], gateway=gateway, options=EvaluationOptions(repeats=REPEATS)).evaluate(steady, CASES)
    assert list(coin.asked.values()) == [REPEATS]


async def test_samples_of_a_judge_are_its_own_in_each_repeat() -> None:
    coin = Coin()
    gateway = Gateway(models={"coin": coin})
    judge = build_judge("coin", gateway, samples=SAMPLES)
    await Evaluator([judge], gateway=gateway, options=EvaluationOptions(repeats=REPEATS)).evaluate(steady, CASES)
    assert list(coin.asked.values()) == [REPEATS * SAMPLES]


async def test_a_judge_with_a_gateway_of_its_own_is_asked_per_repeat_too() -> None:
    coin = Coin()
    judge = build_judge("coin", Gateway(models={"coin": coin}))
    await Evaluator([judge], gateway=Gateway(), options=EvaluationOptions(repeats=REPEATS)).evaluate(steady, CASES)
    assert list(coin.asked.values()) == [REPEATS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", JUDGES)
async def test_judges_in_other_processes_get_the_same_answers(kind: str) -> None:
    def evaluator(coin: Coin, executor: ProcessExecutor | None = None) -> Evaluator:
        gateway = Gateway(models={"coin": coin}, cache=MemoryCache())
        options = EvaluationOptions(repeats=REPEATS)
        return Evaluator([JUDGES[kind](gateway)], gateway=gateway, executor=executor, options=options)

    here, there = Coin(), Coin()
    await evaluator(here).evaluate(steady, CASES)
    with ProcessExecutor(workers=1) as executor:
        await evaluator(there, executor).evaluate(steady, CASES)
    assert here.asked == there.asked
