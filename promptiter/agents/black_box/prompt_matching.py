"""Which prompts a model call used: those whose current text is in its request.

A prompt may be a template, so its placeholders match anything. White space does not count. A prompt that is not found
may still have been used: cut, translated, or read by the agent's own code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from promptiter.llm.messages import ModelRequest
from promptiter.structure import TEXT_TYPES, StructureSnapshot, Surface
from traces.model import Json

_PLACEHOLDER = re.compile(r"\{\{?\s*[\w.\-]+\s*\}?\}|%\(\w+\)s|<[A-Za-z_]\w*>|\$\{?\w+\}?")
MIN_FRAGMENT = 8
"""A shorter text between two placeholders says nothing."""


@dataclass(frozen=True)
class PromptMatcher:
    """The prompts of an agent with their values in one run, and the message of its case."""

    snapshot: StructureSnapshot
    values: Mapping[str, Json]
    case: str = ""

    @cached_property
    def _fragments(self) -> dict[str, tuple[str, ...]]:
        texts = {each.id: self.values[each.id] for each in self.snapshot.surfaces if each.type in TEXT_TYPES}
        return {name: _split(text) for name, text in texts.items() if isinstance(text, str)}

    @cached_property
    def _case(self) -> str:
        return _squeeze(self.case)

    def find_prompts(self, request: ModelRequest) -> list[str]:
        """The surfaces whose texts a request contains, in the order of the structure."""
        whole = _squeeze("\n".join([request.text, *(tool.description for tool in request.tools)]))
        tools = {tool.name: _squeeze(tool.description) for tool in request.tools}
        found = [each for each in self.snapshot.surfaces if self._is_in(each, whole, tools)]
        return [each.id for each in found if not self._is_part_of_others(each, found, whole)]

    def find_node(self, request: ModelRequest, header: str) -> str | None:
        """The node that a request belongs to: the one that its header names, or that of its prompt.

        Of several prompts in a request, those in the system message come first, then the longest.
        """
        if any(node.id == header for node in self.snapshot.nodes):
            return header
        system = _squeeze("\n".join(each.content for each in request.messages if each.role == "system"))
        found = [self.snapshot.surface(each) for each in self.find_prompts(request)]
        ranked = sorted(
            found,
            key=lambda each: (
                each.type not in ("instruction", "prompt"),
                not all(part in system for part in self._fragments[each.id]),
                -sum(map(len, self._fragments[each.id])),
            ),
        )
        return ranked[0].node_id if ranked else None

    def _is_in(self, surface: Surface, whole: str, tools: Mapping[str, str]) -> bool:
        fragments = self._fragments.get(surface.id)
        if not fragments:
            return False
        text = tools.get(surface.part, whole) if surface.type == "tool" else whole
        return all(each in text for each in fragments)

    def _is_part_of_others(self, surface: Surface, found: list[Surface], whole: str) -> bool:
        """Whether a prompt is in a request only because a longer prompt, or the case, contains its text."""
        if surface.type == "tool":
            return False
        text = max(self._fragments[surface.id], key=len)
        longer = [
            " ".join(self._fragments[each.id])
            for each in found
            if each.id != surface.id and len(" ".join(self._fragments[each.id])) > len(text)
        ]
        inside = sum(each.count(text) for each in longer)
        if (in_case := self._case.count(text)) > 0:
            inside += in_case * whole.count(self._case)
        return bool(inside) and whole.count(text) <= inside


def _split(text: str) -> tuple[str, ...]:
    """The parts of a prompt between its placeholders; all of it if they are too short."""
    parts = [part for each in _PLACEHOLDER.split(text) if len(part := _squeeze(each)) >= MIN_FRAGMENT]
    return tuple(parts) or tuple(filter(None, [_squeeze(text)]))


def _squeeze(text: str) -> str:
    return " ".join(text.split())
