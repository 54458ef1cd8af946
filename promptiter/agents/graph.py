"""GraphAgent: an agent as a graph, with loops, branches, joins, fan-outs and nested agents. A run records its trace."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

from promptiter.agents.argument_checks import check_items, check_value
from promptiter.agents.base import AgentRun, CaseInput, RunContext, copy_value, to_answer, to_text
from promptiter.agents.edges import AnyEdge, Choice, Join, group_by_source, is_over_output, list_arrows
from promptiter.agents.failures import describe_error
from promptiter.agents.flow import AnyNode, Graph, run_graph
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.agents.parameters import find_input_parameter
from promptiter.agents.serving import ReadSurface, find_reader, mark_running, read_in_run, serve_calls
from promptiter.agents.step_calls import current_calls
from promptiter.errors import FATAL_ERRORS, SetupError
from promptiter.profile import Profile, find_active_profile
from promptiter.structure import Limits, Node, NodeKind, StructureEdge, StructureSnapshot, Surface, child_ids
from promptiter.wording import shorten
from traces import Failure, Recording, record
from traces.model import Json, sum_usage


@dataclass(frozen=True, kw_only=True)
class GraphAgent(Graph):
    """An agent as a graph. The answer is the output of the final node that ran, or of the node that `output` names.

    `bound` has the values that `with_profile` has put in place of the baseline, `limits` those of surfaces, by id, that
    `with_limits` has put in place of what the nodes declare.
    """

    name: str
    nodes: tuple[AnyNode, ...]
    edges: tuple[AnyEdge, ...] = ()
    entry: str = ""
    output: str = ""
    max_visits: int = 25
    kind: NodeKind = "agent"
    bound: Profile | None = None
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    def __hash__(self) -> int:
        return hash(self.name)  # web frameworks keep handlers in dicts, and some fields cannot be hashed

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

    def with_limits(self, limits: Mapping[str, Limits]) -> Self:
        """Return this agent with other limits for some of its surfaces, by id, such as the range of a parameter."""
        for name in limits:
            self.describe().surface(name)
        return replace(self, limits={**self.limits, **limits})

    async def __call__(self, message: str | CaseInput) -> Any:
        """Answer a message with the active profile, or with the baseline. For production: nothing is recorded.

        Returns the output of the last node. An error of a node is raised.
        """
        case = CaseInput(text=message) if isinstance(message, str) else message
        check_value(f"the message to {self.name!r}", case, CaseInput, wanted="a text, or a CaseInput")
        outer = current_calls.get(None)
        context = RunContext() if outer is None else replace(outer.context, substitutes=())
        read = self._find_reader()
        with (
            serve_calls(),
            mark_running(self.nodes, read),
            record(self.name, resolve=read, keep_steps=outer is not None),
        ):
            return await run_graph(self, case, context)

    async def run(self, case: CaseInput, profile: Profile | None = None, context: RunContext | None = None) -> AgentRun:
        """Run once. An error of a node becomes the error of the run; errors that end the evaluation are raised.

        Without a profile, the active one or the baseline is used.
        """
        check_value(f"the case for {self.name!r}", case, CaseInput, wanted="a CaseInput, such as CaseInput(text='hi')")
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
        with mark_running(self.nodes, partial(read_in_run, recording)):
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
        limit = None if context.deadline_s is None else asyncio.timeout(context.deadline_s)
        try:
            with recording:
                if limit is None:
                    return await self._answer(case, context), None
                async with limit:
                    return await self._answer(case, context), None
        except FATAL_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - a failing case is a result, whatever its agent raised
            if limit is not None and limit.expired():
                return None, Failure("TimeoutError", f"no answer in {context.deadline_s} s")
            return None, describe_error(error)

    async def _answer(self, case: CaseInput, context: RunContext) -> Json:
        return to_answer(await run_graph(self, case, context), name=self.name)

    def can_substitute(self, node_id: str) -> bool:
        """True for every node of the graph and of nested graphs, not for steps that a function records itself."""
        return any(node.id == node_id for node in self.describe().nodes)

    @cached_property
    def final_nodes(self) -> tuple[str, ...]:
        return (self.output,) if self.output else _find_final_nodes(self)

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        prefix = f"{node_id}/" if node_id else ""
        values = {f"{prefix}{name}": value for name, value in self.bound.overrides.items()} if self.bound else {}
        ids = child_ids((node.name for node in self.nodes), parent=node_id)
        surfaces = (surface for node, inner in zip(self.nodes, ids, strict=True) for surface in node.surfaces(inner))
        limits = {f"{prefix}{name}": each for name, each in self.limits.items()}
        surfaces = (replace(each, limits=limits[each.id]) if each.id in limits else each for each in surfaces)
        return tuple(
            replace(each, value=values[each.id], is_bound=True) if each.id in values else each for each in surfaces
        )

    @cached_property
    def _snapshot(self) -> StructureSnapshot:
        nodes, edges = _collect_structure(self, "")
        surfaces = self.surfaces("")
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

    def _find_reader(self) -> ReadSurface:
        """How a call reads surfaces: as the run or call of this agent that it is part of, if there is one."""
        enclosing = find_reader(self.nodes, self.describe().structure_id) if self.bound is None else None
        return enclosing or self._build_reader(self._find_profile())

    def _build_reader(self, profile: Profile) -> ReadSurface:
        """How a run reads surfaces by their id."""
        snapshot = self.describe()
        return lambda surface_id: copy_value(profile.value(surface_id, snapshot))


def _collect_structure(graph: Graph, prefix: str) -> tuple[tuple[Node, ...], tuple[StructureEdge, ...]]:
    nodes: list[Node] = []
    edges: list[StructureEdge] = []
    names = [node.name for node in graph.nodes]
    ids = dict(zip(names, child_ids(names, parent=prefix), strict=True))
    for node in graph.nodes:
        nodes.append(Node(id=ids[node.name], kind=node.kind))
        if isinstance(node, Graph):
            inner_nodes, inner_edges = _collect_structure(node, ids[node.name])
            nodes += inner_nodes
            edges += inner_edges
    edges += [
        StructureEdge(source=ids[source], target=ids[target], condition=key)
        for edge in graph.edges
        for source, target, key in list_arrows(edge)
    ]
    return tuple(nodes), tuple(edges)


def _check(agent: GraphAgent) -> None:
    check_value("the name of an agent", agent.name, str, wanted="a text")
    place = f"agent {agent.name!r}:"
    check_value(f"{place} max_visits", agent.max_visits, int, wanted="a whole number")
    check_items(f"{place} nodes", agent.nodes, object, wanted="nodes, such as ModelNode(name=..., instruction=...)")
    check_items(f"{place} edges", agent.edges, AnyEdge, wanted="edges, such as Edge('plan', 'answer')")
    for each in agent.nodes:
        if not callable(getattr(each, "surfaces", None)):
            raise SetupError(f"{place} nodes has {shorten(each)}; decorate a function with @node, or give a ModelNode")
        check_value(f"{place} the name of a node", each.name, str, wanted="a text")
    names = [node.name for node in agent.nodes]
    if not names:
        raise SetupError(f"agent {agent.name!r} has no nodes")
    if len(set(names)) < len(names):
        raise SetupError(f"agent {agent.name!r}: node names must be unique, got {', '.join(sorted(names))}")
    for end in (end for edge in agent.edges for source, target, _ in list_arrows(edge) for end in (source, target)):
        if end not in names:
            raise SetupError(f"{place} an edge names {shorten(end)}, which is not a node; known are {', '.join(names)}")
    fanned_out = {edge.source for edge in agent.edges if is_over_output(edge)}
    for node in agent.nodes:
        if isinstance(node, FunctionNode):
            find_input_parameter(node.name, node.function, names)
        elif isinstance(node, ModelNode):
            node.check_prompt(names)
            if node.schema is None and node.name in fanned_out:
                raise SetupError(
                    f"{place} the fan-out after {node.name!r} needs a list, but that node returns a text; make a list "
                    "of it, such as items=lambda context: context.incoming.splitlines()"
                )
    object.__setattr__(agent, "entry", agent.entry or names[0])
    for what in (agent.entry, agent.output or agent.entry):
        if what not in names:
            raise SetupError(f"agent {agent.name!r} has no node {what!r}; known are {', '.join(names)}")
    if not agent.output:
        _check_final_nodes(agent)


def _check_final_nodes(agent: GraphAgent) -> None:
    finals, reached = _find_final_nodes(agent), _find_reached(agent, certainly=False)
    if not finals:
        raise SetupError(f"agent {agent.name!r}: an edge leaves every node; name the one with the answer: output=...")
    if unreached := [name for name in finals if name not in reached]:
        raise SetupError(f"agent {agent.name!r}: no edge leads to {' or '.join(map(repr, unreached))}")
    certain = _find_reached(agent, certainly=True)
    if len(both := [name for name in finals if name in certain]) > 1:
        raise SetupError(
            f"agent {agent.name!r} always ends in {' and '.join(map(repr, both))}, so it has several answers; join "
            "them, or name the node with the answer: output=..."
        )


def _find_final_nodes(agent: GraphAgent) -> tuple[str, ...]:
    left = {source for edge in agent.edges for source, _, _ in list_arrows(edge)}
    return tuple(node.name for node in agent.nodes if node.name not in left)


def _find_reached(agent: GraphAgent, *, certainly: bool) -> set[str]:
    """The nodes that a run may reach, or those that every run reaches."""
    leaving, arrived = group_by_source(agent.edges), Counter[int]()
    reached, waiting = {agent.entry}, [agent.entry]
    while waiting:
        for number, edge in leaving.get(waiting.pop(), ()):
            arrived[number] += 1
            if isinstance(edge, Join):
                is_followed = arrived[number] == len(set(edge.sources))
            else:
                is_followed = not (certainly and isinstance(edge, Choice))
            new = {target for _, target, _ in list_arrows(edge)} - reached if is_followed else set()
            reached |= new
            waiting += new
    return reached
