"""A steady agent whose answers a coin judges: no patch is better than another, and all noise is the judge's.

The agent says something else under each profile, so each has its own verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from promptiter.agents.function import agent
from promptiter.agents.surface_scope import surface
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.runlog.results import RunResult
from tests.worlds.chances import Proposes, make_eval_set

ROUNDS = 3
RUBRICS = [{"id": "right", "content": "The answer is right."}]


@agent(instruction="Answer the question.")
async def clerk(message: str) -> str:
    return f"{message}: {surface('instruction')}"


@dataclass
class CoinJudge:
    """A model that passes an answer with a given probability, whatever it says. Seed, text and repeat decide."""

    seed: str
    chance: float = 0.5
    asked: int = 0

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked += 1
        passed = Random(f"{self.seed} {repeat} {request.digest}").random() < self.chance
        return ModelReply(text=json.dumps({"verdicts": [{"id": "right", "reason": "it fell so", "passed": passed}]}))


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run, and how often its judge was asked."""

    result: RunResult
    judge_calls: int

    @property
    def claims_gain(self) -> bool:
        return self.result.verdict.startswith("improved")


async def run_useless_patches(*, size: int, seed: str, chance: float = 0.5) -> JudgedRun:
    """Run the default search and final test on patches that add a word, with as many train as validation cases."""
    judge = CoinJudge(seed, chance)
    gateway = Gateway(models={"coin": judge})
    criterion = {"llm_judge": {"judge_model": "coin", "rubrics": RUBRICS}}
    metrics = build_metrics([{"metric_name": "llm_rubric_response", "criterion": criterion}], gateway=gateway)
    request = RunRequest(
        train=make_eval_set("train", size),
        validation=make_eval_set("validation", size),
        max_rounds=ROUNDS,
        run_id="coin",
    )
    search = Proposes(list(list_useless_patches(Random(seed))), until_accepted=False)
    result = await Engine(clerk, Evaluator(metrics, gateway=gateway), search=search).run(request)
    return JudgedRun(result, judge.asked)


def list_useless_patches(random: Random) -> Iterator[tuple[str, str]]:
    for number in range(ROUNDS):
        yield "clerk#instruction", f"Answer the question. Word {number} is {random.getrandbits(32):x}."
