"""A scripted expert for the LLM stages: knows the faults of a scenario, and fails on anything it was not made for."""

from __future__ import annotations

import re
from collections import Counter

import orjson

from promptiter.llm.messages import ModelRequest
from promptiter.llm.models import ScriptedModel
from tests.loop.scenarios import Scenario

_QUOTE = re.compile(r'<data name="(?P<name>[^"]+)">\n(?P<text>.*?)\n</data>', re.DOTALL)


class Expert:
    """Blames a faulty surface while it has its faulty value, asks every predecessor, and knows the fixes."""

    def __init__(self, scenario: Scenario) -> None:
        self.model = ScriptedModel(self._answer)
        self.calls: Counter[str] = Counter()
        self._fixes = scenario.fixes
        structure = scenario.agent.describe()
        self._faulty = {surface_id: str(structure.surface(surface_id).value) for surface_id in scenario.fixes}

    def _answer(self, request: ModelRequest) -> str | None:
        wanted = set((request.schema or {}).get("properties", {}))
        quotes = [(each["name"], each["text"]) for each in _QUOTE.finditer(request.messages[-1].content)]
        if "diagnosis" in wanted:
            return self._blame(quotes)
        if wanted == {"text"}:
            self.calls["aggregator"] += 1
            return orjson.dumps({"text": dict(quotes)["points"]}).decode()
        if wanted == {"reason", "value"}:
            return self._mend(quotes)
        return None

    def _blame(self, quotes: list[tuple[str, str]]) -> str:
        self.calls["backwarder"] += 1
        gradients = [
            {"surface": name, "text": self._fixes[surface_id].reason, "severity": "P0", "category": "response"}
            for name, text in quotes
            if re.fullmatch(r"S\d+", name)
            for surface_id, _, value in [text.partition("\n\n")]
            if self._faulty.get(surface_id) == value
        ]
        packets = [
            {"predecessor": name, "text": "something was lost before", "severity": "P0", "category": "response"}
            for name, _ in quotes
            if re.fullmatch(r"P\d+", name)
        ]
        return orjson.dumps({"diagnosis": "seen", "gradients": gradients, "packets": packets}).decode()

    def _mend(self, quotes: list[tuple[str, str]]) -> str | None:
        [surface] = [text for name, text in quotes if name == "surface"]
        surface_id = surface.splitlines()[0].removeprefix("surface: ")
        if surface_id not in self._fixes:
            return None
        self.calls["optimizer"] += 1
        return orjson.dumps({"reason": self._fixes[surface_id].reason, "value": self._fixes[surface_id].value}).decode()
