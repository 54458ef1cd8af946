"""A chain of clerks that pass on the lines their instructions name. A clerk that drops a line is at fault."""

from __future__ import annotations

from promptiter.agents.function import chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.search.replays import ReplayContext
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient

ALL = "keep order city day"
CITIES = ("Lyon", "Porto", "Graz", "Turku", "Ghent", "Bergen", "Cork", "Trieste")


def clerk(request: ModelRequest) -> str:
    """Passes on the lines that its instruction names; the clerk that answers writes them as JSON."""
    instruction, given = request.messages[0].content.split(), request.messages[-1].content
    kept = [line for line in given.splitlines() if line.partition(":")[0] in instruction]
    if "answer" not in instruction:
        return "\n".join(kept)
    pairs = (line.partition(": ") for line in kept)
    return "{" + ", ".join(f'"{name}": "{value}"' for name, _, value in pairs) + "}"


def office(**faults: str) -> GraphAgent:
    """Four clerks; `faults` are the lines that a clerk keeps instead of all."""
    instructions = {name: faults.get(name, ALL) for name in ("first", "second", "third")}
    instructions["last"] = f"answer {faults.get('last', ALL)}"
    return chain(
        "office", *(ModelNode(name=name, instruction=text, model="clerk") for name, text in instructions.items())
    )


def cases(count: int = 4, *, start: int = 0) -> EvalSet:
    def case(number: int) -> EvalCase:
        order, city, day = f"A-{1000 + number}", CITIES[number % len(CITIES)], f"2026-03-{number + 10}"
        expected = f'{{"order": "{order}", "city": "{city}", "day": "{day}"}}'
        return EvalCase(
            id=f"c{number}", turns=(Turn(user=f"order: {order}\ncity: {city}\nday: {day}", expected=expected),)
        )

    return EvalSet(id=f"set-{start}", cases=tuple(map(case, range(start, start + count))))


def evaluator() -> Evaluator:
    metric = FinalResponseMetric(name="right", criterion=FinalResponseCriterion(json=JsonCriterion()))
    return Evaluator([metric], gateway=Gateway(models={"clerk": ScriptedModel(clerk)}))


async def failed(
    agent: GraphAgent, *, judge: Evaluator | None = None, eval_set: EvalSet | None = None
) -> ReplayContext:
    judge, eval_set = judge or evaluator(), eval_set or cases()
    evaluation = await judge.evaluate(agent, eval_set)
    profile = Profile.baseline(agent.describe())
    return ReplayContext(agent=agent, evaluator=judge, eval_set=eval_set, evaluation=evaluation, profile=profile)


def blame(node: str, case_id: str, *, step_id: str = "", **fields: str) -> SurfaceGradient:
    return SurfaceGradient(
        surface_id=f"{node}#instruction",
        case_id=case_id,
        step_id=step_id or node,
        text="keep what is needed",
        **fields,  # type: ignore[arg-type]
    )


class Accuser:
    """An Attributor that blames the same nodes for every failure."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        case_id = request.case_loss.case_id
        return [BackwardResult(step_id=node, gradients=(blame(node, case_id),)) for node in self.nodes]
