"""Agents that are written by hand: a class with `describe` and `run`."""

from __future__ import annotations

from typing import Any

import pytest

import traces
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.function import ask, ask_sync
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.structure import Node, StructureSnapshot, Surface

CASES = build_eval_set("cases", [{"input": "a", "expected": "a"}, {"input": "b", "expected": "b"}])
STRUCTURE = StructureSnapshot(
    nodes=(Node(id="bot"),), surfaces=(Surface(node_id="bot", type="instruction", value="Answer."),)
)


class Bot:
    """Asks the same question twice."""

    def describe(self) -> StructureSnapshot:
        return STRUCTURE

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        recording = traces.record(context.case_id, resolve=lambda name: profile.value(name, STRUCTURE))
        with recording, traces.step("bot", input=case.text) as step:
            instruction = step.read_surface("bot#instruction")
            answers = [await ask(case.text, instruction=instruction, model="echo") for _ in range(2)]
            step.output = " ".join(answers)
        return AgentRun(output=" ".join(answers), trace=recording.trace)


class SyncBot(Bot):
    def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # type: ignore[override]
        recording = traces.record(context.case_id, resolve=lambda name: profile.value(name, STRUCTURE))
        with recording, traces.step("bot", input=case.text) as step:
            instruction = step.read_surface("bot#instruction")
            step.output = answer = ask_sync(case.text, instruction=instruction, model="echo")
        return AgentRun(output=answer, trace=recording.trace)


class Echo:
    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, messages: list[dict[str, Any]]) -> str:
        self.asked += 1
        return f"{messages[-1]['content']} {self.asked}"


async def test_calls_are_counted_and_cached_by_case_repeat_and_number() -> None:
    echo = Echo()
    gateway = Gateway(models={"echo": echo})
    evaluator = Evaluator(
        build_metrics([{"metric_name": "contains"}]), gateway=gateway, options=EvaluationOptions(repeats=2)
    )
    first, again = [await evaluator.evaluate(Bot(), CASES) for _ in range(2)]
    assert first.mean_score == 1.0
    assert first.rows == again.rows
    assert echo.asked == 8  # two cases, two repeats, two equal questions each
    assert gateway.ledger.snapshot().by_node()["bot"].calls == 8


async def test_a_synchronous_agent_asks_with_ask_sync() -> None:
    echo = Echo()
    evaluator = Evaluator(build_metrics([{"metric_name": "contains"}]), gateway=Gateway(models={"echo": echo}))
    assert (await evaluator.evaluate(SyncBot(), CASES)).mean_score == 1.0  # type: ignore[arg-type]
    assert echo.asked == 2


async def test_called_directly_it_asks_the_active_gateway_without_a_cache() -> None:
    echo = Echo()
    with Gateway(models={"echo": echo}).active():
        for _ in range(2):
            run = await Bot().run(CaseInput(text="hi"), Profile.baseline(STRUCTURE), RunContext())
    assert (run.output, echo.asked) == ("hi 3 hi 4", 4)
    assert run.trace is not None
    assert run.trace.steps[0].attributes["gen_ai.request.model"] == "echo"


async def test_asking_outside_of_a_step_says_where_it_works() -> None:
    where = r"inside `with traces.step\(...\)` of an agent that is written by hand"
    with traces.record("run", keep_steps=False), pytest.raises(SetupError, match=where):
        await ask("hi", model="echo")
