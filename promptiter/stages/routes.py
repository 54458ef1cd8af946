"""Routes: the branches that a run did not take, and the steps whose output decided so.

The structure has the conditional edges, and the trace shows which of them were taken. So it is known after which step a
node could have run that did not, such as the only node with an expected tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from promptiter.evaluation.score import Finding
from promptiter.structure import StructureEdge, StructureSnapshot
from traces import ExecutionTrace, Step
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedRoute:
    """A branch that a run did not take: after `step`, on one of the routing `words`, `node_id` would have run.

    `taken` are the nodes that ran instead.
    """

    step: Step
    node_id: str
    words: tuple[str, ...]
    taken: tuple[str, ...]


class RouteMap:
    """The conditional edges of a structure, and what can be reached by them."""

    def __init__(self, structure: StructureSnapshot) -> None:
        self._leaving: dict[str, list[StructureEdge]] = {}
        self._branches: dict[str, dict[str, tuple[str, ...]]] = {}
        for edge in structure.edges:
            self._leaving.setdefault(edge.source, []).append(edge)
            if edge.condition is not None:
                branches = self._branches.setdefault(edge.source, {})
                branches[edge.target] = (*branches.get(edge.target, ()), edge.condition)
        self._owners: dict[str, list[str]] = {}
        for surface in structure.surfaces:
            if surface.type == "tool":
                self._owners.setdefault(surface.part, []).append(surface.node_id)

    def find_owners(self, tool: str) -> tuple[str, ...]:
        """The nodes that have a tool of this name."""
        return tuple(self._owners.get(tool, ()))

    def find_absent_owners(self, tools: Iterable[str], trace: ExecutionTrace) -> dict[str, tuple[str, ...]]:
        """The nodes that have each of these tools, of those tools that only nodes have which did not run."""
        owners = {tool: self.find_owners(tool) for tool in tools}
        return {tool: nodes for tool, nodes in owners.items() if nodes and not _has_run(trace, nodes)}

    def find_branches_with(self, tools: Iterable[str], node_id: str) -> tuple[str, ...]:
        """The branches of a node that lead to one that has any of these tools."""
        owners = [owner for tool in tools for owner in self.find_owners(tool)]
        return tuple(branch for branch in self.branches_of(node_id) if self.leads_to(branch, owners))

    def branches_of(self, node_id: str) -> Mapping[str, tuple[str, ...]]:
        """The nodes that an output of this node chooses from, each with the routing words that lead to it."""
        return self._branches.get(node_id, {})

    def list_taken(self, trace: ExecutionTrace) -> dict[str, tuple[str, ...]]:
        """For each step with branches, by its id, those that the run took after it."""
        followers: dict[str, list[str]] = {}
        for step in trace.steps if self._branches else ():
            if self.branches_of(step.node_id):
                followers[step.id] = []
            for source in step.predecessors:
                if source in followers:
                    followers[source].append(step.node_id)
        return {
            step.id: tuple(
                branch
                for branch in self.branches_of(step.node_id)
                if any(is_inside(follower, branch) for follower in followers[step.id])
            )
            for step in trace.steps
            if step.id in followers
        }

    def list_missed(self, trace: ExecutionTrace) -> tuple[MissedRoute, ...]:
        """The branches that the run did not take, in the order of the trace. A step that nothing follows has none."""
        chosen = self.list_taken(trace)
        return tuple(
            MissedRoute(step=step, node_id=node_id, words=words, taken=taken)
            for step in trace.steps
            if (taken := chosen.get(step.id, ()))
            for node_id, words in self.branches_of(step.node_id).items()
            if node_id not in taken
        )

    def find_ways(self, trace: ExecutionTrace, node_ids: Collection[str]) -> tuple[MissedRoute, ...]:
        """The branches to one of these nodes that the last step which could have led there did not choose.

        There are none if one of the nodes ran.
        """
        if not node_ids or _has_run(trace, node_ids):
            return ()
        ways = [route for route in self.list_missed(trace) if self.leads_to(route.node_id, node_ids)]
        return tuple(route for route in ways if route.step is ways[-1].step)

    def leads_to(self, node_id: str, node_ids: Collection[str]) -> bool:
        """Whether one of the nodes can run once this one does."""
        return any(is_inside(wanted, reached) for reached in self.reach(node_id) for wanted in node_ids)

    def reach(self, node_id: str) -> frozenset[str]:
        """The node and all that can run after it. The nodes inside of an agent that is a node are not listed."""
        reached = {node_id}
        waiting = [node_id]
        while waiting:
            for source in _list_enclosing(waiting.pop()):
                new = {edge.target for edge in self._leaving.get(source, ())} - reached
                reached |= new
                waiting += new
        return frozenset(reached)


def find_missing_tool(finding: Finding) -> str:
    """The tool whose call a finding misses; empty if it is about something else."""
    is_missing = finding.kind == "missing" and finding.predicate == "tool_call"
    return read_tool_name(finding.expected) if is_missing or finding.predicate == "tool_name" else ""


def read_tool_name(call: Json) -> str:
    """The name of a tool in a finding: of a call, or the name itself."""
    return str(call.get("name", "")) if isinstance(call, Mapping) else str(call or "")


def _has_run(trace: ExecutionTrace, node_ids: Collection[str]) -> bool:
    return any(is_inside(step.node_id, node_id) for step in trace.steps for node_id in node_ids)


def is_inside(node_id: str, other: str) -> bool:
    """Whether a node is another one, or inside of it."""
    return node_id == other or node_id.startswith(f"{other}/")


def _list_enclosing(node_id: str) -> list[str]:
    """The node, and the agents that it is in: `desk/plan/search`, `desk/plan` and `desk`."""
    parts = node_id.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
