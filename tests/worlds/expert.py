"""A scripted expert for the LLM stages. It knows the faults of a scenario and fails on any other request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import orjson

from promptiter.errors import UnexpectedCallError
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.structure import StructureSnapshot
from tests.worlds.prompt_reader import (
    BlamePrompt,
    CorrectPrompt,
    MergePrompt,
    OptimizePrompt,
    ShownRun,
    ShownStep,
    ShownSurface,
    read_prompt,
)
from tests.worlds.scenarios import Scenario
from traces.model import Json


class Expert:
    """Blames a surface while it has its faulty value, at one step or in a whole trace, and knows the fixes.

    In a walk it sends packets to every predecessor or, if it `goes_straight`, only to those that a fault can be behind.
    It errs at a share of the steps it is shown, its `error_rate`, at the same steps in a walk and in a whole trace: it
    misses the fault, or blames a surface without one; in a walk it then sends no packets.
    """

    def __init__(
        self, scenario: Scenario, *, error_rate: float = 0.0, seed: int = 0, goes_straight: bool = False
    ) -> None:
        self.model = ScriptedModel(self._answer)
        self.calls: Counter[str] = Counter()
        self._error_rate, self._seed = error_rate, seed
        self._fixes = scenario.fixes
        structure = scenario.agent.describe()
        self._faulty = {surface_id: str(structure.surface(surface_id).value) for surface_id in scenario.fixes}
        guilty = {structure.surface(surface_id).node_id for surface_id in scenario.fixes}
        self._worth_asking = _find_downstream(guilty, structure) if goes_straight else None

    def _answer(self, request: ModelRequest) -> str | None:
        match read_prompt(request):
            case BlamePrompt() as prompt:
                self.calls["backwarder"] += 1
                return orjson.dumps({"diagnosis": "seen", **self._blame(prompt)}).decode()
            case MergePrompt() as prompt:
                self.calls["aggregator"] += 1
                points = [{"text": each, "joins": [number]} for number, each in enumerate(prompt.points, 1)]
                return orjson.dumps({"points": points}).decode()
            case OptimizePrompt() as prompt if prompt.surface.id in self._fixes:
                self.calls["optimizer"] += 1
                fix = self._fixes[prompt.surface.id]
                return orjson.dumps({"reason": fix.reason, "value": fix.value}).decode()
        return None

    def _blame(self, prompt: BlamePrompt) -> dict[str, Json]:
        gradients: list[Json] = []
        packets: list[Json] = []
        for run in prompt.runs:
            for step in run.steps:
                blamed, is_misled = self._choose_blamed(step, run, prompt)
                gradients += [self._make_gradient(prompt.surfaces[alias], step, run) for alias in blamed]
                packets += [
                    {"predecessor": alias, "text": "something was lost before", "findings": [*run.reports]}
                    for alias, node in run.predecessor_nodes.items()
                    if not is_misled and (self._worth_asking is None or node in self._worth_asking)
                ]
        return {"gradients": gradients} | ({"packets": packets} if prompt.is_one_step else {})

    def _choose_blamed(self, step: ShownStep, run: ShownRun, prompt: BlamePrompt) -> tuple[list[str], bool]:
        """The surfaces to blame at one step, and whether one without a fault is among them."""
        shown = {alias: prompt.surfaces[alias] for alias in step.blamable}
        guilty = [alias for alias, each in shown.items() if self._faulty.get(each.id) == each.value]
        if Random(f"{self._seed} {[run.user, step.node, step.output]}").random() >= self._error_rate:
            return guilty, False
        return ([], False) if guilty else (list(shown)[:1], bool(shown))

    def _make_gradient(self, surface: ShownSurface, step: ShownStep, run: ShownRun) -> Json:
        fix = self._fixes.get(surface.id)
        text = fix.reason if fix is not None else "it should say more"
        gradient: dict[str, Json] = {"surface": surface.alias, "findings": [*run.reports], "text": text}
        place = {"step": step.alias} if step.alias else {}
        return {**place, **gradient, "severity": "P0", "category": "response"}


class Teacher:
    """Corrects steps for the gradient check: returns what a step would output under the correct instruction.

    It errs at a share of the steps, its `error_rate`: it does not correct a faulty step, or replaces the output of a
    sound one by the expected answer.
    """

    def __init__(self, scenario: Scenario, *, error_rate: float = 0.0, seed: int = 0) -> None:
        self.calls = 0
        self._scenario = scenario
        self._error_rate, self._seed = error_rate, seed

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        prompt = read_prompt(request)
        if not isinstance(prompt, CorrectPrompt):
            raise UnexpectedCallError("the teacher only corrects steps")
        self.calls += 1
        step = prompt.step
        fix = self._scenario.fixes.get(prompt.surfaces[0].id)
        output = ""
        if fix is not None:
            messages = (Message("system", fix.value), Message("user", step.input))
            answer = await self._scenario.model(ModelRequest(model="simulated", messages=messages), repeat=repeat)
            output = answer.text if answer.text != step.output else ""
        if Random(f"{self._seed} {prompt.run.user} {step.node}").random() < self._error_rate:
            output = "" if output else prompt.run.expected
        answered = {"reason": "as it should be", "is_correctable": bool(output), "output": output}
        return ModelReply(text=orjson.dumps(answered).decode())


def _find_downstream(nodes: Iterable[str], structure: StructureSnapshot) -> frozenset[str]:
    """The nodes and all that follow them."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        after = {edge.target for edge in structure.edges if edge.source == node} - found
        found |= after
        waiting += sorted(after)
    return frozenset(found)
