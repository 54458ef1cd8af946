"""Two faults in a row, and a third node that an expert always blames, and whose patch ruins every answer.

    weigh ──▶ convert ──▶ label

`weigh` leaves out the unit, so that `convert` cannot convert; that `convert` rounds shows once it can. So no case
passes until both are fixed. The last node prints what it gets, and is blamed for every wrong answer: an expert asks it
to say more, and then no answer matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import Turn
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld, make_exact_world
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

WEIGH, CONVERT = "You write down the weight of a parcel.", "You convert weights to grams. Round to full kilograms."
LABEL = "You print the weight on the label."
UNIT, EXACT, MORE = "Always name the unit.", "Give the exact number of grams.", "Say more about the parcel."
GRAMS = {"kg": 1000, "lb": 454, "oz": 28}


def make_usual_suspect_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The parcels. `slip` is the chance of a wrong number."""
    nodes = {"weigh": WEIGH, "convert": CONVERT, "label": LABEL}
    return make_exact_world(
        "usual suspect",
        make_turn,
        agent=GraphAgent(
            name="parcels",
            nodes=tuple(ModelNode(name=name, model=name, instruction=text) for name, text in nodes.items()),
            edges=(Edge("weigh", "convert"), Edge("convert", "label")),
        ),
        answer=make_task_model(slip=slip),
        fixes={"weigh#instruction": f"{WEIGH} {UNIT}", "convert#instruction": f"You convert weights to grams. {EXACT}"},
        knowledge=ParcelKnowledge(),
        seed=seed,
    )


def make_turn(name: str, number: int, rng: Random) -> Turn:
    """A parcel whose weight is no full kilogram."""
    unit, amount = rng.choice(tuple(GRAMS)), rng.randrange(3, 90) + 0.5
    return Turn(
        user=f"Parcel {name} {number} weighs {amount} {unit}.", expected=f"Weight: {int(amount * GRAMS[unit])} g"
    )


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        amount, unit = _read_weight(text)
        if request.model == "weigh":
            return ModelReply(text=f"{amount:g} {unit}" if UNIT in instruction else f"{amount:g}")
        if request.model == "label":
            more = ", handle with care" if MORE in instruction else ""
            return ModelReply(text=f"Weight: {text}{more}")
        if unit not in GRAMS:
            return ModelReply(text=f"{amount:g} of unknown unit")
        grams = int(amount * GRAMS[unit]) + (1 if rng.random() < slip else 0)
        return ModelReply(text=f"{grams if EXACT in instruction else round(grams, -3)} g")

    return answer


@dataclass(frozen=True, slots=True)
class ParcelKnowledge:
    """What an expert knows: which step lost the unit, or rounded. It never trusts the last step."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        if step.output.startswith("Weight:"):
            return dict.fromkeys(step.blamable, Complaint(MORE))
        (given, unit), (_, left) = _read_weight(step.input), _read_weight(step.output)
        if unit in GRAMS and not left:
            return dict.fromkeys(step.blamable, Complaint(UNIT))
        if unit in GRAMS and left == "g" and f"Weight: {step.output}" != run.expected:
            is_rounded = round(given * GRAMS[unit], -3) == _read_weight(step.output)[0]
            return dict.fromkeys(step.blamable, Complaint(EXACT)) if is_rounded else {}
        return {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        return f"Weight: {output}" != run.expected

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        asked = [each for each in (UNIT, EXACT, MORE) if each in prompt.signal and each not in value]
        return " ".join([value.replace("Round to full kilograms.", "").strip() if EXACT in asked else value, *asked])

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        return run.expected if step.output.startswith("Weight:") and step.output != run.expected else None


def _read_weight(text: str) -> tuple[float, str]:
    """The last number of a text, and the unit after it."""
    found = re.findall(r"(\d+(?:\.\d+)?)(?: (kg|lb|oz|g)\b)?", text)
    return (float(found[-1][0]), found[-1][1]) if found else (0.0, "")
