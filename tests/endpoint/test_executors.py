"""Calls over HTTP under every executor: in worker processes, the gateway of the host answers them."""

from __future__ import annotations

import pytest

from promptiter.agents.base import AgentRun
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.executor import Executor, LocalExecutor, ThreadExecutor
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.llm import Budget, Gateway, ModelReply, ModelRequest
from promptiter.llm.messages import RichMessage
from tests.endpoint.http_agent import agent

CASES = EvalSet(id="s", cases=tuple(EvalCase(id=f"c{number}", turns=(Turn(user=f"{number}"),)) for number in range(4)))


def has_output(case: EvalCase, run: AgentRun) -> float:
    return float(bool(run.output))


async def answer(request: ModelRequest, *, repeat: int) -> ModelReply:
    (message,) = request.messages
    is_rich = isinstance(message, RichMessage) and message.extra["content"][1]["image_url"] == {"url": "data:,x"}
    return ModelReply(text=f"{message.content.splitlines()[0]} {is_rich} {request.options['stop']}")


def make_evaluator(executor: Executor, gateway: Gateway) -> Evaluator:
    return Evaluator([FunctionMetric(name="any", function=has_output)], gateway=gateway, executor=executor)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [LocalExecutor(), ThreadExecutor(threads=2), ProcessExecutor(workers=2)])
async def test_calls_are_answered_by_the_gateway_of_the_evaluation(executor: Executor) -> None:
    gateway = Gateway(models={"clerk": answer})
    try:
        for _ in range(2):
            evaluation = await make_evaluator(executor, gateway).evaluate(agent, CASES)
            assert [row.error for row in evaluation.rows] == [None] * 4
            assert [row.output for row in evaluation.rows] == [
                f"{number} False ['.'] / {number} True ['.']" for number in range(4)
            ]
            assert {row.measured.paid_calls + row.measured.cache_hits for row in evaluation.rows} == {2}
        total = gateway.ledger.snapshot().total
        assert (total.calls, total.cache_hits) == (8, 8)
        with pytest.raises(BudgetEndedError):
            await make_evaluator(executor, Gateway(models={"clerk": answer}, budget=Budget(max_calls=3))).evaluate(
                agent, CASES
            )
    finally:
        if isinstance(executor, ProcessExecutor):
            executor.close()
