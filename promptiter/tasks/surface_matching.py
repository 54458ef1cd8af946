"""Which surfaces of a live agent are those that traces show: by their text, and by the name of their node.

Nodes are renamed and prompts edited after traces were recorded, and frameworks add sentences to a prompt. A surface is
matched if its text is the same, if its node has the same name, or if its text is like that of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from promptiter.structure import TEXT_TYPES, StructureSnapshot, Surface
from traces import ExecutionTrace, Step

MIN_SIMILARITY = 0.6
"""Texts that are less alike are not taken for versions of one text."""

MatchedBy: TypeAlias = Literal["text and name", "text", "name", "similar text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceMatch:
    """A surface of the traces and that of the live agent. It `is_edited` if their texts differ."""

    recorded: str
    live: str
    by: MatchedBy
    is_edited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All matches, and what has none: surfaces of the traces, and surfaces of the agent."""

    matches: tuple[SurfaceMatch, ...] = ()
    only_recorded: tuple[str, ...] = ()
    only_live: tuple[str, ...] = ()

    def rename_nodes(self, recorded: StructureSnapshot, live: StructureSnapshot) -> dict[str, str]:
        """The live node of each recorded node, as most of its matched surfaces say."""
        votes: dict[str, dict[str, int]] = {}
        for match in self.matches:
            old, new = recorded.surface(match.recorded).node_id, live.surface(match.live).node_id
            votes.setdefault(old, {})[new] = votes.get(old, {}).get(new, 0) + 1
        return {old: max(sorted(found), key=lambda new: found[new]) for old, found in votes.items()}


def match_surfaces(recorded: StructureSnapshot, live: StructureSnapshot) -> Matching:
    """Match each text surface of the traces with at most one of the live agent, the best pairs first."""
    pairs = [
        (found[0], old.id, new.id, found[1])
        for old in _list_texts(recorded)
        for new in _list_texts(live)
        if (found := _compare(old, new)) is not None
    ]
    taken: dict[str, SurfaceMatch] = {}
    used: set[str] = set()
    for _, old_id, new_id, by in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if old_id not in taken and new_id not in used:
            is_edited = _normalize(recorded.surface(old_id).value) != _normalize(live.surface(new_id).value)
            taken[old_id] = SurfaceMatch(recorded=old_id, live=new_id, by=by, is_edited=is_edited)
            used.add(new_id)
    return Matching(
        matches=tuple(taken[each] for each in sorted(taken)),
        only_recorded=tuple(each.id for each in _list_texts(recorded) if each.id not in taken),
        only_live=tuple(each.id for each in _list_texts(live) if each.id not in used),
    )


def rename_trace(trace: ExecutionTrace, surfaces: Mapping[str, str], nodes: Mapping[str, str]) -> ExecutionTrace:
    """The trace with the names of the live agent."""

    def rename(step: Step) -> Step:
        reads = step.surface_reads
        return replace(
            step,
            node_id=nodes.get(step.node_id, step.node_id),
            surface_reads=None if reads is None else {surfaces.get(name, name): value for name, value in reads.items()},
        )

    return replace(trace, steps=tuple(map(rename, trace.steps)))


def rename_structure(
    recorded: StructureSnapshot, surfaces: Mapping[str, str], nodes: Mapping[str, str], live: StructureSnapshot
) -> StructureSnapshot:
    """The recorded structure with the names of the live agent, and its own values. Nodes that become one are joined."""
    seen: dict[str, Surface] = {}
    for surface in recorded.surfaces:
        if (name := surfaces.get(surface.id)) is not None:
            seen[name] = replace(live.surface(name), value=surface.value)
        else:
            own = replace(surface, node_id=nodes.get(surface.node_id, surface.node_id))
            seen.setdefault(own.id, own)
    found = {node.id: node for node in live.nodes}
    kept = {}
    for node in recorded.nodes:
        name = nodes.get(node.id, node.id)
        kept[name] = found.get(name, replace(node, id=name))
    for surface in seen.values():
        kept.setdefault(surface.node_id, found[surface.node_id])
    edges = {
        (source, target): replace(edge, source=source, target=target)
        for edge in recorded.edges
        for source, target in [(nodes.get(edge.source, edge.source), nodes.get(edge.target, edge.target))]
    }
    return StructureSnapshot(
        nodes=tuple(kept.values()), edges=tuple(edges.values()), surfaces=tuple(seen.values()), name=recorded.name
    )


def _list_texts(structure: StructureSnapshot) -> Iterable[Surface]:
    return [surface for surface in structure.surfaces if surface.type in TEXT_TYPES and isinstance(surface.value, str)]


def _compare(old: Surface, new: Surface) -> tuple[float, MatchedBy] | None:
    """How well two surfaces fit, and why; None if they do not."""
    if not _are_of_one_kind(old, new):
        return None
    is_named = _normalize(old.node_id.rpartition("/")[2]) == _normalize(new.node_id.rpartition("/")[2])
    is_named = is_named and _normalize(old.part) == _normalize(new.part)
    similarity = _measure_similarity(str(old.value), str(new.value))
    if similarity == 1.0:
        return (3.0, "text and name") if is_named else (2.0, "text")
    if is_named:
        return 1.0 + similarity, "name"
    if old.type == "tool" and _normalize(old.part) == _normalize(new.part):
        return 0.9 + similarity / 10, "name"
    return (similarity, "similar text") if similarity >= MIN_SIMILARITY else None


def _are_of_one_kind(old: Surface, new: Surface) -> bool:
    """Traces show a system prompt as one text, whatever the agent builds it from."""
    prompts = ("instruction", "global_instruction", "prompt", "skill", "file")
    return old.type == new.type or (old.type in prompts and new.type in prompts)


def _measure_similarity(old: str, new: str) -> float:
    """From 0 to 1. A text that contains the other counts as nearly the same: frameworks add sentences."""
    first, second = _normalize(old), _normalize(new)
    if first == second:
        return 1.0
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) >= 20 and shorter in longer:
        return 0.95
    words = SequenceMatcher(None, first.split(), second.split(), autojunk=False)
    return words.ratio() if words.real_quick_ratio() >= MIN_SIMILARITY else 0.0


def _normalize(text: object) -> str:
    return " ".join(re.sub(r"[\s_-]+", " ", str(text)).casefold().split())
