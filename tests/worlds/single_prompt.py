"""One prompt with two faults, judged by an exact match: no case passes until both are fixed.

A clerk adds up an order. The instruction says neither that amounts have two decimals nor that they name the currency.
The expert names one thing at a time: that a currency is missing shows only once the number is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import Turn
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld, make_exact_world
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

INSTRUCTION = "You add up orders. Answer with the sum."
DECIMALS = "Write the sum with two decimals."
CURRENCY = "Write the currency after the sum."
_PRODUCTS = ("lamps", "chairs", "kettles", "desks", "clocks")
_CURRENCIES = ("EUR", "CHF", "SEK")


def make_single_prompt_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The clerk. `slip` is the chance of a wrong sum."""
    return make_exact_world(
        "single prompt",
        make_turn,
        agent=GraphAgent(name="clerk", nodes=(ModelNode(name="clerk", model="clerk", instruction=INSTRUCTION),)),
        answer=make_task_model(slip=slip),
        fixes={"clerk#instruction": f"{INSTRUCTION} {DECIMALS} {CURRENCY}"},
        knowledge=ClerkKnowledge(),
        seed=seed,
    )


def make_turn(_name: str, number: int, rng: Random) -> Turn:
    """An order of a few things of one kind."""
    amount, price = rng.randrange(2, 9), rng.randrange(3, 60) + 0.5
    currency = rng.choice(_CURRENCIES)
    user = f"{amount} {rng.choice(_PRODUCTS)} at {price:g} {currency} each, order {number}"
    return Turn(user=user, expected=f"{amount * price:.2f} {currency}")


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        [(amount, price, currency)] = re.findall(r"^(\d+) \w+ at ([\d.]+) ([A-Z]{3})", text)
        total = int(amount) * float(price) + (1 if rng.random() < slip else 0)
        number = f"{total:.2f}" if "decimals" in instruction else f"{total:g}"
        return ModelReply(text=f"{number} {currency}" if "currency" in instruction else number)

    return answer


@dataclass(frozen=True, slots=True)
class ClerkKnowledge:
    """What an expert knows: how an answer differs from the expected one, the number first."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        wanted, _, currency = run.expected.partition(" ")
        given = step.output.split(" ")
        if given[0] != wanted and float(given[0]) == float(wanted):
            return dict.fromkeys(step.blamable, Complaint(DECIMALS, "format"))
        if currency not in given:
            return dict.fromkeys(step.blamable, Complaint(CURRENCY, "format"))
        return {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - there is one step
        return False

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        return " ".join(
            [value, *(each for each in (DECIMALS, CURRENCY) if each in prompt.signal and each not in value)]
        )

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        return run.expected if step.output != run.expected else None
