"""One run of a graph: tokens travel along the edges. Once there are several, each node they reach runs in its own task.

A join waits for one token from each of its sources. A token carries the outputs of the nodes on its path, so what a
node sees depends on the graph and never on timing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from promptiter.agents.base import SUBSTITUTED, CaseInput, RunContext, check_data, copy_value, to_text
from promptiter.agents.edges import AnyEdge, Choice, Edge, FanOut, Join, group_by_source
from promptiter.agents.node_context import NodeContext, Visit
from promptiter.agents.nodes import GraphNode
from promptiter.agents.step_calls import StepCalls, current_calls
from promptiter.errors import FATAL_ERRORS, AgentError, PromptiterError
from promptiter.structure import NodeKind, Surface, child_ids
from promptiter.wording import shorten
from traces import step
from traces.model import Json

AnyNode: TypeAlias = "GraphNode | Graph"


class Graph(ABC):
    """What a flow needs of a graph agent."""

    name: str
    nodes: tuple[AnyNode, ...]
    edges: tuple[AnyEdge, ...]
    entry: str
    max_visits: int
    kind: NodeKind

    @property
    @abstractmethod
    def final_nodes(self) -> tuple[str, ...]:
        """The nodes one of which has the answer: that named by `output`, or all that no edge leaves."""

    @abstractmethod
    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        """The surfaces of all its nodes, below its own id, for use as a node of another agent."""


async def run_graph(
    graph: Graph, case: CaseInput, context: RunContext, *, prefix: str = "", after: tuple[str, ...] = ()
) -> Json:
    """Run a graph inside the active recording, and return its answer. `prefix` is the id of a nested graph's node."""
    flow = _Flow(graph, case, context, prefix)
    await flow.run(after)
    return flow.get_output()


class _Token(NamedTuple):
    """A path through the graph: the steps it came from, and the last visit of each node."""

    steps: tuple[str, ...]
    visits: Mapping[str, Visit]
    predecessors: tuple[str, ...]


class _Arrival(NamedTuple):
    """A token that reaches a node, and the items of a fan-out before it."""

    name: str
    token: _Token
    items: Sequence[Json] | None = None


class _Flow:
    """One run of a graph: the tokens waiting at joins, and the outputs so far."""

    def __init__(self, graph: Graph, case: CaseInput, context: RunContext, prefix: str) -> None:
        self.graph = graph
        self.case = case
        self.context = context
        ids = child_ids((node.name for node in graph.nodes), parent=prefix)
        self.nodes = {node.name: (node, node_id) for node, node_id in zip(graph.nodes, ids, strict=True)}
        self.waiting: dict[int, dict[str, deque[_Token]]] = {}
        self.last: dict[str, Visit] = {}
        self.order = {node.name: number for number, node in enumerate(graph.nodes)}
        self.names = tuple(self.order)
        self.leaving = group_by_source(graph.edges)
        self.failures: list[tuple[int, int, Exception]] = []
        self.group: asyncio.TaskGroup | None = None
        self.arrivals: list[_Arrival] = []

    async def run(self, after: tuple[str, ...]) -> None:
        """Run until no token is left. As long as there is only one, it needs no task."""
        await self._arrive(_Arrival(self.graph.entry, _Token(after, {}, ())))
        while len(self.arrivals) == 1:
            await asyncio.sleep(0)  # other runs go on, and a deadline ends this one
            await self._arrive(self.arrivals.pop())
        if not self.arrivals:
            return
        try:
            async with asyncio.TaskGroup() as self.group:
                for arrival in self.arrivals:
                    self.group.create_task(self._arrive(arrival))
        except BaseExceptionGroup as errors:
            raise _find_cause(errors) from errors

    def get_output(self) -> Json:
        """The output of the run. Raises the error of the failed node that comes first in the graph."""
        if self.failures:
            raise min(self.failures, key=lambda failure: failure[:2])[2]
        finals = self.graph.final_nodes
        answers = [name for name in finals if name in self.last]
        if len(answers) > 1:
            raise AgentError(
                f"the run of {self.graph.name!r} ended in several final nodes, {' and '.join(map(repr, answers))}; "
                "join them, or name the node with the answer: output=..."
            )
        if not answers:
            waits = [
                edge
                for number, edge in enumerate(self.graph.edges)
                if isinstance(edge, Join) and any(self.waiting.get(number, {}).values())
            ]
            joins = "".join(f"; the join before {join.target!r} is still waiting" for join in waits)
            wanted = " or ".join(map(repr, finals))
            raise AgentError(f"the run of {self.graph.name!r} ended before node {wanted} had run{joins}")
        return self.last[answers[0]].output

    def _send(self, name: str, token: _Token, items: Sequence[Json] | None = None) -> None:
        arrival = _Arrival(name, token, items)
        if self.group is None:
            self.arrivals.append(arrival)
        else:
            self.group.create_task(self._arrive(arrival))

    async def _arrive(self, arrival: _Arrival) -> None:
        """Run a node and send its token on. An error ends this path only, so that timing has no influence."""
        name, token, items = arrival
        visit = token.visits[name].number + 1 if name in token.visits else 1
        try:
            token = await self._visit(name, token, visit, items)
            self._leave(name, token)
        except FATAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - raised when all paths have ended
            self.failures.append((self.order[name], visit, error))

    async def _visit(self, name: str, token: _Token, visit: int, items: Sequence[Json] | None) -> _Token:
        if visit > self.graph.max_visits:
            raise AgentError(
                f"node {name!r} was reached more than {self.graph.max_visits} times, probably in an endless loop; "
                "fix the condition of the loop, or raise max_visits"
            )
        node_context = self._build_context(token)
        if items is None:
            step_id, output = await self._execute(name, token, node_context, index=None)
            steps: tuple[str, ...] = (step_id,)
        else:
            done = await asyncio.gather(
                *(
                    self._execute(name, token, replace(node_context, item=item), index=index)
                    for index, item in enumerate(items)
                ),
                return_exceptions=True,
            )
            if error := next((each for each in done if isinstance(each, BaseException)), None):
                raise next((each for each in done if isinstance(each, FATAL_ERRORS)), error)
            finished = [each for each in done if not isinstance(each, BaseException)]
            steps, output = tuple(step_id for step_id, _ in finished) or token.steps, [value for _, value in finished]
        done_visit = Visit(visit, output, steps)
        if name not in self.last or visit >= self.last[name].number:
            self.last[name] = done_visit
        return _Token(steps, {**token.visits, name: done_visit}, (name,))

    async def _execute(
        self, name: str, token: _Token, node_context: NodeContext, *, index: int | None
    ) -> tuple[str, Json]:
        node, node_id = self.nodes[name]
        with step(node_id, kind=node.kind, after=token.steps, index=index) as opened:
            given = self.context.substitute_for(opened.id)
            if given is not None:
                opened.input, opened.output = node_context.incoming, copy_value(given.output)
                opened.attributes[SUBSTITUTED] = True
            elif isinstance(node, Graph):
                opened.input = to_text(node_context.incoming)
                case = replace(self.case, text=opened.input, history=())
                opened.output = await run_graph(node, case, self.context, prefix=node_id, after=token.steps)
            else:
                is_live = not opened.scope.recording.keeps_steps
                calls = StepCalls(opened, self.context, is_live=is_live, outer=current_calls.get(None))
                before = current_calls.set(calls)
                try:
                    output = await node.run(node_context, calls)
                finally:
                    current_calls.reset(before)
                check_data(output, name=node_id, allows_bytes=True)
                opened.output = output
            return opened.id, opened.output

    def _leave(self, name: str, token: _Token) -> None:
        """Send a token along all edges that leave a node."""
        for number, edge in self.leaving.get(name, ()):
            match edge:
                case Edge(target=target):
                    self._send(target, token)
                case FanOut(target=target, items=items):
                    found = items(self._build_context(token).track_reads()[0])
                    if not isinstance(found, list | tuple):
                        raise AgentError(
                            f"the fan-out after {name!r} got {shorten(found)}; its items must be a list: return one "
                            "from the node, or make one with items=..."
                        )
                    self._send(target, token, found)
                case Choice(route=route, branches=branches):
                    key = route(self._build_context(token).track_reads()[0])
                    if key is not None and key not in branches:
                        raise AgentError(
                            f"the route after {name!r} returned {key!r}, not one of its branches "
                            f"({', '.join(branches)}); choose a branch for other outputs too, or return None"
                        )
                    if key is not None:
                        self._send(branches[key], token)
                case Join():
                    self._wait(number, edge, name, token)

    def _build_context(self, token: _Token) -> NodeContext:
        return NodeContext(
            case=self.case,
            outputs={name: visit.output for name, visit in token.visits.items()},
            predecessors=token.predecessors,
            node_names=self.names,
            _visits=token.visits,
            _triggers=token.steps,
        )

    def _wait(self, number: int, join: Join, name: str, token: _Token) -> None:
        arrived = self.waiting.setdefault(number, {source: deque() for source in join.sources})
        arrived[name].append(token)
        if all(arrived.values()):
            self._send(join.target, _merge_tokens([arrived[source].popleft() for source in join.sources], join.sources))


def _merge_tokens(tokens: Sequence[_Token], sources: tuple[str, ...]) -> _Token:
    """Merge the tokens of a join: of each node the latest visit, on a tie that of the first source."""
    visits: dict[str, Visit] = {}
    for token in tokens:
        for name, visit in token.visits.items():
            if name not in visits or visit.number > visits[name].number:
                visits[name] = visit
    return _Token(tuple(each for token in tokens for each in token.steps), visits, sources)


def _find_cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The most telling error of a group: one of promptiter's own, otherwise the first."""
    causes: list[BaseException] = []
    waiting: list[BaseException] = [errors]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions)
        else:
            causes.append(error)
    return next((error for error in causes if isinstance(error, PromptiterError)), causes[0])
