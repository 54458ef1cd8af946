"""A trace as a networkx DiGraph, and common questions about it.

Every query is linear in steps and edges (for loops: times the number of nodes in the loop). Nothing recurses, so a
chain of 100,000 steps works as well as one of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import networkx as nx

from traces.errors import UnknownStepError

if TYPE_CHECKING:
    from traces.model import ExecutionTrace, Step


@dataclass(frozen=True, slots=True)
class Loop:
    """Nodes that ran in a loop; the trace has the loop unrolled."""

    node_ids: tuple[str, ...]
    iterations: int


class TraceGraph:
    """A trace with its edges indexed. All methods return steps in the canonical order of the trace."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.trace = trace
        self._position = {step.id: index for index, step in enumerate(trace.steps)}
        self.digraph: nx.DiGraph[str] = nx.DiGraph()
        self.digraph.add_nodes_from((step.id, {"step": step}) for step in trace.steps)
        self.digraph.add_edges_from((source, step.id) for step in trace.steps for source in step.predecessors)
        for step in trace.steps:
            for edge in step.edges:
                self.digraph.edges[edge.source, step.id][edge.kind] = edge

    def step(self, step_id: str) -> Step:
        if step_id not in self._position:
            raise UnknownStepError(step_id, known=self._position)
        return self.trace.steps[self._position[step_id]]

    def predecessors(self, step_id: str) -> tuple[Step, ...]:
        """The steps whose results this one used."""
        return self._sort(self.step(step_id).predecessors)

    def successors(self, step_id: str) -> tuple[Step, ...]:
        """The steps that used this one's result."""
        return self._sort(self.digraph.successors(self.step(step_id).id))

    @property
    def roots(self) -> tuple[Step, ...]:
        """The steps without predecessors."""
        return tuple(step for step in self.trace.steps if not step.predecessors)

    @property
    def terminals(self) -> tuple[Step, ...]:
        """The steps without successors: what the run ended with."""
        return self.trace.terminals

    @property
    def fan_outs(self) -> tuple[Step, ...]:
        """The steps with several successors."""
        return tuple(step for step in self.trace.steps if len(self.digraph.succ[step.id]) > 1)

    @property
    def joins(self) -> tuple[Step, ...]:
        """The steps with several predecessors."""
        return tuple(step for step in self.trace.steps if len(step.predecessors) > 1)

    def ancestors(self, step_id: str) -> tuple[Step, ...]:
        """All steps that this one depends on."""
        return self._sort(nx.ancestors(self.digraph, self.step(step_id).id))

    def descendants(self, step_id: str) -> tuple[Step, ...]:
        """All steps that depend on this one."""
        return self._sort(nx.descendants(self.digraph, self.step(step_id).id))

    @cached_property
    def layers(self) -> dict[str, int]:
        """The length of the longest path from a root to each step."""
        layers: dict[str, int] = {}
        for step in self.trace.steps:
            layers[step.id] = 1 + max((layers[source] for source in step.predecessors), default=-1)
        return layers

    def visits(self, node_id: str) -> tuple[Step, ...]:
        """The steps of one node."""
        return tuple(step for step in self.trace.steps if step.node_id == node_id)

    def reverse_ready_order(self) -> Iterator[tuple[Step, ...]]:
        """Yield waves of steps from the end to the start: a step is in the first wave after all its successors."""
        for wave in nx.topological_generations(self.digraph.reverse(copy=False)):
            yield self._sort(wave)

    def critical_path(self) -> tuple[Step, ...]:
        """The path through the trace that took longest.

        Only the time after its predecessor ended counts for a step, so a step around others counts only its own work.
        """
        busy: dict[str, int] = {}
        before: dict[str, Step | None] = {}
        steps = {step.id: step for step in self.trace.steps}
        for step in self.trace.steps:
            busy[step.id], before[step.id] = step.duration_ns or 0, None
            for source in step.predecessors:
                total = busy[source] + measure_time_after(steps[source], step)
                if before[step.id] is None or total > busy[step.id]:
                    busy[step.id], before[step.id] = total, steps[source]
        return _walk_back(max(self.trace.steps, key=lambda step: busy[step.id]), before)

    def failing_path(self) -> tuple[Step, ...]:
        """The path from a root to the step that failed first, through the predecessors that finished last.

        Empty if the run completed: errors that were handled do not count. A cancelled step is usually a consequence of
        another failure, so it counts only if nothing else failed.
        """
        errors = [(step, step.error) for step in self.trace.steps if step.error]
        if not errors or self.trace.status == "completed":
            return ()
        failed, _ = min(errors, key=lambda pair: (pair[1].is_cancellation, pair[0].end_ns or 0))
        before: dict[str, Step | None] = {}
        step: Step | None = failed
        while step is not None:
            latest = max(self.predecessors(step.id), key=lambda source: source.end_ns or 0, default=None)
            before[step.id] = latest
            step = latest
        return _walk_back(failed, before)

    def unrolled_loops(self) -> tuple[Loop, ...]:
        """The loops of the run: nodes that ran again downstream of themselves, and how often."""
        by_node: nx.DiGraph[str] = nx.DiGraph()
        by_node.add_nodes_from(step.node_id for step in self.trace.steps)
        for source, target in self.digraph.edges:
            by_node.add_edge(self.step(source).node_id, self.step(target).node_id)
        component_of = {
            node_id: number
            for number, nodes in enumerate(nx.strongly_connected_components(by_node))
            for node_id in nodes
        }
        members: dict[int, list[Step]] = {}
        for step in self.trace.steps:
            members.setdefault(component_of[step.node_id], []).append(step)
        loops = (_find_loop(steps) for steps in members.values())
        return tuple(loop for loop in loops if loop)

    def _sort(self, step_ids: Iterable[str]) -> tuple[Step, ...]:
        return tuple(self.step(step_id) for step_id in sorted(step_ids, key=self._position.__getitem__))


def _find_loop(steps: Sequence[Step]) -> Loop | None:
    """Find the loop among steps of nodes that all reach each other, if there is one."""
    visits = Counter(step.node_id for step in steps)
    iterations = {node_id: _count_visits_on_a_path(node_id, steps) for node_id, count in visits.items() if count > 1}
    repeated = tuple(node_id for node_id, times in iterations.items() if times > 1)
    return Loop(repeated, max(iterations[node_id] for node_id in repeated)) if repeated else None


def _count_visits_on_a_path(node_id: str, steps: Sequence[Step]) -> int:
    """Count the executions of a node on the path that has most of them."""
    count: dict[str, int] = {}
    for step in steps:
        upstream = max((count.get(source, 0) for source in step.predecessors), default=0)
        count[step.id] = upstream + (step.node_id == node_id)
    return max(count.values())


def measure_time_after(source: Step, step: Step) -> int:
    """Measure how long a step ran after a predecessor had ended, in nanoseconds."""
    if step.start_ns is None or step.end_ns is None:
        return 0
    return max(0, step.end_ns - max(step.start_ns, source.end_ns or 0))


def _walk_back(step: Step, before: dict[str, Step | None]) -> tuple[Step, ...]:
    path: list[Step] = []
    at: Step | None = step
    while at is not None:
        path.append(at)
        at = before[at.id]
    return tuple(reversed(path))
