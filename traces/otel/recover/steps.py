"""Which spans are steps, and what is folded into them.

A step is one execution of a node of a graph or of an agent with a name; where neither covers a model call, the model
call is the step, and where no model call covers a tool call, that is. An agent that makes no model call of its own but
contains steps only groups them. Everything else is folded into the step around it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Literal, TypeAlias

from traces.otel.recover.concepts import INPUT, OUTPUT, TOOL_CALL_ID, first
from traces.otel.recover.forest import SpanNode, is_explicit, walk

ItemKind: TypeAlias = Literal["step", "group", "call", "tool"]


class Item:
    """Something at one level of a run: a step, a group of items, or a model or tool call that no step owns yet."""

    __slots__ = (
        "calls",
        "end",
        "holds_calls",
        "inner",
        "is_agent",
        "is_explicit",
        "is_soft",
        "kind",
        "name",
        "span",
        "start",
        "tools",
        "via_tool",
        "wrappers",
    )

    def __init__(self, kind: ItemKind, span: SpanNode, inner: list[Item] | None = None) -> None:
        self.kind: ItemKind = kind
        self.span = span
        self.inner: list[Item] = inner or []
        self.calls: list[SpanNode] = []
        self.tools: list[SpanNode] = []
        self.wrappers: list[SpanNode] = [span]
        self.via_tool: SpanNode | None = None
        self.name: str | None = None
        self.is_explicit = False
        self.is_agent = False
        self.is_soft = False
        self.holds_calls = False
        self.start, self.end = span.start, span.end


def find_steps(roots: Iterable[SpanNode]) -> list[Item]:
    """The items of a run: steps and groups of steps, as nested as their spans."""
    roots = list(roots)
    results: dict[int, list[Item]] = {}
    for node in reversed(list(walk(roots))):
        inner = [item for child in node.children for item in results.pop(id(child))]
        inner.sort(key=_order_key)
        results[id(node)] = _visit(node, inner)
    top = [item for root in roots for item in results[id(root)]]
    return _settle(top)


def _visit(node: SpanNode, inner: list[Item]) -> list[Item]:
    """The items that a span and those below it give to the level around it."""
    if node.role == "setup":
        return inner
    explicit = is_explicit(node)
    if explicit or (node.role == "agent" and node.name is not None):
        return [_make_step(node, inner, explicit=explicit)]
    match node.role:
        case "llm":
            call = Item("call", node)
            call.calls = [node]
            repeated = [item for item in inner if item.kind == "call"]  # the same call, instrumented twice
            for item in repeated:
                call.wrappers += item.wrappers
            return [call, *(item for item in inner if item.kind != "call")]
        case "tool":
            settled = [item for item in _settle(inner) if item.kind != "tool"]
            for item in settled:
                item.via_tool = item.via_tool or node
            return [Item("tool", node), *settled]
        case "agent" | "workflow":
            settled = _settle(inner)
            if settled:
                return [Item("group", node, settled)]
            return [_make_step(node, inner, explicit=False)] if node.role == "agent" else []
        case _:
            if sum(item.kind != "tool" for item in inner) < 2:
                return inner
            group = Item("group", node, inner)
            group.is_soft = True
            group.holds_calls = any(item.holds_calls or item.kind in ("call", "tool") for item in inner)
            return [group]


def _make_step(node: SpanNode, inner: list[Item], *, explicit: bool) -> Item:
    name = node.graph.node if explicit and node.graph is not None else node.name
    owned = list(_flatten(inner))
    calls = [item for item in owned if item.kind == "call"]
    nested = [item for item in owned if item.kind in ("step", "group")]
    if len(nested) == 1 and not calls and nested[0].kind == "step" and nested[0].via_tool is None:
        only = nested[0]
        if only.name == name or (explicit and only.is_agent and not only.is_explicit):
            only.wrappers.append(node)
            only.tools += [item.span for item in owned if item.kind == "tool"]
            if explicit or (not only.is_explicit and _has_content(node)):
                only.span, only.name = node, name
                only.is_explicit = explicit
            only.start, only.end = min(only.start, node.start), max(only.end, node.end)
            return only
    step = Item("step", node, nested)
    step.name = name
    step.is_explicit, step.is_agent = explicit, node.role == "agent"
    step.calls = [span for item in calls for span in item.wrappers[:1]]
    step.tools = [item.span for item in owned if item.kind == "tool"]
    if nested and not calls and not explicit:
        step.kind = "group"
        step.inner = _settle(owned)
    return step


def _flatten(items: Iterable[Item]) -> Iterator[Item]:
    """The items, with those of a wrapper that holds model calls in its place: they belong to the step around it."""
    waiting = list(items)[::-1]
    while waiting:
        item = waiting.pop()
        if item.holds_calls:
            waiting += reversed(item.inner)
        else:
            yield item


def _settle(items: list[Item]) -> list[Item]:
    """Make steps of the model calls that no step owns, and give them their tool calls."""
    asked: list[Item] = []
    tools: list[Item] = []
    settled = _settle_level(items, asked, tools)
    by_id: dict[str, Item] = {}
    if tools:
        for step in asked:
            for message in step.span.conversation.answered:
                for call in message.calls:
                    if call.id is not None:
                        by_id[call.id] = step
    left: list[Item] = []
    by_start: dict[int, Item] = {}
    for step in asked:
        by_start.setdefault(step.start, step)
    starts = sorted(by_start) if tools else []
    for tool in tools:
        call_id = first(tool.span.span.attributes, TOOL_CALL_ID)
        owner = by_id.get(str(call_id)) if call_id is not None else None
        if owner is None:
            count = bisect_right(starts, tool.start)
            owner = by_start[starts[count - 1]] if count else None
        if owner is None:
            tool.kind, tool.name = "step", None
            left.append(tool)
        else:
            owner.tools.append(tool.span)
    return sorted([*settled, *left], key=_order_key)


def _settle_level(items: list[Item], asked: list[Item], tools: list[Item]) -> list[Item]:
    groups: dict[int, Item] = {}
    waiting = items[::-1]
    while waiting:
        item = waiting.pop()
        if item.kind == "call":
            item.kind = "step"
            item.name = item.span.name
            asked.append(item)
        elif item.kind == "tool":
            tools.append(item)
        elif item.is_soft:
            item.is_soft = item.holds_calls = False
            groups[id(item)] = item
            waiting += reversed(item.inner)
    for group in reversed(groups.values()):  # inner ones first
        group.inner = _list_settled(group.inner, groups)
    return _list_settled(items, groups)


def _list_settled(items: Iterable[Item], groups: Container[int]) -> list[Item]:
    """The items without tool calls, and with what one of these groups holds in its place if that is less than two."""
    settled: list[Item] = []
    for item in items:
        if id(item) in groups and len(item.inner) < 2:
            settled += item.inner
        elif item.kind != "tool":
            settled.append(item)
    return settled


def _order_key(item: Item) -> tuple[int, int, str]:
    return item.start, item.end, item.span.id


def _has_content(node: SpanNode) -> bool:
    attributes = node.span.attributes
    return (
        first(attributes, INPUT) is not None
        or first(attributes, OUTPUT) is not None
        or "gen_ai.input.messages" in attributes
        or bool(node.span.events)
    )
