"""Which surfaces a run read, node by node: what decides whether a patch can change anything about a case."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from traces import ExecutionTrace

Reads: TypeAlias = Mapping[str, tuple[str, ...] | None]
"""Of each node that ran, the surfaces that it read; None: nobody knows, so it may have read everything."""


def collect_reads(traces: Iterable[ExecutionTrace | None]) -> Reads | None:
    """What the runs of a conversation's turns read. None: one of them left no trace, so nobody knows."""
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


def merge_reads(one: Reads | None, other: Reads | None) -> Reads | None:
    """What either run read, node by node."""
    if one is None or other is None:
        return None
    found = dict(one)
    for node, read in other.items():
        known = found.get(node, ())
        found[node] = None if known is None or read is None else tuple(sorted({*known, *read}))
    return found


def find_unread(surface_ids: Iterable[str], runs: Iterable[Reads | None]) -> frozenset[str]:
    """Those surfaces that no run has read. A run of which nobody knows what it read may have read them all."""
    left = frozenset(surface_ids)
    for reads in runs:
        left = frozenset(each for each in left if not may_touch(reads, (each,)))
    return left


def may_touch(reads: Reads | None, surface_ids: Collection[str], *, unsure: Collection[str] = ()) -> bool:
    """Whether a change of these surfaces may change such a run. What nodes that are `unsure` read, nobody knows."""
    if reads is None:
        return True
    return any(read is None or node in unsure or not set(surface_ids).isdisjoint(read) for node, read in reads.items())
