"""The built-in graph runtime: nodes, and edges that are plain, conditional, joins or fan-outs; loops, nested agents.

Tokens run along the edges. A node runs when a token reaches it, at once and in a task of its own; a join waits for one
token from each of its sources. A token carries the outputs of the nodes on its way, so what a node sees depends on the
graph and never on timing. Running it records the trace, under the profile that it was given.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from promptiter.agents.base import SUBSTITUTED, AgentRun, CaseInput, RunContext
from promptiter.agents.nodes import Calls, FunctionNode, GraphNode, View, as_text, check_parameters, copied, running
from promptiter.errors import AgentError, BudgetEndedError, PromptiterError, SetupError, UnexpectedCallError
from promptiter.profile import Profile
from promptiter.structure import Node, NodeKind, StructureEdge, StructureSnapshot, Surface, child_ids
from traces import ExecutionTrace, Failure, OpenStep, Recording, record, step
from traces.model import Json, sum_usage


@dataclass(frozen=True, slots=True)
class Edge:
    """When the source has run, the target runs."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Choice:
    """When the source has run, the target whose word the route gives runs; None ends the way there."""

    source: str
    route: Callable[[View], str | None]
    targets: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Join:
    """When all sources have run, the target runs once and sees the outputs of all."""

    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class FanOut:
    """When the source has run, the target runs once per item, in parallel; its edges follow when all are done."""

    source: str
    target: str
    items: Callable[[View], Sequence[Json]] = lambda view: list(view.incoming)


_ENDS_EVERYTHING = (BudgetEndedError, UnexpectedCallError, SetupError)
"""Errors that are not one case's: they end the evaluation."""

AnyEdge: TypeAlias = Edge | Choice | Join | FanOut
AnyNode: TypeAlias = "GraphNode | GraphAgent"


@dataclass(frozen=True, slots=True)
class _Token:
    """A way through the graph: the steps it just came from, and per node the last output on it with its visit."""

    steps: tuple[str, ...] = ()
    outputs: Mapping[str, tuple[int, Json]] = field(default_factory=dict)
    followed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphAgent:
    """An agent as a graph. `output` names the node whose last output is the answer; by default the only final node."""

    name: str
    nodes: tuple[AnyNode, ...]
    edges: tuple[AnyEdge, ...] = ()
    entry: str = ""
    output: str = ""
    max_visits: int = 25
    kind: NodeKind = "agent"

    def __post_init__(self) -> None:
        _check(self)

    def describe(self) -> StructureSnapshot:
        return self._snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Run once. What a node raises is the run's error; what ends a whole evaluation is raised: a spent budget, …"""
        context = context or RunContext()
        snapshot = self.describe()
        profile.check(snapshot)
        recording = record(
            f"{context.case_id or 'run'}~{context.repeat}~{profile.digest[:12]}"
            + (f"~{context.turn}" * bool(context.turn)),
            resolve=lambda surface_id: copied(profile.value(surface_id, snapshot)),
            conversation_id=context.case_id or None,
        )
        started = time.perf_counter()
        output, error = await self._recorded(recording, case, context)
        trace = _trace_of(recording)
        return AgentRun(
            output="" if error else as_text(output),
            data=None if error or isinstance(output, str) else output,
            trace=trace,
            usage=sum_usage(each.usage for each in trace.steps) if trace else sum_usage(()),
            error=error,
            duration_s=time.perf_counter() - started,
        )

    async def _recorded(
        self, recording: Recording, case: CaseInput, context: RunContext
    ) -> tuple[Json, Failure | None]:
        limit = asyncio.timeout(context.deadline_s)
        try:
            with recording:
                async with limit:
                    return await self._flow(case, context, prefix="", after=()), None
        except _ENDS_EVERYTHING:
            raise
        except Exception as error:  # noqa: BLE001 - a failing case is a result, whatever its agent raised
            if limit.expired():
                return None, Failure("TimeoutError", f"no answer in {context.deadline_s} s")
            return None, Failure(type(error).__name__, str(error))

    def can_substitute(self, node_id: str) -> bool:
        """Every node of the graph and of the graphs inside; not what a function records inside itself."""
        return any(node.id == node_id for node in self.describe().nodes)

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        """As a node of another agent: all surfaces inside, below its own id."""
        ids = child_ids((node.name for node in self.nodes), parent=node_id)
        return tuple(surface for node, inner in zip(self.nodes, ids, strict=True) for surface in node.surfaces(inner))

    @cached_property
    def _snapshot(self) -> StructureSnapshot:
        nodes, edges, surfaces = _structure(self, "")
        return StructureSnapshot(nodes=nodes, edges=edges, surfaces=surfaces, entry=self.entry, name=self.name)

    async def _flow(self, case: CaseInput, context: RunContext, *, prefix: str, after: tuple[str, ...]) -> Json:
        flow = _Flow(self, case, context, prefix)
        try:
            async with asyncio.TaskGroup() as group:
                flow.start(group, after)
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        return flow.answer()


class _Flow:
    """One run of a graph: the tokens that wait at joins, and the outputs so far."""

    def __init__(self, agent: GraphAgent, case: CaseInput, context: RunContext, prefix: str) -> None:
        self.agent = agent
        self.case = case
        self.context = context
        ids = child_ids((node.name for node in agent.nodes), parent=prefix)
        self.nodes = {node.name: (node, node_id) for node, node_id in zip(agent.nodes, ids, strict=True)}
        self.waiting: dict[int, dict[str, deque[_Token]]] = {}
        self.last: dict[str, tuple[int, Json]] = {}
        self.order = {node.name: number for number, node in enumerate(agent.nodes)}
        self.failures: list[tuple[int, int, Exception]] = []

    def start(self, group: asyncio.TaskGroup, after: tuple[str, ...]) -> None:
        self.group = group
        self._spawn(self.agent.entry, _Token(steps=after))

    def answer(self) -> Json:
        """The output of the run, or the error of the failed node that comes first in the graph."""
        if self.failures:
            raise min(self.failures, key=lambda failure: failure[:2])[2]
        output = self.agent.output
        if output not in self.last:
            waits = [join for number, join in enumerate(self.agent.edges) if any(self.waiting.get(number, {}).values())]
            told = "".join(f"; the join before {join.target!r} still waits" for join in waits if isinstance(join, Join))
            raise AgentError(f"the run of {self.agent.name!r} ended before node {output!r} had run{told}")
        return self.last[output][1]

    def _spawn(self, name: str, token: _Token, items: Sequence[Json] | None = None) -> None:
        self.group.create_task(self._arrive(name, token, items))

    async def _arrive(self, name: str, token: _Token, items: Sequence[Json] | None) -> None:
        """Run a node and send its token on. What it raises ends this way only, so that timing decides nothing."""
        visit = token.outputs.get(name, (0, None))[0] + 1
        try:
            token = await self._visit(name, token, visit, items)
            self._leave(name, token)
        except _ENDS_EVERYTHING:
            raise
        except Exception as error:  # noqa: BLE001 - told when everything has come to its end
            self.failures.append((self.order[name], visit, error))

    async def _visit(self, name: str, token: _Token, visit: int, items: Sequence[Json] | None) -> _Token:
        if visit > self.agent.max_visits:
            raise AgentError(
                f"node {name!r} was reached more than {self.agent.max_visits} times: a loop that does not end? "
                "raise max_visits, or mend its condition"
            )
        view = _view(self.case, token)
        if items is None:
            step_id, output = await self._execute(name, token, view, index=None)
            steps: tuple[str, ...] = (step_id,)
        else:
            done = await asyncio.gather(
                *(self._execute(name, token, replace(view, item=item), index=at) for at, item in enumerate(items)),
                return_exceptions=True,
            )
            if error := next((each for each in done if isinstance(each, BaseException)), None):
                raise next((each for each in done if isinstance(each, _ENDS_EVERYTHING)), error)
            finished = [each for each in done if not isinstance(each, BaseException)]
            steps, output = tuple(step_id for step_id, _ in finished) or token.steps, [value for _, value in finished]
        if name not in self.last or visit >= self.last[name][0]:
            self.last[name] = (visit, output)
        return _Token(steps, {**token.outputs, name: (visit, output)}, (name,))

    async def _execute(self, name: str, token: _Token, view: View, *, index: int | None) -> tuple[str, Json]:
        node, node_id = self.nodes[name]
        with step(node_id, kind=node.kind, after=token.steps, index=index) as opened:
            given = self.context.substitute_for(opened.id)
            if given is not None:
                opened.input, opened.output = view.incoming, copied(given.output)
                opened.attributes[SUBSTITUTED] = True
            elif isinstance(node, GraphAgent):
                opened.output = await self._inner(node, node_id, token, view, opened)
            else:
                calls = Calls(opened, self.context)
                running.set(calls)
                opened.output = await node.run(view, calls)
            return opened.id, opened.output

    async def _inner(self, agent: GraphAgent, node_id: str, token: _Token, view: View, opened: OpenStep) -> Json:
        text = as_text(view.incoming)
        opened.input = text
        case = replace(self.case, text=text, history=())
        return await agent._flow(case, self.context, prefix=node_id, after=token.steps)

    def _leave(self, name: str, token: _Token) -> None:
        """Send a token along all edges that leave a node."""
        view = _view(self.case, token)
        for number, edge in enumerate(self.agent.edges):
            match edge:
                case Edge(source=source, target=target) if source == name:
                    self._spawn(target, token)
                case FanOut(source=source, target=target, items=items) if source == name:
                    self._spawn(target, token, items(view))
                case Choice(source=source, route=route, targets=targets) if source == name:
                    word = route(view)
                    if word is not None and word not in targets:
                        raise AgentError(f"the route after {name!r} gave {word!r}; known are {', '.join(targets)}")
                    if word is not None:
                        self._spawn(targets[word], token)
                case Join(sources=sources, target=target) if name in sources:
                    self._wait(number, edge, name, token)
                case _:
                    continue

    def _wait(self, number: int, join: Join, name: str, token: _Token) -> None:
        arrived = self.waiting.setdefault(number, {source: deque() for source in join.sources})
        arrived[name].append(token)
        if all(arrived.values()):
            self._spawn(join.target, _merged([arrived[source].popleft() for source in join.sources], join.sources))


def _view(case: CaseInput, token: _Token) -> View:
    outputs = {name: output for name, (_, output) in token.outputs.items()}
    return View(case=case, outputs=outputs, followed=token.followed)


def _merged(tokens: Sequence[_Token], sources: tuple[str, ...]) -> _Token:
    """One token of several: of each node the latest visit, the first source's where they are equal."""
    outputs: dict[str, tuple[int, Json]] = {}
    for token in tokens:
        for name, (visit, output) in token.outputs.items():
            if name not in outputs or visit > outputs[name][0]:
                outputs[name] = (visit, output)
    return _Token(tuple(each for token in tokens for each in token.steps), outputs, sources)


def _structure(
    agent: GraphAgent, prefix: str
) -> tuple[tuple[Node, ...], tuple[StructureEdge, ...], tuple[Surface, ...]]:
    nodes: list[Node] = []
    edges: list[StructureEdge] = []
    surfaces: list[Surface] = []
    names = [node.name for node in agent.nodes]
    ids = dict(zip(names, child_ids(names, parent=prefix), strict=True))
    for node in agent.nodes:
        node_id = ids[node.name]
        nodes.append(Node(id=node_id, kind=node.kind))
        if isinstance(node, GraphAgent):
            inner_nodes, inner_edges, inner_surfaces = _structure(node, node_id)
            nodes += inner_nodes
            edges += inner_edges
            surfaces += inner_surfaces
        else:
            surfaces += node.surfaces(node_id)
    for edge in agent.edges:
        match edge:
            case Edge() | FanOut():
                edges.append(StructureEdge(source=ids[edge.source], target=ids[edge.target]))
            case Choice():
                edges += [
                    StructureEdge(source=ids[edge.source], target=ids[target], condition=word)
                    for word, target in edge.targets.items()
                ]
            case Join():
                edges += [StructureEdge(source=ids[source], target=ids[edge.target]) for source in edge.sources]
    return tuple(nodes), tuple(edges), tuple(surfaces)


def _check(agent: GraphAgent) -> None:
    names = [node.name for node in agent.nodes]
    if not names:
        raise SetupError(f"agent {agent.name!r} has no nodes")
    if len(set(names)) < len(names):
        raise SetupError(f"agent {agent.name!r}: node names must be unique, got {', '.join(sorted(names))}")
    leaving: set[str] = set()
    for edge in agent.edges:
        sources = edge.sources if isinstance(edge, Join) else (edge.source,)
        targets = tuple(edge.targets.values()) if isinstance(edge, Choice) else (edge.target,)
        leaving.update(sources)
        for end in (*sources, *targets):
            if end not in names:
                raise SetupError(
                    f"agent {agent.name!r}: an edge names {end!r}, which is no node; known: {', '.join(names)}"
                )
    for node in agent.nodes:
        if isinstance(node, FunctionNode):
            check_parameters(node, set(names))
    object.__setattr__(agent, "entry", agent.entry or names[0])
    finals = [name for name in names if name not in leaving]
    if not agent.output and len(finals) != 1:
        raise SetupError(f"agent {agent.name!r} ends in {len(finals)} nodes: say which is the answer, output=...")
    object.__setattr__(agent, "output", agent.output or finals[0])
    for what in (agent.entry, agent.output):
        if what not in names:
            raise SetupError(f"agent {agent.name!r} has no node {what!r}; known are {', '.join(names)}")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group that says most: a spent budget, else the first; cancelled siblings are its consequence."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [errors]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions)
        else:
            found.append(error)
    return next((error for error in found if isinstance(error, PromptiterError)), found[0])


def _trace_of(recording: Recording) -> ExecutionTrace | None:
    """The trace, unless the run failed before its first step."""
    return recording.trace if recording.has_steps else None
