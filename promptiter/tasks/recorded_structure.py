"""The structure of an agent as its traces show it.

A text may differ between runs because somebody changed it, which makes versions, or because it is filled in for each
run, with a date or the name of a customer. What is filled in is not part of the text: its template is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from promptiter.errors import SetupError
from promptiter.structure import SURFACE_TYPES, TEXT_TYPES, Node, StructureEdge, StructureSnapshot, Surface
from traces.structure import StructureValue, TraceStructure

MIN_TEXTS = 3
"""With fewer texts, a text was changed, and is not filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStructure:
    """What traces show. `templates` are the texts that are filled in for each run, with `{…}` where they differ.

    `guessed` are the edges that texts and times suggest, and nothing else.
    """

    snapshot: StructureSnapshot
    templates: Mapping[str, str] = field(default_factory=dict)
    guessed: frozenset[tuple[str, str]] = frozenset()


def recover_structure(seen: TraceStructure) -> RecordedStructure:
    """The structure of an agent from what its traces show. A surface has its template, or the value that was read last.

    Raises SetupError if there was no trace.
    """
    if not seen.nodes:
        raise SetupError("there are no traces to learn from")
    nodes = tuple(Node(id=node.id, kind=node.kind) for node in seen.nodes)
    names = {node.id for node in nodes}
    templates, surfaces = {}, []
    for each in seen.surfaces:
        known = [value for value in each.values if value.value is not None]
        kind = next((name for name in SURFACE_TYPES if name == each.type), None)
        if not known or kind is None or each.node_id not in names:
            continue
        latest = max(known, key=lambda value: value.last_ns or 0)
        if each.template is not None and kind in TEXT_TYPES and _is_filled_in(known):
            templates[each.id] = each.template
        part, value = each.id.rpartition("#")[2].partition(".")[2], templates.get(each.id, latest.value)
        surfaces.append(Surface(node_id=each.node_id, type=kind, part=part, value=value, arguments=each.arguments))
    edges = {(edge.source, edge.target): edge for edge in seen.edges if edge.kind == "control"}
    return RecordedStructure(
        snapshot=StructureSnapshot(
            nodes=nodes,
            edges=tuple(StructureEdge(source=source, target=target) for source, target in edges),
            surfaces=tuple(surfaces),
        ),
        templates=templates,
        guessed=frozenset(pair for pair, edge in edges.items() if edge.is_guessed),
    )


def _is_filled_in(values: Sequence[StructureValue]) -> bool:
    """Whether texts are filled in for each run: only their figures differ, or they take turns."""
    return len(values) >= MIN_TEXTS and (_differ_in_figures(values) or _take_turns(values))


def _differ_in_figures(values: Sequence[StructureValue]) -> bool:
    """Dates and numbers change from run to run, and nothing else does."""
    return len({re.sub(r"\d+", "0", str(each.value)) for each in values}) * MIN_TEXTS <= len(values)


def _take_turns(values: Sequence[StructureValue]) -> bool:
    """Whether most texts were read again after another one, or in one run only. Versions follow one another."""
    spans = sorted((each.first_ns or 0, each.last_ns or 0) for each in values)
    again = sum(spans[at][1] > spans[at + 1][0] for at in range(len(spans) - 1))
    once = sum(each.traces == 1 for each in values)
    return again + once > len(spans) / 2
