"""A critic that asks for the wrong thing, and a reviser that obeys: draft -> critic -> revise -> critic ... -> end.

`draft` leaves out the date, and the critic has amounts removed. No answer matches until both are fixed. The amount gets
lost in `revise`, which is right to do what the critic says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.evaluation.data.case import Turn
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld, make_exact_world
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

DRAFT, REVISE = "You write reminders.", "You revise reminders as the critic says, and change nothing else."
CRITIC = "You are a critic of reminders. Ask to remove amounts. Answer fine if nothing is to be done."
DATE, AMOUNT = "Name the date.", "Amounts stay in the reminder."
_CASE = re.compile(r"Bill (\w+ \d+) of (\d+) EUR, due (\d+ \w+)")
_MONTHS = ("March", "April", "June", "July")


def make_critic_loop_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The reminders. `slip` is the chance that a draft leaves something out."""
    return make_exact_world(
        "critic loop",
        make_turn,
        agent=_make_agent(),
        answer=make_task_model(slip=slip),
        fixes={
            "draft#instruction": f"{DRAFT} {DATE}",
            "critic#instruction": CRITIC.replace("Ask to remove amounts.", AMOUNT),
        },
        knowledge=CriticKnowledge(),
        seed=seed,
    )


def make_turn(name: str, number: int, rng: Random) -> Turn:
    amount, date = rng.randrange(20, 900), f"{rng.randrange(1, 29)} {rng.choice(_MONTHS)}"
    bill = f"{name} {number}"
    return Turn(user=f"Bill {bill} of {amount} EUR, due {date}", expected=_write(bill, str(amount), date))


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        [(bill, amount, date)] = _CASE.findall(text)
        if request.model == "draft":
            slips = rng.random() < slip
            return ModelReply(text=_write(bill, amount, date if DATE in instruction and not slips else ""))
        reminder = next(line for line in text.split("\n") if line.startswith("Reminder"))
        if request.model == "critic":
            is_wanted = AMOUNT in instruction or "EUR" not in reminder
            return ModelReply(text="fine" if is_wanted else "Remove the amount.")
        return ModelReply(text=re.sub(r" of \d+ EUR", "", reminder))

    return answer


@dataclass(frozen=True, slots=True)
class CriticKnowledge:
    """What an expert knows: what the answer needs must be in the draft, and the critic must not have it removed."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        if step.output == "Remove the amount.":
            return dict.fromkeys(step.blamable, Complaint(AMOUNT))
        if step.output == "fine" or "Remove" in step.input:
            return {}
        is_lost = step.output.startswith("Reminder") and "due" not in step.output
        return dict.fromkeys(step.blamable, Complaint(DATE)) if is_lost and "due" in step.input else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        return output != run.expected

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        asked = [each for each in (DATE, AMOUNT) if each in prompt.signal and each not in value]
        if AMOUNT in asked and "Ask to remove amounts." in value:
            return value.replace("Ask to remove amounts.", AMOUNT)
        return " ".join([value, *asked])

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        if step.output == "Remove the amount.":
            return "fine"
        return run.expected if step.output.startswith("Reminder") and step.output != run.expected else None


def _make_agent() -> GraphAgent:
    def route(context: NodeContext) -> str:
        return "end" if str(context.outputs["critic"]).strip() == "fine" else "revise"

    def end(node_context: NodeContext) -> str:
        return str(
            node_context.outputs["revise"] if "revise" in node_context.outputs else node_context.outputs["draft"]
        )

    return GraphAgent(
        name="reminders",
        nodes=(
            ModelNode(name="draft", model="draft", instruction=DRAFT),
            ModelNode(name="critic", model="critic", instruction=CRITIC, prompt="{input}\n{revise}\n{draft}"),
            ModelNode(name="revise", model="revise", instruction=REVISE, prompt="{input}\n{draft}\n{critic}"),
            FunctionNode(name="end", function=end),
        ),
        edges=(
            Edge("draft", "critic"),
            Choice("critic", route, {"revise": "revise", "end": "end"}),
            Edge("revise", "critic"),
        ),
        entry="draft",
    )


def _write(bill: str, amount: str, date: str) -> str:
    return f"Reminder: bill {bill} of {amount} EUR" + (f", due {date}" if date else "")
