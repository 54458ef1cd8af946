"""An evaluation through litellm against a real HTTP server on loopback, with and without faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promptiter.agents.function import chain
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.result import Evaluation
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.retries import Retries
from tests.worlds.model_server import LoopbackServer, run_server

CASES = EvalSet(
    id="http",
    cases=tuple(EvalCase(id=f"c{n:02}", turns=(Turn(user=f"q{n}", expected=f"echo q{n}"),)) for n in range(24)),
)
RUBRICS = [
    {"id": "even", "content": {"text": "The number is even."}},
    {"id": "kind", "content": {"text": "It is kind."}},
]


def answer(body: dict[str, Any]) -> str:
    said = "\n".join(str(message.get("content")) for message in body["messages"])
    if not body.get("response_format"):
        return f"echo {body['messages'][-1]['content']}"
    shape = json.dumps(body["response_format"])
    digits = [int(letter) for letter in said.split("echo q")[-1][:2] if letter.isdigit()]
    is_even = not digits or digits[-1] % 2 == 0
    assert "even" in shape
    key = "verdicts" if '"verdicts"' in shape else "rubrics" if '"rubrics"' in shape else "items"
    items = [{"id": "even", "passed": is_even, "reason": "by parity"}, {"id": "kind", "passed": True, "reason": "yes"}]
    return json.dumps({key: items})


async def evaluate(server: LoopbackServer) -> Evaluation:
    model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
    retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
    gateway = Gateway(models={"openai/local": model}, retries=retries)
    judge = {"judge_model": {"model_name": "openai/local"}, "rubrics": RUBRICS}
    config = parse_eval_config(
        {
            "metrics": [
                {"metric_name": "exact_match"},
                {"metric_name": "llm_rubric_response", "threshold": 0.5, "criterion": {"llm_judge": judge}},
            ]
        },
        source="test",
    )
    metrics = build_metrics(config, gateway=gateway)
    agent = chain("bot", ModelNode(name="bot", instruction="Echo.", model="openai/local"))
    return await Evaluator(metrics, gateway=gateway, options=EvaluationOptions(concurrency=12)).evaluate(agent, CASES)


@pytest.mark.slow
async def test_faults_in_a_third_of_the_requests_change_no_score() -> None:
    with run_server(LoopbackServer(answer)) as server:
        expected = await evaluate(server)
    with run_server(LoopbackServer(answer, fault_rate=0.3, seed=3)) as server:
        found = await evaluate(server)
        assert len(server.faults) > 10
    assert [row.scores for row in found.rows] == [row.scores for row in expected.rows]
    assert expected.metric_means["exact_match"] == 1.0
    assert expected.errored_fraction == 0.0
