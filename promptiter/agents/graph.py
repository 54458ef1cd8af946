"""The built-in graph runtime, with loops, branches, joins, fan-outs and nested agents. A run records its trace.

Tokens travel along the edges. A node runs as soon as a token reaches it, in its own task; a join waits for one token
from each of its sources. A token carries the outputs of the nodes on its path, so what a node sees depends on the
graph and never on timing.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

from promptiter.agents.base import SUBSTITUTED, AgentRun, CaseInput, RunContext, to_answer, to_text
from promptiter.agents.edges import AnyEdge, Choice, Edge, FanOut, Join, list_arrows
from promptiter.agents.nodes import FunctionNode, GraphNode, NodeContext
from promptiter.agents.parameters import find_input_parameter
from promptiter.agents.serving import serve_calls
from promptiter.agents.step_calls import StepCalls, current_calls
from promptiter.errors import AgentError, BudgetEndedError, PromptiterError, SetupError, UnexpectedCallError
from promptiter.profile import Profile, find_active_profile
from promptiter.structure import Node, NodeKind, StructureEdge, StructureSnapshot, Surface, child_ids
from traces import Failure, Recording, record, step
from traces.model import Json, sum_usage

_FATAL_ERRORS = (BudgetEndedError, UnexpectedCallError, SetupError)
"""Errors that concern more than one case: they end the evaluation."""

AnyNode: TypeAlias = "GraphNode | GraphAgent"


@dataclass(frozen=True, slots=True)
class _Token:
    """A path through the graph: the steps it came from, and by node the visit number and output of the last visit."""

    steps: tuple[str, ...] = ()
    outputs: Mapping[str, tuple[int, Json]] = field(default_factory=dict)
    predecessors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphAgent:
    """An agent as a graph. `output` names the node whose last output is the answer; by default the only final node.

    `bound` has the values that `with_profile` has put in place of the baseline.
    """

    name: str
    nodes: tuple[AnyNode, ...]
    edges: tuple[AnyEdge, ...] = ()
    entry: str = ""
    output: str = ""
    max_visits: int = 25
    kind: NodeKind = "agent"
    bound: Profile | None = None

    def __post_init__(self) -> None:
        _check(self)

    def describe(self) -> StructureSnapshot:
        return self._snapshot

    def with_profile(self, profile: Profile | str | os.PathLike[str]) -> Self:
        """Return this agent with the values of a profile, or of a profile file, as its baseline. For production.

        Such an agent ignores active profiles. Raises StructureMismatchError if the profile is of another agent.
        """
        if not isinstance(profile, Profile):
            profile = Profile.load(profile)
        profile.check(self.describe())
        merged = {**self.bound.overrides, **profile.overrides} if self.bound else profile.overrides
        return replace(self, bound=replace(profile, overrides=merged))

    async def __call__(self, message: str | CaseInput) -> Any:
        """Answer a message with the active profile, or with the baseline. For production: nothing is recorded.

        Returns the output of the last node. An error of a node is raised.
        """
        case = CaseInput(text=message) if isinstance(message, str) else message
        outer = current_calls.get(None)
        context = RunContext() if outer is None else replace(outer.context, substitutes=())
        read = self._build_reader(self._find_profile())
        with serve_calls(), record(self.name, resolve=read, keep_steps=outer is not None):
            return await self._flow(case, context, prefix="", after=())

    async def run(self, case: CaseInput, profile: Profile | None = None, context: RunContext | None = None) -> AgentRun:
        """Run once. An error of a node becomes the error of the run; errors that end the evaluation are raised.

        Without a profile, the active one or the baseline is used.
        """
        context = context or RunContext()
        profile = profile or self._find_profile()
        profile.check(self.describe())
        recording = record(
            f"{context.case_id or 'run'}~{context.repeat}~{profile.digest[:12]}"
            + (f"~{context.turn}" * bool(context.turn)),
            resolve=self._build_reader(profile),
            conversation_id=context.case_id or None,
        )
        started = time.perf_counter()
        output, error = await self._run_recorded(recording, case, context)
        trace = recording.trace if recording.has_steps else None
        return AgentRun(
            output="" if error else to_text(output),
            data=None if error or isinstance(output, str) else output,
            trace=trace,
            usage=sum_usage(each.usage for each in trace.steps) if trace else sum_usage(()),
            error=error,
            duration_s=time.perf_counter() - started,
        )

    async def _run_recorded(
        self, recording: Recording, case: CaseInput, context: RunContext
    ) -> tuple[Json, Failure | None]:
        limit = asyncio.timeout(context.deadline_s)
        try:
            with recording:
                async with limit:
                    return to_answer(await self._flow(case, context, prefix="", after=()), name=self.name), None
        except _FATAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - a failing case is a result, whatever its agent raised
            if limit.expired():
                return None, Failure("TimeoutError", f"no answer in {context.deadline_s} s")
            return None, Failure(type(error).__name__, str(error))

    def can_substitute(self, node_id: str) -> bool:
        """True for every node of the graph and of nested graphs, not for steps that a function records itself."""
        return any(node.id == node_id for node in self.describe().nodes)

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        """The surfaces of all its nodes, below its own id, for use as a node of another agent."""
        ids = child_ids((node.name for node in self.nodes), parent=node_id)
        return tuple(surface for node, inner in zip(self.nodes, ids, strict=True) for surface in node.surfaces(inner))

    @cached_property
    def _snapshot(self) -> StructureSnapshot:
        nodes, edges, surfaces = _collect_structure(self, "")
        values = self.bound.overrides if self.bound else {}
        surfaces = tuple(replace(each, value=values[each.id]) if each.id in values else each for each in surfaces)
        return StructureSnapshot(nodes=nodes, edges=edges, surfaces=surfaces, entry=self.entry, name=self.name)

    @cached_property
    def _baseline(self) -> Profile:
        return Profile.baseline(self.describe())

    def _find_profile(self) -> Profile:
        """The active profile of this agent, or its baseline."""
        if self.bound is not None:
            return self._baseline
        is_nested = current_calls.get(None) is not None
        return find_active_profile(self.describe(), is_nested=is_nested) or self._baseline

    def _build_reader(self, profile: Profile) -> Callable[[str], Json]:
        """How a run reads surfaces by their id."""
        snapshot = self.describe()
        return lambda surface_id: _copy(profile.value(surface_id, snapshot))

    async def _flow(self, case: CaseInput, context: RunContext, *, prefix: str, after: tuple[str, ...]) -> Json:
        flow = _Flow(self, case, context, prefix)
        try:
            async with asyncio.TaskGroup() as group:
                flow.start(group, after)
        except BaseExceptionGroup as errors:
            raise _find_cause(errors) from errors
        return flow.get_output()


class _Flow:
    """One run of a graph: the tokens waiting at joins, and the outputs so far."""

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

    def get_output(self) -> Json:
        """The output of the run. Raises the error of the failed node that comes first in the graph."""
        if self.failures:
            raise min(self.failures, key=lambda failure: failure[:2])[2]
        output = self.agent.output
        if output not in self.last:
            waits = [
                edge
                for number, edge in enumerate(self.agent.edges)
                if isinstance(edge, Join) and any(self.waiting.get(number, {}).values())
            ]
            joins = "".join(f"; the join before {join.target!r} is still waiting" for join in waits)
            raise AgentError(f"the run of {self.agent.name!r} ended before node {output!r} had run{joins}")
        return self.last[output][1]

    def _spawn(self, name: str, token: _Token, items: Sequence[Json] | None = None) -> None:
        self.group.create_task(self._arrive(name, token, items))

    async def _arrive(self, name: str, token: _Token, items: Sequence[Json] | None) -> None:
        """Run a node and send its token on. An error ends this path only, so that timing has no influence."""
        visit = token.outputs.get(name, (0, None))[0] + 1
        try:
            token = await self._visit(name, token, visit, items)
            self._leave(name, token)
        except _FATAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - raised when all paths have ended
            self.failures.append((self.order[name], visit, error))

    async def _visit(self, name: str, token: _Token, visit: int, items: Sequence[Json] | None) -> _Token:
        if visit > self.agent.max_visits:
            raise AgentError(
                f"node {name!r} was reached more than {self.agent.max_visits} times, probably in an endless loop; "
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
                raise next((each for each in done if isinstance(each, _FATAL_ERRORS)), error)
            finished = [each for each in done if not isinstance(each, BaseException)]
            steps, output = tuple(step_id for step_id, _ in finished) or token.steps, [value for _, value in finished]
        if name not in self.last or visit >= self.last[name][0]:
            self.last[name] = (visit, output)
        return _Token(steps, {**token.outputs, name: (visit, output)}, (name,))

    async def _execute(
        self, name: str, token: _Token, node_context: NodeContext, *, index: int | None
    ) -> tuple[str, Json]:
        node, node_id = self.nodes[name]
        with step(node_id, kind=node.kind, after=token.steps, index=index) as opened:
            given = self.context.substitute_for(opened.id)
            if given is not None:
                opened.input, opened.output = node_context.incoming, _copy(given.output)
                opened.attributes[SUBSTITUTED] = True
            elif isinstance(node, GraphAgent):
                opened.input = to_text(node_context.incoming)
                case = replace(self.case, text=opened.input, history=())
                opened.output = await node._flow(case, self.context, prefix=node_id, after=token.steps)
            else:
                is_live = not opened.scope.recording.keeps_steps
                calls = StepCalls(opened, self.context, is_live=is_live, outer=current_calls.get(None))
                before = current_calls.set(calls)
                try:
                    opened.output = await node.run(node_context, calls)
                finally:
                    current_calls.reset(before)
            return opened.id, opened.output

    def _leave(self, name: str, token: _Token) -> None:
        """Send a token along all edges that leave a node."""
        node_context = self._build_context(token)
        for number, edge in enumerate(self.agent.edges):
            match edge:
                case Edge(source=source, target=target) if source == name:
                    self._spawn(target, token)
                case FanOut(source=source, target=target, items=items) if source == name:
                    self._spawn(target, token, items(node_context))
                case Choice(source=source, route=route, targets=targets) if source == name:
                    key = route(node_context)
                    if key is not None and key not in targets:
                        known = ", ".join(targets)
                        raise AgentError(f"the route after {name!r} returned {key!r}; known are {known}")
                    if key is not None:
                        self._spawn(targets[key], token)
                case Join(sources=sources, target=target) if name in sources:
                    self._wait(number, edge, name, token)
                case _:
                    continue

    def _build_context(self, token: _Token) -> NodeContext:
        return NodeContext(
            case=self.case,
            outputs={name: output for name, (_, output) in token.outputs.items()},
            predecessors=token.predecessors,
            visit_counts=dict.fromkeys(self.order, 0) | {name: visit for name, (visit, _) in token.outputs.items()},
        )

    def _wait(self, number: int, join: Join, name: str, token: _Token) -> None:
        arrived = self.waiting.setdefault(number, {source: deque() for source in join.sources})
        arrived[name].append(token)
        if all(arrived.values()):
            self._spawn(
                join.target, _merge_tokens([arrived[source].popleft() for source in join.sources], join.sources)
            )


def _merge_tokens(tokens: Sequence[_Token], sources: tuple[str, ...]) -> _Token:
    """Merge the tokens of a join: of each node the latest visit, on a tie that of the first source."""
    outputs: dict[str, tuple[int, Json]] = {}
    for token in tokens:
        for name, (visit, output) in token.outputs.items():
            if name not in outputs or visit > outputs[name][0]:
                outputs[name] = (visit, output)
    return _Token(tuple(each for token in tokens for each in token.steps), outputs, sources)


def _collect_structure(
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
            inner_nodes, inner_edges, inner_surfaces = _collect_structure(node, node_id)
            nodes += inner_nodes
            edges += inner_edges
            surfaces += inner_surfaces
        else:
            surfaces += node.surfaces(node_id)
    edges += [
        StructureEdge(source=ids[source], target=ids[target], condition=key)
        for edge in agent.edges
        for source, target, key in list_arrows(edge)
    ]
    return tuple(nodes), tuple(edges), tuple(surfaces)


def _check(agent: GraphAgent) -> None:
    names = [node.name for node in agent.nodes]
    if not names:
        raise SetupError(f"agent {agent.name!r} has no nodes")
    if len(set(names)) < len(names):
        raise SetupError(f"agent {agent.name!r}: node names must be unique, got {', '.join(sorted(names))}")
    arrows = [arrow for edge in agent.edges for arrow in list_arrows(edge)]
    for end in (end for source, target, _ in arrows for end in (source, target)):
        if end not in names:
            raise SetupError(
                f"agent {agent.name!r}: an edge names {end!r}, which is not a node; known are {', '.join(names)}"
            )
    for node in agent.nodes:
        if isinstance(node, FunctionNode):
            find_input_parameter(node.name, node.function, names)
    object.__setattr__(agent, "entry", agent.entry or names[0])
    finals = [name for name in names if name not in {source for source, _, _ in arrows}]
    if not agent.output and len(finals) != 1:
        raise SetupError(f"agent {agent.name!r} ends in {len(finals)} nodes; name the one with the answer: output=...")
    object.__setattr__(agent, "output", agent.output or finals[0])
    for what in (agent.entry, agent.output):
        if what not in names:
            raise SetupError(f"agent {agent.name!r} has no node {what!r}; known are {', '.join(names)}")


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


def _copy(value: Json) -> Json:
    """A copy that a run may modify."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value
