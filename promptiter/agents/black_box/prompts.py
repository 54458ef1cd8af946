"""The prompts of a black-box agent: a surface each, with a text or a source as its baseline.

A plain name such as `note` is the instruction of a node of its own, `note#instruction`. Other surfaces are named by
their ids: `answer#tool.terms`, `bot#parameter.top_k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

from promptiter.agents.in_place.source_values import decode_surface, parse_surface_id
from promptiter.errors import SetupError, nearest
from promptiter.sources import FileSource, Source
from promptiter.structure import (
    NO_LIMITS,
    TEXT_TYPES,
    Limits,
    Node,
    StructureSnapshot,
    Surface,
    SurfaceType,
    surface_id,
)
from promptiter.wording import join_names, shorten
from traces.model import Json

Prompt: TypeAlias = "str | Path | Source | Json"
"""A baseline: a text, a file, or where else it is stored. Parameters and examples are values."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of an agent with this name. `given` has the baseline of each, by name or surface id."""

    agent_name: str
    given: Mapping[str, Prompt]
    given_limits: Mapping[str, Limits] = field(default_factory=dict)

    @cached_property
    def ids(self) -> dict[str, str]:
        """The surface of each name, and of each id."""
        given: Any = self.given
        if not isinstance(given, Mapping) or not given:
            raise SetupError(
                f"agent {self.agent_name!r}: prompts is {shorten(self.given)}; give its prompts by name, such as "
                "{'answer': 'You answer guests.'}"
            )
        by_name = {name: find_surface_id(name) for name in self.given}
        ids = list(by_name.values())
        if repeated := sorted({each for each in ids if ids.count(each) > 1}):
            raise SetupError(f"agent {self.agent_name!r}: several prompts are the surface {repeated[0]!r}; keep one")
        return {**by_name, **{each: each for each in ids}}

    @cached_property
    def limits(self) -> dict[str, Limits]:
        """What new values must respect, by surface. SetupError if a limit is not one of the surface's type."""
        found = {}
        for name, limits in self.given_limits.items():
            if name not in self.ids:
                hint = nearest(name, self.given)
                raise SetupError(
                    f"agent {self.agent_name!r}: limits are given for {name!r}, which is not a prompt{hint}"
                )
            surface = parse_surface_id(self.ids[name])
            usable = list_limits(surface.type)
            if unused := [each for each in asdict(limits) if each not in usable and _is_given(limits, each)]:
                raise SetupError(
                    f"agent {self.agent_name!r}: {unused[0]} is not a limit of {surface.id!r}; it takes "
                    f"{join_names(usable, limit=5)}"
                )
            found[surface.id] = limits
        return found

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where prompts are stored, by surface; those that are given as texts are not stored."""
        found = {self.ids[name]: _to_source(each) for name, each in self.given.items()}
        return {name: source for name, source in found.items() if source is not None}

    @cached_property
    def snapshot(self) -> StructureSnapshot:
        """A node for the agent as a whole, and one for each prompt's node. How they are connected is unknown."""
        surfaces = tuple(self._read_surfaces())
        others = dict.fromkeys(each.node_id for each in surfaces if each.node_id != self.agent_name)
        return StructureSnapshot(
            nodes=(Node(id=self.agent_name, kind="agent"), *(Node(id=each, kind="llm") for each in others)),
            surfaces=surfaces,
            name=self.agent_name,
        )

    def _read_surfaces(self) -> Iterator[Surface]:
        for name, given in self.given.items():
            wanted, source = self.ids[name], self.sources.get(self.ids[name])
            limits = self.limits.get(wanted, NO_LIMITS)
            if source is not None:
                surface = decode_surface(wanted, source.read())
            else:
                surface = replace(parse_surface_id(wanted), value=given)
            is_parameter = surface.type == "parameter"
            yield replace(surface, limits=limits.complete(surface.value) if is_parameter else limits)


def list_limits(kind: SurfaceType) -> tuple[str, ...]:
    """The limits that values of surfaces of a type can have."""
    if kind in TEXT_TYPES:
        return ("max_chars", "placeholders", "locked")
    return {"model": ("choices",), "examples": ("max_examples",)}.get(
        kind, ("kind", "minimum", "maximum", "scale", "choices")
    )


def _is_given(limits: Limits, name: str) -> bool:
    return bool(getattr(limits, name) != getattr(NO_LIMITS, name))


def find_surface_id(name: Any) -> str:
    """The surface that a prompt's name means."""
    if not isinstance(name, str) or not name:
        raise SetupError(f"a prompt is named {shorten(name)}; give its name as a text")
    wanted = name if "#" in name else surface_id(name, "instruction")
    return parse_surface_id(wanted).id


def _to_source(given: Prompt) -> Source | None:
    if isinstance(given, Path):
        return FileSource(given)
    return cast("Source", given) if callable(getattr(given, "read", None)) else None
