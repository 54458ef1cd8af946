"""Which surfaces each node of a run read. This decides whether a patch can change the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace

Reads: TypeAlias = Mapping[str, tuple[str, ...] | None]
"""The surfaces that each node read; None: unknown, so it may have read everything."""


def collect_reads(traces: Iterable[ExecutionTrace | None]) -> Reads | None:
    """The reads of the turns of a conversation; None, which is unknown, if a turn has no trace."""
    found: dict[str, set[str] | None] = {}
    for trace in traces:
        if trace is None:
            return None
        for step in trace.steps:
            known = found.setdefault(step.node_id, set())
            if step.surface_reads is None:
                found[step.node_id] = None
            elif known is not None:
                known.update(step.surface_reads)
    return {node: None if read is None else tuple(sorted(read)) for node, read in sorted(found.items())}


def share_reads(reads: Reads | None) -> Reads | None:
    """Reads that are equal, as one object in memory: most runs of an agent read the same surfaces."""
    return None if reads is None else _share(tuple(reads.items()))


@lru_cache(maxsize=64)
def _share(items: tuple[tuple[str, tuple[str, ...] | None], ...]) -> Reads:
    return dict(items)


def merge_reads(one: Reads | None, other: Reads | None) -> Reads | None:
    """What either run read, for each node."""
    if one is other or not one or other is None:
        return None if one is None else other
    found = dict(one)
    for node, read in other.items():
        known = found.get(node, ())
        found[node] = None if known is None or read is None else tuple(sorted({*known, *read}))
    return share_reads(found)


def find_unread(surface_ids: Iterable[str], runs: Iterable[Reads | None]) -> frozenset[str]:
    """The surfaces that no run has read. A run with unknown reads may have read all of them."""
    left = frozenset(surface_ids)
    for reads in runs:
        if reads is None or None in reads.values():
            return frozenset()
        if left:
            left = left.difference(*(read for read in reads.values() if read is not None))
    return left


def find_shared_prompts(
    structure: StructureSnapshot, targets: Collection[str], runs: Iterable[Reads | None]
) -> tuple[str, ...]:
    """The instructions that one node of the structure read in the same run, if it read several; empty otherwise.

    Steps that a function opens around its prompts are not nodes of the structure.
    """
    prompts = {surface.id for surface in structure.surfaces if surface.type == "instruction"}.intersection(targets)
    nodes = [node.id for node in structure.nodes]
    for reads in runs:
        for node in nodes:
            shared = prompts.intersection((reads or {}).get(node) or ())
            if len(shared) > 1:
                return tuple(sorted(shared))
    return ()


def may_touch(reads: Reads | None, surface_ids: Collection[str], *, unsure: Collection[str] = ()) -> bool:
    """Whether changing these surfaces may change the run. The reads of `unsure` nodes count as unknown."""
    if reads is None:
        return True
    changed = frozenset(surface_ids)
    return any(read is None or node in unsure or not changed.isdisjoint(read) for node, read in reads.items())
