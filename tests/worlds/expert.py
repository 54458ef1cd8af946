"""A scripted expert for the LLM stages. It knows the faults of a scenario and fails on any other request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from random import Random

import orjson

from promptiter.errors import UnexpectedCallError
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.structure import StructureSnapshot
from tests.worlds.scenarios import Scenario
from traces.model import Json

_QUOTE = re.compile(r'<data name="(?P<name>[^"]+)">\n(?P<text>.*?)\n</data>', re.DOTALL)
_STEP = re.compile(r"^# Step (?P<alias>T\d+);.*?(?:may be blamed: (?P<surfaces>S[\d, S]+))?$", re.MULTILINE)


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
        wanted: Json = (request.schema or {}).get("properties", {})
        prompt = next(each.content for each in request.messages if each.role == "user")  # a repair comes after it
        quotes = _find_quotes(prompt)
        if "diagnosis" in wanted:
            is_whole = "step" in wanted["gradients"]["items"]["properties"] if "gradients" in wanted else False
            return self._blame_trace(prompt) if is_whole else self._blame_step(quotes)
        if set(wanted) == {"text"}:
            self.calls["aggregator"] += 1
            return orjson.dumps({"text": dict(quotes)["points"]}).decode()
        if set(wanted) == {"reason", "value"}:
            return self._fix(quotes)
        return None

    def _blame_step(self, quotes: list[tuple[str, str]]) -> str:
        self.calls["backwarder"] += 1
        surfaces = {name: text for name, text in quotes if re.fullmatch(r"S\d+", name)}
        blamed, is_misled = self._choose_blamed(surfaces, dict(quotes))
        packets = [
            {"predecessor": name, "text": "something was lost before", "severity": "P0", "category": "response"}
            for name, text in quotes
            if re.fullmatch(r"P\d+", name) and not is_misled and self._is_worth_asking(text)
        ]
        gradients = [self._make_gradient(name, surfaces) for name in blamed]
        return orjson.dumps({"diagnosis": "seen", "gradients": gradients, "packets": packets}).decode()

    def _blame_trace(self, prompt: str) -> str:
        self.calls["backwarder"] += 1
        quotes = dict(_find_quotes(prompt))
        gradients = []
        for alias, listed, shown in _find_steps(prompt):
            surfaces = {name: quotes[name] for name in listed}
            blamed, _ = self._choose_blamed(surfaces, {"user": quotes["user"], **shown})
            gradients += [{"step": alias, **self._make_gradient(name, surfaces)} for name in blamed]
        return orjson.dumps({"diagnosis": "seen", "gradients": gradients}).decode()

    def _choose_blamed(self, surfaces: Mapping[str, str], shown: Mapping[str, str]) -> tuple[list[str], bool]:
        """The surfaces to blame at one step, and whether one without a fault is among them."""
        guilty = [name for name, text in surfaces.items() if self._is_faulty(text)]
        seen = [shown["user"], shown["node"], shown["output"]]
        if Random(f"{self._seed} {seen}").random() >= self._error_rate:
            return guilty, False
        return ([], False) if guilty else (list(surfaces)[:1], bool(surfaces))

    def _is_faulty(self, shown: str) -> bool:
        surface_id, _, value = shown.partition("\n\n")
        return self._faulty.get(surface_id) == value

    def _is_worth_asking(self, shown: str) -> bool:
        """Whether a fault can be at or behind a predecessor, whose node is in the first line."""
        node_id = shown.splitlines()[0].removeprefix("node ")
        return self._worth_asking is None or node_id in self._worth_asking

    def _make_gradient(self, name: str, surfaces: Mapping[str, str]) -> dict[str, str]:
        fix = self._fixes.get(surfaces[name].partition("\n\n")[0])
        reason = fix.reason if fix is not None else "it should say more"
        return {"surface": name, "text": reason, "severity": "P0", "category": "response"}

    def _fix(self, quotes: list[tuple[str, str]]) -> str | None:
        [surface] = [text for name, text in quotes if name == "surface"]
        surface_id = surface.splitlines()[0].removeprefix("surface: ")
        if surface_id not in self._fixes:
            return None
        self.calls["optimizer"] += 1
        return orjson.dumps({"reason": self._fixes[surface_id].reason, "value": self._fixes[surface_id].value}).decode()


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
        if set((request.schema or {}).get("properties", {})) != {"reason", "is_correctable", "output"}:
            raise UnexpectedCallError("the teacher only corrects steps")
        self.calls += 1
        quotes = dict(_find_quotes(request.messages[-1].content))
        fix = self._scenario.fixes.get(quotes["surface"].partition("\n\n")[0])
        output = ""
        if fix is not None:
            messages = (Message("system", fix.value), Message("user", quotes["input"]))
            answer = await self._scenario.model(ModelRequest(model="simulated", messages=messages), repeat=repeat)
            output = answer.text if answer.text != quotes["output"] else ""
        if Random(f"{self._seed} {quotes['user']} {quotes['node']}").random() < self._error_rate:
            output = "" if output else quotes["expected"]
        answered = {"reason": "as it should be", "is_correctable": bool(output), "output": output}
        return ModelReply(text=orjson.dumps(answered).decode())


def _find_quotes(prompt: str) -> list[tuple[str, str]]:
    return [(each["name"], each["text"]) for each in _QUOTE.finditer(prompt)]


def _find_steps(prompt: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """The steps of a whole trace: alias, the surfaces that may be blamed there, and what the prompt shows of it."""
    headings = list(_STEP.finditer(prompt))
    for heading in headings:
        end = prompt.find("\n\n# ", heading.end())
        surfaces = heading["surfaces"].split(", ") if heading["surfaces"] else []
        yield heading["alias"], surfaces, dict(_find_quotes(prompt[heading.end() : end]))


def _find_downstream(nodes: Iterable[str], structure: StructureSnapshot) -> frozenset[str]:
    """The nodes and all that follow them."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        after = {edge.target for edge in structure.edges if edge.source == node} - found
        found |= after
        waiting += sorted(after)
    return frozenset(found)
