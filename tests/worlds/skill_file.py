"""A skill of several thousand words with one wrong line, beside a second skill and an instruction that are right.

A clerk answers how long things can be returned, and what sending them costs; each has a skill of its own, with one line
per kind of thing, in varied words. One line of the first is wrong. It has to be found and edited: the clerk takes the
first line that it finds, so that a second one does not help.
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

INSTRUCTION = "You answer questions about returns and postage. Follow your skills. Answer with the number alone."
KINDS = ("lamps", "kettles", "chairs", "clocks", "mirrors", "towels", "radios", "ladders", "carpets", "pans")
OTHERS = 140
"""Kinds that no case is about."""
_WRONG_DAYS, _DAYS = 14, 45


def make_skill_file_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The clerk. `slip` is the chance that it does not know an answer."""
    rng = Random(f"skill file {seed}")
    wrong = rng.choice(KINDS)
    days = {kind: rng.choice((21, 28, 35, 60)) for kind in KINDS} | {wrong: _DAYS}
    postage = {kind: rng.randrange(3, 30) for kind in KINDS}
    kinds = [*KINDS, *(f"articles of group {number}" for number in range(OTHERS))]
    rng.shuffle(kinds)
    returns = "\n".join(
        f"When customers send back {kind}, look at the state of the goods, thank them for their message, and take the "
        f"goods back within {_WRONG_DAYS if kind == wrong else days.get(kind, 30)} days of the purchase."
        for kind in kinds
    )
    sending = "\n".join(f"For a parcel with {kind} the customer pays {postage.get(kind, 8)} credits." for kind in kinds)

    def make_turn(name: str, number: int, rng: Random) -> Turn:
        kind = wrong if number % 3 == 0 else rng.choice([each for each in KINDS if each != wrong])
        what, value = ("Returns", days[kind]) if number % 2 or kind == wrong else ("Postage", postage[kind])
        return Turn(user=f"{what} of {kind}, question {name} {number}", expected=f"{value}")

    skills = {"returns": returns, "postage": sending}
    return make_exact_world(
        "skill file",
        make_turn,
        agent=GraphAgent(
            name="skilled", nodes=(ModelNode(name="clerk", model="clerk", instruction=INSTRUCTION, skills=skills),)
        ),
        answer=make_task_model(slip=slip),
        fixes={"clerk#skill.returns": returns.replace(f"within {_WRONG_DAYS} days", f"within {_DAYS} days")},
        knowledge=SkillKnowledge(),
        seed=seed,
    )


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        [(what, kind)] = re.findall(r"^(Returns|Postage) of (\w+)", text)
        return ModelReply(text="unknown" if rng.random() < slip else _look_up(what, kind, instruction))

    return answer


@dataclass(frozen=True, slots=True)
class SkillKnowledge:
    """What an expert knows: a wrong number is in the skill about its topic. It edits the line if it is shown one."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:
        if not step.output.isdigit() or step.output == run.expected:
            return {}
        what, _, rest = step.input.partition(" of ")
        text = f"The skill gives a wrong number for {rest.partition(',')[0]}: it is {run.expected}."
        return {
            alias: Complaint(text) for alias in step.blamable if surfaces[alias].id.endswith(f"#skill.{what.lower()}")
        }

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - there is one step
        return False

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        for kind, number in re.findall(r"wrong number for (\w+): it is (\d+)", prompt.signal):
            line = next((each for each in value.split("\n") if f" {kind}" in each and re.search(r"\d", each)), "")
            fixed = re.sub(r"\d+", number, line) if line else f"{kind}: {number}"
            value = value.replace(line, fixed) if line else f"{value}\n{fixed}"
        return value

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        return run.expected if step.output != run.expected else None


def _look_up(what: str, kind: str, text: str) -> str:
    """The number in the first line of a skill about a kind."""
    cue = f"send back {kind}," if what == "Returns" else f"parcel with {kind} "
    lines = (line for line in text.split("\n") if cue in line or line.startswith(f"{kind}:"))
    return str((re.findall(r"\d+", next(lines, "")) or ["unknown"])[-1])
