"""The structure of an agent as its traces show it, and the versions of each text that they have seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from promptiter.errors import SetupError
from promptiter.structure import TEXT_TYPES, Node, StructureEdge, StructureSnapshot, Surface
from traces import ExecutionTrace
from traces.otel.recover.surfaces import SURFACES

MAX_VERSIONS = 0.5
"""A text with more versions than this share of the runs is filled in anew for each run: it has no versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceVersion:
    """A value of a surface that runs have read: how many runs, how many of them failed, and when."""

    digest: str
    runs: int
    failed: int
    first_ns: int
    last_ns: int


def recover_structure(traces: Iterable[ExecutionTrace]) -> StructureSnapshot:
    """The nodes, edges and surfaces that traces show. A surface has the value that was read last."""
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], StructureEdge] = {}
    surfaces: dict[str, Surface] = {}
    for trace in sorted(traces, key=lambda each: each.start_ns or 0):
        names = {step.id: step.node_id for step in trace.steps}
        for step in trace.steps:
            nodes.setdefault(step.node_id, Node(id=step.node_id, kind=step.kind))
            for source in step.followed:
                edges.setdefault(
                    (names[source], step.node_id), StructureEdge(source=names[source], target=step.node_id)
                )
        for surface_id, seen in (trace.attributes.get(SURFACES) or {}).items():
            node_id, _, slot = surface_id.rpartition("#")
            kind, _, part = slot.partition(".")
            surfaces[surface_id] = Surface(
                node_id=node_id, type=kind, part=part, value=seen["value"], arguments=seen.get("arguments") or {}
            )
    if not nodes:
        raise SetupError("there are no traces to learn from")
    kept = tuple(surfaces[each] for each in sorted(surfaces) if surfaces[each].node_id in nodes)
    return StructureSnapshot(nodes=tuple(nodes.values()), edges=tuple(edges.values()), surfaces=kept)


def count_versions(
    traces: Iterable[tuple[ExecutionTrace, bool]], structure: StructureSnapshot
) -> dict[str, tuple[SurfaceVersion, ...]]:
    """The versions of each text, the latest last; each trace comes with whether its run failed.

    A text that is filled in anew for most runs is left out.
    """
    texts = {surface.id for surface in structure.surfaces if surface.type in TEXT_TYPES}
    found: dict[str, dict[str, list[tuple[int, bool]]]] = {}
    for trace, has_failed in traces:
        reads = {pair for step in trace.steps for pair in (step.surface_reads or {}).items() if pair[0] in texts}
        for surface_id, digest in reads:
            found.setdefault(surface_id, {}).setdefault(digest, []).append((trace.start_ns or 0, has_failed))
    versions = {}
    for surface_id, by_digest in found.items():
        runs = sum(map(len, by_digest.values()))
        if len(by_digest) == 1 or len(by_digest) <= MAX_VERSIONS * runs:
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
            versions[surface_id] = tuple(sorted(listed, key=lambda each: (each.last_ns, each.first_ns, each.digest)))
    return versions


def is_current(trace: ExecutionTrace, versions: dict[str, tuple[SurfaceVersion, ...]]) -> bool:
    """Whether a run read the latest version of every text."""
    return all(
        versions[surface_id][-1].digest == digest
        for step in trace.steps
        for surface_id, digest in (step.surface_reads or {}).items()
        if surface_id in versions
    )
