"""Statistics over many traces, computed in one pass that keeps durations and counts but no traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import quantiles

from traces.graph import TraceGraph
from traces.model import ExecutionTrace, Usage, sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """Statistics of one node over all its steps. Times are in seconds; None if none were recorded."""

    node_id: str
    kind: str
    visits: int
    errors: int
    median_s: float | None
    p95_s: float | None
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """Statistics of a set of traces; nodes are in the order in which they first ran."""

    traces: int
    by_status: dict[str, int]
    steps: int
    longest_trace_steps: int
    traces_with_loops: int
    median_s: float | None
    p95_s: float | None
    usage: Usage
    errors: dict[str, int]
    nodes: tuple[NodeStatistics, ...]


@dataclass(slots=True)
class _Node:
    kind: str
    visits: int = 0
    errors: int = 0
    durations_ns: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


def compute_statistics(traces: Iterable[ExecutionTrace]) -> TraceStatistics:
    """Compute the statistics of traces, which may be a stream."""
    by_status: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    durations_ns: list[int] = []
    nodes: dict[str, _Node] = {}
    steps = longest = looping = 0
    for trace in traces:
        by_status[trace.status] += 1
        steps += len(trace.steps)
        longest = max(longest, len(trace.steps))
        looping += bool(TraceGraph(trace).unrolled_loops())
        if trace.duration_ns is not None:
            durations_ns.append(trace.duration_ns)
        for step in trace.steps:
            node = nodes.setdefault(step.node_id, _Node(step.kind))
            node.visits += 1
            if step.usage:
                node.usage = sum_usage((node.usage, step.usage))
            if step.duration_ns is not None:
                node.durations_ns.append(step.duration_ns)
            if step.error:
                node.errors += 1
                errors[step.error.type] += 1
    return TraceStatistics(
        traces=by_status.total(),
        by_status=dict(sorted(by_status.items())),
        steps=steps,
        longest_trace_steps=longest,
        traces_with_loops=looping,
        median_s=_compute_quantile(durations_ns, 50),
        p95_s=_compute_quantile(durations_ns, 95),
        usage=sum_usage(node.usage for node in nodes.values()),
        errors=dict(errors.most_common()),
        nodes=tuple(
            NodeStatistics(
                node_id=node_id,
                kind=node.kind,
                visits=node.visits,
                errors=node.errors,
                median_s=_compute_quantile(node.durations_ns, 50),
                p95_s=_compute_quantile(node.durations_ns, 95),
                usage=node.usage,
            )
            for node_id, node in nodes.items()
        ),
    )


def _compute_quantile(nanoseconds: list[int], percent: int) -> float | None:
    if not nanoseconds:
        return None
    if len(nanoseconds) == 1:
        return nanoseconds[0] / 1e9
    return quantiles(nanoseconds, n=100, method="inclusive")[percent - 1] / 1e9
