"""A conversation whose third turn fails because of the first answer: reader -> opening (first turn) or reply (later).

The opening does not say that every call gets a ticket. So the reply to the question for it, two turns later, has none
to repeat, and the trace of that turn does not have the step that should have given one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import CASES, Answer, PlantedWorld
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

OPENING = "You take the first message of a call. Repeat what is broken."
TICKET = "Give a ticket: the number of the device, reversed."
QUESTION = "What is my ticket?"
_DEVICE, _TICKET = re.compile(r"device (\d+)"), re.compile(r"Ticket (\d+)")


def make_third_turn_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The hotline. `slip` is the chance that a node forgets everything in one of the three turns."""
    numbers = Random(f"third turn {seed}").sample(range(1000, 10000), 2 * CASES)
    return PlantedWorld(
        name="third turn",
        agent=_make_agent(),
        answer=make_task_model(slip=slip),
        metrics=build_metrics([{"metric_name": "contains"}]),
        train=make_cases("train", numbers[:CASES]),
        validation=make_cases("validation", numbers[CASES:]),
        fixes={"opening#instruction": f"{OPENING} {TICKET}"},
        knowledge=TicketKnowledge(),
        seed=seed,
    )


def make_cases(name: str, numbers: list[int]) -> EvalSet:
    """Calls of three turns; the last one asks for the ticket."""
    cases = []
    for at, number in enumerate(numbers):
        said = {
            f"My device {number} is broken.": str(number),
            "I bought it in May.": "Noted",
            QUESTION: str(number)[::-1],
        }
        turns = tuple(Turn(user=user, expected=expected) for user, expected in said.items())
        cases.append(EvalCase(id=f"{name}-{at}", turns=turns))
    return EvalSet(id=name, cases=tuple(cases))


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        said = "\n".join(message.content for message in request.messages[1:])
        if request.model == "reader":
            return ModelReply(text=said)
        if rng.random() < slip / 3:
            return ModelReply(text="Hm.")
        if request.model == "opening":
            [number] = _DEVICE.findall(said)
            ticket = f" Ticket {number[::-1]}." if TICKET in request.messages[0].content else ""
            return ModelReply(text=f"So device {number} is broken.{ticket}")
        if not said.endswith(QUESTION):
            return ModelReply(text="Noted.")
        found = _TICKET.search(said)
        return ModelReply(text=f"It is {found[1]}." if found else "You have none.")

    return answer


@dataclass(frozen=True, slots=True)
class TicketKnowledge:
    """What an expert knows: the first answer must give a ticket, since a later one cannot repeat what was not given."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        lacks_ticket = step.output.startswith("So device") and not _TICKET.search(step.output)
        return dict.fromkeys(step.blamable, Complaint(TICKET)) if lacks_ticket else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - the reader only repeats what was said
        return False

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        return f"{value} {TICKET}" if TICKET in prompt.signal and TICKET not in value else value

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:  # noqa: ARG002 - it would need another turn
        return None


def _make_agent() -> GraphAgent:
    return GraphAgent(
        name="hotline",
        nodes=(
            ModelNode(name="reader", model="reader", instruction="You write down the whole conversation."),
            ModelNode(name="opening", model="opening", instruction=OPENING),
            ModelNode(name="reply", model="reply", instruction="You answer the last message from the conversation."),
        ),
        edges=(Choice("reader", _find_node, {"opening": "opening", "reply": "reply"}),),
    )


def _find_node(context: NodeContext) -> str:
    return "reply" if context.case.history else "opening"
