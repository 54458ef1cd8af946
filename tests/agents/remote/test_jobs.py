"""Remote agents in worker processes, and in the record of a run: described by their arguments, without secrets."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from promptiter.agents.remote.agent import RemoteAgent
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.runs.python_parts import describe_parts, rebuild_run
from tests.agents.remote.scripted_agent import ScriptedAgent, ask

CASES = EvalSet(id="s", cases=tuple(EvalCase(id=name, turns=(Turn(user=name, expected="yes"),)) for name in "ab"))
METRICS = build_metrics([{"metric_name": "exact_match"}])


@pytest.mark.slow
async def test_calls_of_an_agent_that_a_worker_process_asks_are_counted_in_this_one() -> None:
    async def answer(sent: dict[str, object]) -> dict[str, object]:
        return {"run": {"output": await ask(sent)}}

    model = ScriptedModel(lambda _: "yes")
    async with ScriptedAgent(answer).serve() as url:
        agent = RemoteAgent(url)
        await agent.check_health()
        with ProcessExecutor(workers=1) as executor:
            evaluator = Evaluator(METRICS, gateway=Gateway(models={"clerk": model}), executor=executor)
            found = await evaluator.evaluate(agent, CASES)
    assert [(row.output, row.error) for row in found.rows] == [("yes", None)] * 2
    assert len(model.requests) == 2
    assert evaluator.gateway.ledger.snapshot().total.calls == 2


async def test_a_run_stores_the_names_of_variables_in_headers_and_not_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DESK_TOKEN", "s3cret-of-the-desk")
    async with ScriptedAgent().serve() as url:
        agent = RemoteAgent(url, headers={"Authorization": "Bearer ${DESK_TOKEN}"})
        await agent.check_health()
        engine = Engine(agent, Evaluator(METRICS))
        parts = await asyncio.to_thread(describe_parts, engine, RunRequest(train=CASES, validation=CASES))
    assert parts.problems == ()
    stored = orjson.dumps(parts.packed).decode()
    assert "Bearer ${DESK_TOKEN}" in stored
    assert "s3cret" not in stored
    assert rebuild_run(parts).engine.agent == agent
