"""The structure of an agent as its traces show it, and the versions of each text that they have seen.

A text may differ between runs because somebody changed it, which makes versions, or because it is filled in for each
run, with a date or the name of a customer. What is filled in is not part of the text: its template is.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from promptiter.errors import SetupError
from promptiter.structure import TEXT_TYPES, Node, StructureEdge, StructureSnapshot, Surface
from traces import ExecutionTrace
from traces.model import Json
from traces.otel.recover.surfaces import SURFACES
from traces.structure import merge_template

MOST_TEXTS = 50
"""Texts of a surface that are compared to find its template."""

MIN_TEXTS = 3
"""With fewer texts, a text was changed, and is not filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceVersion:
    """A value of a surface that runs have read: how many runs, how many of them failed, and when."""

    digest: str
    runs: int
    failed: int
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Texts:
    """The values that runs have read of one text: when each was first and last read, and some of them."""

    times: dict[str, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def add(self, digest: str, value: str, at_ns: int) -> None:
        first, last = self.times.get(digest, (at_ns, at_ns))
        self.times[digest] = min(first, at_ns), max(last, at_ns)
        if len(self.values) < MOST_TEXTS:
            self.values.setdefault(digest, value)

    def find_template(self) -> str | None:
        """What the texts share, if they are filled in for each run: their figures differ, or they take turns."""
        if len(self.times) < MIN_TEXTS or not (self._differ_in_figures() or self._take_turns()):
            return None
        first, *others = self.values.values()
        template: str | None = first
        for text in others:
            template = template and merge_template(template, text)
        return template

    def _differ_in_figures(self) -> bool:
        """Dates and numbers change from run to run, and nothing else does."""
        return len({re.sub(r"\d+", "0", text) for text in self.values.values()}) * MIN_TEXTS <= len(self.values)

    def _take_turns(self) -> bool:
        """Whether most texts were read again after another one, or only once. Versions follow one another."""
        spans = sorted(self.times.values())
        again = sum(spans[at][1] > spans[at + 1][0] for at in range(len(spans) - 1))
        once = sum(first == last for first, last in spans)
        return again + once > len(spans) / 2


class StructureReader:
    """Reads the structure from traces, one after the other. A surface has the value that was read last."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str], StructureEdge] = {}
        self._latest: dict[str, tuple[int, Mapping[str, Json]]] = {}
        self._texts: dict[str, _Texts] = {}

    def add(self, trace: ExecutionTrace) -> None:
        names = {step.id: step.node_id for step in trace.steps}
        at_ns = trace.start_ns or 0
        reads: dict[str, str] = {}
        for step in trace.steps:
            self._nodes.setdefault(step.node_id, Node(id=step.node_id, kind=step.kind))
            reads |= step.surface_reads or {}
            for source in step.followed:
                pair = names[source], step.node_id
                self._edges.setdefault(pair, StructureEdge(source=pair[0], target=pair[1]))
        for surface_id, seen in (trace.attributes.get(SURFACES) or {}).items():
            if surface_id not in self._latest or self._latest[surface_id][0] <= at_ns:
                self._latest[surface_id] = at_ns, seen
            if isinstance(seen["value"], str) and surface_id in reads:
                self._texts.setdefault(surface_id, _Texts()).add(reads[surface_id], seen["value"], at_ns)

    def finish(self) -> RecordedStructure:
        """What was read. Raises SetupError if there was no trace."""
        if not self._nodes:
            raise SetupError("there are no traces to learn from")
        templates, surfaces = {}, []
        for surface_id in sorted(self._latest):
            node_id, _, slot = surface_id.rpartition("#")
            kind, _, part = slot.partition(".")
            _, seen = self._latest[surface_id]
            template = self._texts[surface_id].find_template() if surface_id in self._texts else None
            if template is not None and kind in TEXT_TYPES:
                templates[surface_id] = template
            value, arguments = templates.get(surface_id, seen["value"]), seen.get("arguments") or {}
            if node_id in self._nodes:
                surfaces.append(
                    Surface(node_id=node_id, type=seen["type"], part=part, value=value, arguments=arguments)
                )
        snapshot = StructureSnapshot(
            nodes=tuple(self._nodes.values()), edges=tuple(self._edges.values()), surfaces=tuple(surfaces)
        )
        return RecordedStructure(snapshot=snapshot, templates=templates)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStructure:
    """What traces show. `templates` are the texts that are filled in for each run, with `{…}` where they differ."""

    snapshot: StructureSnapshot
    templates: Mapping[str, str] = field(default_factory=dict)


def recover_structure(traces: Iterable[ExecutionTrace]) -> RecordedStructure:
    """The nodes, edges and surfaces that traces show."""
    reader = StructureReader()
    for trace in traces:
        reader.add(trace)
    return reader.finish()


def count_versions(
    traces: Iterable[tuple[ExecutionTrace, bool]], structure: StructureSnapshot
) -> dict[str, tuple[SurfaceVersion, ...]]:
    """The versions of each text, the latest last; each trace comes with whether its run failed."""
    texts = {surface.id for surface in structure.surfaces if surface.type in TEXT_TYPES}
    found: dict[str, dict[str, list[tuple[int, bool]]]] = {}
    for trace, has_failed in traces:
        reads = {pair for step in trace.steps for pair in (step.surface_reads or {}).items() if pair[0] in texts}
        for surface_id, digest in reads:
            found.setdefault(surface_id, {}).setdefault(digest, []).append((trace.start_ns or 0, has_failed))
    versions = {}
    for surface_id, by_digest in found.items():
        listed = [
            SurfaceVersion(
                digest=digest,
                runs=len(seen),
                failed=sum(failed for _, failed in seen),
                first_ns=min(seen)[0],
                last_ns=max(seen)[0],
            )
            for digest, seen in by_digest.items()
        ]
        versions[surface_id] = tuple(sorted(listed, key=lambda each: (each.first_ns, each.last_ns, each.digest)))
    return versions


def list_given_up(versions: Mapping[str, tuple[SurfaceVersion, ...]]) -> frozenset[tuple[str, str]]:
    """The surface id and digest of versions that were not read any more since the latest came."""
    return frozenset(
        (surface_id, version.digest)
        for surface_id, listed in versions.items()
        for version in listed
        if version.last_ns < listed[-1].first_ns
    )


def has_read(trace: ExecutionTrace, versions: Container[tuple[str, str]]) -> bool:
    """Whether a run read one of these versions."""
    return any(pair in versions for step in trace.steps for pair in (step.surface_reads or {}).items())
