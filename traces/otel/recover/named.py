"""Predecessors that the instrumentation states: LangGraph's metadata, static graphs, hand-overs by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from traces.model import Json
from traces.otel.recover.concepts import first, load_json
from traces.otel.recover.forest import SpanNode, walk, walk_up
from traces.otel.recover.items import Item
from traces.otel.recover.order import Evidence

HANDED_TO = ("to_agent", "gen_ai.handoff.to_agent")
_SEND = re.compile(r"Send\(node='([^']+)'")


class NamedPredecessors:
    """Finds the stated predecessors among the items of one level; `edges` is the static graph, if there is one."""

    def __init__(self, nodes: Iterable[SpanNode]) -> None:
        self.edges = read_static_edges(nodes)
        self._handed = {
            node.agent: to_agent
            for node in nodes
            if (to_agent := first(node.span.attributes, HANDED_TO)) is not None and node.agent is not None
        }

    def __call__(self, items: Sequence[Item]) -> Mapping[int, list[tuple[Item, Evidence]]]:
        found: dict[int, list[tuple[Item, Evidence]]] = {}
        in_graph = [item for item in items if item.kind == "step" and item.span.graph is not None]
        if in_graph:
            found |= self._follow_supersteps(in_graph)
        found |= self._follow_handovers(items, found)
        if self.edges and not in_graph:
            found |= self._follow_edges([item for item in items if id(item) not in found and item.is_explicit])
        return found

    def _follow_supersteps(self, items: Sequence[Item]) -> dict[int, list[tuple[Item, Evidence]]]:
        found: dict[int, list[tuple[Item, Evidence]]] = {}
        by_step: dict[int, list[Item]] = {}
        for item in items:
            number = item.span.graph.step if item.span.graph else None
            if number is None:
                return {}
            by_step.setdefault(number, []).append(item)
        if len(by_step) == 1 and all("__pregel_push" in _list_triggers(item) for item in items):
            return {}  # tasks that an entry point calls as functions: their numbers do not order them
        supersteps = [by_step[number] for number in sorted(by_step)]
        routes = _Routes(supersteps)
        latest: dict[str, list[Item]] = {}
        earlier: list[Item] = []
        for superstep in supersteps:
            for item in superstep:
                found[id(item)] = self._find_triggers(item, earlier, latest, routes)
            earlier = _list_last_attempts(superstep)
            for name in {item.name or "" for item in earlier}:
                latest[name] = [item for item in earlier if item.name == name]
        return found

    def _find_triggers(
        self, item: Item, earlier: Sequence[Item], latest: Mapping[str, Sequence[Item]], routes: _Routes
    ) -> list[tuple[Item, Evidence]]:
        stated: list[str] = []
        for trigger in _list_triggers(item):
            head, _, rest = trigger.partition(":")
            if head == "join":
                sources = rest.rpartition(":")[0].split("+")
                stated += sources if _is_joined(item, sources, latest) else ()
            elif head == "branch" and not rest.startswith("to:"):
                stated.append(rest.split(":")[0])
            elif head in latest and not rest:
                stated.append(head)
        if stated:
            return [(each, "trigger") for name in dict.fromkeys(stated) for each in latest.get(name, ())]
        routed = [each for each in earlier if item.name in routes.chosen[id(each)]]
        others = [each for each in earlier if routes.may_lead(each, item)]
        if self.edges:
            others = [each for each in others if item.name in self.edges.get(each.name or "", ())]
        elif routed:
            others = []
        if routed or others:
            evidence = "route" if routed else "graph" if self.edges else _name_superstep(earlier)
            return [(each, evidence) for each in [*routed, *others]]
        return [(each, _name_superstep(earlier)) for each in earlier]

    def _follow_edges(self, items: Sequence[Item]) -> dict[int, list[tuple[Item, Evidence]]]:
        found: dict[int, list[tuple[Item, Evidence]]] = {}
        latest: dict[str, Item] = {}
        consumed: dict[str, Item] = {}
        for item in items:
            sources = [name for name, targets in self.edges.items() if item.name in targets and name in latest]
            since = consumed.get(item.name or "")
            fresh = [latest[name] for name in sources if since is None or latest[name].start >= since.start]
            if fresh:
                found[id(item)] = [(each, "graph") for each in fresh]
            latest[item.name or ""] = consumed[item.name or ""] = item
        return found

    def _follow_handovers(
        self, items: Sequence[Item], known: Mapping[int, list[tuple[Item, Evidence]]]
    ) -> dict[int, list[tuple[Item, Evidence]]]:
        """The latest execution of the node that handed over to each step whose predecessors are not known.

        If one of them had not ended when its successor started, the names only say in which order the steps are listed.
        """
        found: dict[int, list[tuple[Item, Evidence]]] = {}
        latest: dict[Json, Item] = {}
        handing: dict[Json, Item] = {}
        for item in items:
            source = latest.get(_read_handover(item)) or handing.get(item.name)
            if id(item) not in known and source is not None:
                if source.end > item.start:
                    return {}
                found[id(item)] = [(source, "name")]
            if item.name is not None:
                latest[item.name] = item
            if (target := self._handed.get(item.span)) is not None:
                handing[target] = item
        return found


def _list_last_attempts(superstep: Sequence[Item]) -> list[Item]:
    """The executions that led on: all but those that failed and were tried again, in the same namespace."""
    kept: list[Item] = []
    later: set[str] = set()
    for item in reversed(superstep):
        namespace = item.span.graph.namespace if item.span.graph is not None else ""
        if namespace not in later or not item.span.span.is_error:
            kept.append(item)
        later.add(namespace)
    return kept[::-1]


def _is_joined(item: Item, sources: Sequence[str], latest: Mapping[str, Sequence[Item]]) -> bool:
    """Whether all sources ran since the node last did: LangGraph lists a join even where a router led to the node."""
    since = max((_read_superstep(each) for each in latest.get(item.name or "", ())), default=-1)
    return all(name in latest and _read_superstep(latest[name][0]) >= since for name in sources)


def _read_superstep(item: Item) -> int:
    return item.span.graph.step or 0 if item.span.graph is not None else 0


def _name_superstep(earlier: Sequence[Item]) -> Evidence:
    """The only step of a superstep has triggered the next one; of several, any may have."""
    return "trigger" if len(earlier) == 1 else "superstep"


class _Routes:
    """Where the steps of LangGraph chose to go, and where those that chose nothing can have gone."""

    def __init__(self, supersteps: Sequence[Sequence[Item]]) -> None:
        self.chosen = {id(item): _list_routes(item) for superstep in supersteps for item in superstep}
        self._nodes = {item.name for superstep in supersteps for item in superstep} | {"__end__"}
        self._next: dict[str | None, set[str | None]] = {}
        is_complete = not any(_has_failed(item.span) for item in supersteps[-1])
        for superstep, after in itertools.pairwise([*supersteps, ()] if is_complete else supersteps):
            names = {item.name for item in after}
            for item in superstep:
                if not self.chosen[id(item)]:
                    self._next[item.name] = names & self._next.get(item.name, names)

    def may_lead(self, source: Item, target: Item) -> bool:
        """Whether a step that names no node led to another: by a label of its own, or by an edge it always follows."""
        if chosen := self.chosen[id(source)]:
            return not chosen <= self._nodes
        return target.name in self._next.get(source.name, ())


def _list_triggers(item: Item) -> Sequence[str]:
    return item.span.graph.triggers if item.span.graph is not None else ()


def _has_failed(node: SpanNode) -> bool:
    return node.span.is_error or (node.parent is not None and node.parent.span.is_error)


def _list_routes(item: Item) -> set[str]:
    """The nodes that a step of LangGraph chose to go to: by a router, `Command` or `Send`."""
    names: set[str] = set()
    for node in walk([item.span]):
        attributes = node.span.attributes
        if node is not item.span and node.role != "chain":
            continue
        if str(attributes.get("gen_ai.operation.name")) == "goto" or node.span.name.startswith("goto "):
            names.add(node.span.name.removeprefix("goto "))
        output = attributes.get(
            "output.value", attributes.get("gen_ai.task.output", attributes.get("traceloop.entity.output"))
        )
        if output is None or (
            node is item.span and "goto" not in str(output)[:10_000] and "Send(" not in str(output)[:10_000]
        ):
            continue
        names |= set(_read_routes(load_json(output)))
    return names


def _read_routes(output: Json) -> Iterable[str]:
    if isinstance(output, dict):
        if "outputs" in output:
            yield from _read_routes(output["outputs"])
        elif isinstance(goto := output.get("goto"), str | list):
            yield from [goto] if isinstance(goto, str) else (each for each in goto if isinstance(each, str))
    elif isinstance(output, str):
        found = _SEND.findall(output)
        yield from found or [output]
    elif isinstance(output, list):
        for each in output:
            if isinstance(each, str):
                yield from _SEND.findall(each) or [each]


def _read_handover(item: Item) -> str | None:
    """The node that handed over to this step. The id of a span around it is not meant: some write that here."""
    name = item.span.span.attributes.get("graph.node.parent_id")
    if not isinstance(name, str) or not name:
        return None
    is_around = any(each.span.attributes.get("graph.node.id") == name for each in walk_up(item.span.parent))
    return None if is_around else name


def read_static_edges(nodes: Iterable[SpanNode]) -> dict[str, set[str]]:
    """The edges of the graph that some instrumentations write on a span: for each node, those after it."""
    edges: dict[str, set[str]] = {}
    for node in nodes:
        attributes = node.span.attributes
        if "gen_ai.workflow.edges" not in attributes and "workflow.definition" not in attributes:
            continue
        listed = load_json(attributes.get("gen_ai.workflow.edges"))
        for each in listed if isinstance(listed, list) else ():
            source, arrow, target = str(each).partition(" -> ")
            if arrow:
                edges.setdefault(source.strip(), set()).add(target.strip())
        definition = load_json(attributes.get("workflow.definition"))
        groups = definition.get("edge_groups") if isinstance(definition, dict) else None
        for group in groups if isinstance(groups, list) else ():
            for edge in group.get("edges") or () if isinstance(group, dict) else ():
                if isinstance(edge, dict) and "source_id" in edge and "target_id" in edge:
                    edges.setdefault(str(edge["source_id"]), set()).add(str(edge["target_id"]))
    return edges
