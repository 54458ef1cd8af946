"""A wrong route that hides a fault: router -> post or travel. Fixing the route alone makes the scores worse.

The router knows one desk only. The other desk, where flights and hotels belong, does not answer in JSON, which shows
once a case gets there. So the fix of the router costs two metrics and wins one, until the other desk is fixed as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

TRAIN, VALIDATION = 12, 12
DESKS = {"parcel": "post", "flight": "travel", "letter": "post", "hotel": "travel"}
ROUTER, TRAVEL = "You name the desk for a request, such as: post.", "You are the travel desk. Say what you take on."
POST = "You are the post desk. Answer in JSON, with the keys desk, number and kind."
ROUTE = "Flights and hotels belong to travel."
FORMAT = "Answer in JSON, with the keys desk, number and kind."
_REQUEST = re.compile(r"Request (\d+) is about a (\w+)")


def make_wrong_route_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The desks. `slip` is the chance that the router, or the desk after it, makes a mistake."""
    rng = Random(f"wrong route {seed}")
    numbers = rng.sample(range(100, 1000), TRAIN + VALIDATION)
    return PlantedWorld(
        name="wrong route",
        agent=_make_agent(),
        answer=make_task_model(slip=slip),
        metrics=tuple(
            FinalResponseMetric(
                name=key, criterion=FinalResponseCriterion(json=JsonCriterion(only_tree=dict.fromkeys([key], True)))
            )
            for key in ("desk", "number", "kind")
        ),
        train=make_cases("train", numbers[:TRAIN]),
        validation=make_cases("validation", numbers[TRAIN:]),
        fixes={"router#instruction": f"{ROUTER} {ROUTE}", "travel#instruction": f"{TRAVEL} {FORMAT}"},
        knowledge=RouteKnowledge(),
        seed=seed,
    )


def make_cases(name: str, numbers: list[int]) -> EvalSet:
    """Requests about each kind in turn."""
    cases = []
    for at, number in enumerate(numbers):
        kind = tuple(DESKS)[at % len(DESKS)]
        expected = json.dumps({"desk": DESKS[kind], "number": number, "kind": kind})
        turn = Turn(user=f"Request {number} is about a {kind}.", expected=expected)
        cases.append(EvalCase(id=f"{name}-{at}", turns=(turn,)))
    return EvalSet(id=name, cases=tuple(cases))


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        [(number, kind)] = _REQUEST.findall(text)
        slips = rng.random() < slip / 2
        if request.model == "router":
            desk = DESKS[kind] if ROUTE in instruction else "post"
            return ModelReply(text="post" if slips else desk)
        if "JSON" not in instruction or slips:
            return ModelReply(text=f"The {request.model} desk takes on request {number}.")
        return ModelReply(text=json.dumps({"desk": request.model, "number": int(number), "kind": kind}))

    return answer


@dataclass(frozen=True, slots=True)
class RouteKnowledge:
    """What an expert knows: a request has to get to the expected desk, and a desk has to answer in JSON."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        if step.output in DESKS.values():
            is_right = step.output == json.loads(run.expected)["desk"]
            return {} if is_right else dict.fromkeys(step.blamable, Complaint(ROUTE, "route"))
        return {} if step.output.startswith("{") else dict.fromkeys(step.blamable, Complaint(FORMAT, "format"))

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        return output in DESKS.values() and output != json.loads(run.expected)["desk"]

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        return " ".join([value, *(each for each in (ROUTE, FORMAT) if each in prompt.signal and each not in value)])

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        is_answer = not step.output.startswith("{") and step.output not in DESKS.values()
        return run.expected if is_answer else None


def _make_agent() -> GraphAgent:
    desks = {"post": POST, "travel": TRAVEL}
    return GraphAgent(
        name="desks",
        nodes=(
            ModelNode(name="router", model="router", instruction=ROUTER),
            *(ModelNode(name=name, model=name, instruction=text, prompt="{input}") for name, text in desks.items()),
        ),
        edges=(Choice("router", _find_desk, {name: name for name in desks}),),
    )


def _find_desk(context: NodeContext) -> str:
    return str(context.incoming)
