"""SmallRun: a run that needs no network and takes less than a second, for tests of stores and executors.

One node answers questions; its answer is right if its instruction says "politely". The search tries two
instructions, of which the second one helps.
"""

from __future__ import annotations

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import PatchSet, SurfacePatch
from traces import Usage

INSTRUCTIONS = ("Answer rudely.", "Answer politely.")


class SmallRun:
    """What a process creates to work on the run. `asked` counts the calls of its model."""

    def __init__(self, *, concurrency: int = 1) -> None:
        self.asked = 0
        node = ModelNode(name="clerk", instruction="Answer.", model="scripted")
        self.engine = Engine(
            GraphAgent(name="desk", nodes=(node,)),
            Evaluator(
                [FunctionMetric(name="polite", function=_score)],
                gateway=Gateway(models={"scripted": ScriptedModel(self._answer)}),
                options=EvaluationOptions(concurrency=concurrency),
            ),
            search=_TriesInstructions(),
        )

    @property
    def request(self) -> RunRequest:
        return RunRequest(
            train=_make_cases("train", 1),
            validation=_make_cases("validation", 2),
            max_rounds=len(INSTRUCTIONS),
            final_test=None,
        )

    def _answer(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        instruction, question = request.messages[0].content, request.messages[-1].content
        manner = " please" if "politely" in instruction else ""
        return ModelReply(text=f"{question}{manner} ✓", usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.001))


class _TriesInstructions:
    """Validates one instruction per round."""

    async def search(self, session: Session) -> None:
        for text in INSTRUCTIONS:
            if await session.should_stop():
                return
            await session.begin_round()
            await session.evaluate(session.train, session.accepted.profile, phase="train")
            patch = SurfacePatch(surface_id="clerk#instruction", value=text, reason="it is next")
            await session.validate(PatchSet((patch,)))
            await session.complete_round()


def _make_cases(name: str, count: int) -> EvalSet:
    cases = (
        EvalCase(id=f"{name}-{number}", turns=(Turn(user=f"{name} question {number}"),)) for number in range(count)
    )
    return EvalSet(id=name, cases=tuple(cases))


def _score(_case: EvalCase, run: object) -> float:
    return float("please" in str(getattr(run, "output", "")))
