"""A clerk whose answers depend on its settings: a model that is strong enough, and a temperature that is low enough.

Its instruction does not matter, unless `needs_care`. The strong model has a price above that of the weak one.
"""

from __future__ import annotations

from promptiter.agents.declarations import Parameter
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import Model, ScriptedModel
from promptiter.llm.prices import Price, Prices
from traces import Usage

WEAK, STRONG = "weak", "strong"
PRICES = {
    WEAK: Price(input_usd_per_million=1, output_usd_per_million=1),
    STRONG: Price(input_usd_per_million=4, output_usd_per_million=4),
}
INSTRUCTION, MODEL, TEMPERATURE = "clerk#instruction", "clerk#model", "clerk#parameter.temperature"
HOT = 0.55
"""Above this temperature, answers are wrong."""


def build_agent(*, model: str = WEAK, temperature: float = 0.2) -> GraphAgent:
    node = ModelNode(
        name="clerk",
        instruction="Answer.",
        model=model,
        models=(WEAK, STRONG),
        parameters={"temperature": Parameter(value=temperature, minimum=0.0, maximum=1.0)},
    )
    return GraphAgent(name="clerk", nodes=(node,))


def answer(request: ModelRequest, *, needs_care: bool = False) -> ModelReply:
    is_right = request.model == STRONG and request.options["temperature"] <= HOT
    is_right = is_right and (not needs_care or "careful" in request.messages[0].content)
    number = request.messages[-1].content.rpartition(" ")[2]
    return ModelReply(
        text=f"answer {number}" if is_right else "I do not know.", usage=Usage(input_tokens=10, output_tokens=5)
    )


def build_evaluator(*, needs_care: bool = False, **others: Model) -> Evaluator:
    task = ScriptedModel(lambda request: answer(request, needs_care=needs_care))
    return Evaluator(
        [FunctionMetric(name="right", function=is_right)],
        gateway=Gateway(models={WEAK: task, STRONG: task, **others}, prices=Prices(PRICES)),
    )


def is_right(case: EvalCase, run: object) -> float:
    return float(str(case.turns[0].expected) == getattr(run, "output", ""))


def eval_set(name: str, count: int = 6) -> EvalSet:
    turns = [Turn(user=f"{name} question {n}", expected=f"answer {n}") for n in range(count)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(each,)) for n, each in enumerate(turns)))
