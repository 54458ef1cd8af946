"""A handbook: one instruction of more than 10,000 tokens, in which one line is wrong. It can only be edited.

A clerk looks up what a parcel to a zone costs. A line in the middle of the handbook tells it to round to full credits,
but amounts have to be exact. The other lines must stay: each case needs another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

TRAIN, VALIDATION, ZONES = 12, 12, 400
ROUNDED = "Amounts are rounded to full credits."
EXACT = "Amounts are exact, with all of their decimals."


def make_handbook_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The clerk. `slip` is the chance of a wrong amount."""
    rng = Random(f"handbook {seed}")
    prices = {zone: rng.randrange(2, 90) + rng.choice((0.25, 0.5, 0.75)) for zone in range(1, ZONES + 1)}
    lines = [
        f"Section {zone}. A parcel to zone {zone} costs {price} credits, and takes {rng.randrange(2, 9)} days by land. "
        f"The clerk of zone {zone} answers questions about it."
        for zone, price in prices.items()
    ]
    lines.insert(rng.randrange(ZONES // 4, 3 * ZONES // 4), ROUNDED)
    handbook = "\n".join(["You say what parcels cost. Answer with the amount alone.", *lines])
    zones = rng.sample(sorted(prices), TRAIN + VALIDATION)
    return PlantedWorld(
        name="handbook",
        agent=GraphAgent(name="handbook", nodes=(ModelNode(name="clerk", model="clerk", instruction=handbook),)),
        answer=make_task_model(slip=slip),
        metrics=build_metrics([{"metric_name": "exact_match"}]),
        train=make_cases("train", {zone: prices[zone] for zone in zones[:TRAIN]}),
        validation=make_cases("validation", {zone: prices[zone] for zone in zones[TRAIN:]}),
        fixes={"clerk#instruction": handbook.replace(ROUNDED, EXACT)},
        knowledge=HandbookKnowledge(),
        seed=seed,
    )


def make_cases(name: str, prices: Mapping[int, float]) -> EvalSet:
    turns = {
        zone: Turn(user=f"A parcel to zone {zone}, please.", expected=f"{price}") for zone, price in prices.items()
    }
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{zone}", turns=(turn,)) for zone, turn in turns.items()))


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        handbook, text = request.messages[0].content, request.messages[-1].content
        [zone] = re.findall(r"zone (\d+)", text)
        price = re.findall(rf"A parcel to zone {zone} costs ([\d.]+) credits", handbook)
        if not price or rng.random() < slip:
            return ModelReply(text="unknown")
        return ModelReply(text=price[0] if EXACT in handbook else f"{float(price[0]):.0f}")

    return answer


@dataclass(frozen=True, slots=True)
class HandbookKnowledge:
    """What an expert knows: a rounded amount is wrong. It replaces the line about rounding if it is shown one."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        is_rounded = step.output.isdigit() and "." in run.expected
        return dict.fromkeys(step.blamable, Complaint(EXACT)) if is_rounded else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - there is one step
        return False

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        if ROUNDED in value:
            return value.replace(ROUNDED, EXACT)
        first, _, rest = value.partition("\n")
        return f"{first}\n{EXACT}\n{rest}"

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        return run.expected if step.output != run.expected else None
