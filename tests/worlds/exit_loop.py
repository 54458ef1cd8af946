"""A loop whose exit condition is wrong: draft -> review -> draft or publish.

`draft` adds one item of the request at a time, and a filler once it has all. `review` decides when to stop, as its
instruction says: too early or too late, depending on the seed. `publish` prints the list, which has to match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import Turn
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld, make_exact_world
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

EARLY = "You review packing lists. Answer done once the list has a first item."
LATE = "You review packing lists. Answer done once the list has {most} items."
RIGHT = "Answer done as soon as the list has every item of the request, otherwise again."
FILLER = "spare"
_ITEMS = ("tent", "rope", "lamp", "stove", "map", "knife", "mug", "soap", "towel", "radio")


def make_exit_loop_world(seed: int, *, slip: float = 0.0, most: int = 6) -> PlantedWorld:
    """The loop, which ends at the first item, or with an odd seed at `most` items.

    `slip` is about the chance per case run that a review decides wrongly by accident.
    """
    return make_exact_world(
        "exit loop",
        make_turn,
        agent=_make_agent(LATE.format(most=most) if seed % 2 else EARLY, max_visits=max(most, 16)),
        answer=make_task_model(slip=slip),
        fixes={"review#instruction": f"You review packing lists. {RIGHT}"},
        knowledge=LoopKnowledge(),
        seed=seed,
    )


def make_turn(name: str, number: int, rng: Random) -> Turn:
    """A request of two to four items."""
    items = ", ".join(rng.sample(_ITEMS, rng.choice((2, 3, 4))))
    return Turn(user=f"Trip {name} {number}: pack {items}.", expected=f"Packed: {items}")


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        wanted, listed = _read_request(text), _read_list(text)
        if request.model == "draft":
            missing = [item for item in wanted if item not in listed]
            return ModelReply(text=f"List: {', '.join([*listed, (missing or [FILLER])[0]])}")
        if request.model == "publish":
            return ModelReply(text=f"Packed: {', '.join(listed)}")
        is_done = _is_done(instruction, wanted, listed)
        return ModelReply(text="done" if is_done != (rng.random() < slip / 4) else "again")

    return answer


@dataclass(frozen=True, slots=True)
class LoopKnowledge:
    """What an expert knows: a review that stops must have every item, and one that does not must lack some."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        wanted, listed = _read_request(step.input), _read_list(step.input)
        if step.output not in ("done", "again") or (step.output == "done") == (set(wanted) <= set(listed)):
            return {}
        return dict.fromkeys(step.blamable, Complaint(RIGHT, "route"))

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        """Whether a list lacks items or has too many, so that the decision before or after it was wrong."""
        if output in ("done", "again"):
            return True
        return set(_read_list(output)) != set(_read_request(run.user))

    def rewrite(self, prompt: OptimizePrompt) -> str:
        if RIGHT not in prompt.signal:
            return prompt.surface.value
        first, _, rest = prompt.surface.value.partition(". ")
        return f"{first.rstrip('.')}. {RIGHT}" if "Answer done" in rest else f"{prompt.surface.value} {RIGHT}"

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        return {"done": "again", "again": "done"}[step.output] if self.find_faults(step, {}, run) else None


def _make_agent(instruction: str, *, max_visits: int) -> GraphAgent:
    def route(context: NodeContext) -> str:
        return "publish" if str(context.outputs["review"]).strip() == "done" else "draft"

    both = "{input}\n{draft}"
    return GraphAgent(
        name="packing",
        nodes=(
            ModelNode(name="draft", model="draft", instruction="You write packing lists.", prompt=both),
            ModelNode(name="review", model="review", instruction=instruction, prompt=both),
            ModelNode(name="publish", model="publish", instruction="You print the list.", prompt="{draft}"),
        ),
        edges=(Edge("draft", "review"), Choice("review", route, {"draft": "draft", "publish": "publish"})),
        entry="draft",
        max_visits=max_visits,
    )


def _is_done(instruction: str, wanted: list[str], listed: list[str]) -> bool:
    if "every item" in instruction:
        return set(wanted) <= set(listed)
    most = re.search(r"(\d+) items", instruction)
    return len(listed) >= (int(most[1]) if most else 1)


def _read_request(text: str) -> list[str]:
    return [item for line in re.findall(r"pack (.+)\.", text) for item in line.split(", ")]


def _read_list(text: str) -> list[str]:
    found = re.findall(r"(?:List|Packed): (.+)", text)
    return found[-1].split(", ") if found else []
