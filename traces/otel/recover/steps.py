"""Which spans are steps, and what is folded into them.

A step is one execution of a node of a graph or of an agent with a name; where neither covers a model call, the model
call is the step, and where no model call covers a tool call, that is. An agent that makes no model call of its own but
contains steps only groups them. A span of the application that wraps the model calls of one conversation, beside
others that do, is what its author calls a step, and so are its siblings that make none. Everything else is folded into
the step around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence

from traces.otel.recover.concepts import INPUT, OUTPUT, TOOL_CALL_ID, first
from traces.otel.recover.covers import cover_calls, drop_preparations, read_cover_name
from traces.otel.recover.forest import SpanNode, is_explicit
from traces.otel.recover.items import Item, flatten, order_key
from traces.otel.recover.messages import has_messages


def find_steps(nodes: Sequence[SpanNode]) -> list[Item]:
    """The items of a run: steps and groups of steps, as nested as their spans. Parents come before their children."""
    results: dict[SpanNode, list[Item]] = {}
    for node in reversed(nodes):
        if not node.children:
            results[node] = _visit(node, [])
            continue
        below = drop_preparations([(child, results.pop(child)) for child in node.children])
        if node.role in ("workflow", "chain", "other"):
            below = cover_calls(below)
        inner = [item for _, items in below for item in items]
        if len(inner) > 1:
            inner.sort(key=order_key)
        results[node] = _visit(node, inner)
    top = [item for node in nodes if node.parent is None for item in results[node]]
    return _settle(top)


def _visit(node: SpanNode, inner: list[Item]) -> list[Item]:
    """The items that a span and those below it give to the level around it."""
    if node.role == "setup" or (node.graph is not None and node.graph.node in ("__start__", "__end__")):
        return inner
    explicit = is_explicit(node)
    if explicit or (node.role == "agent" and node.name is not None):
        return [_make_step(node, inner, explicit=explicit)]
    match node.role:
        case "llm":
            call = Item("call", node)
            call.calls = [node]
            if not inner:
                return [call]
            repeated = [item for item in inner if item.kind == "call"]  # the same call, instrumented twice
            for item in repeated:
                call.wrappers += item.wrappers
            if repeated and not has_messages(node.span):
                call.calls = [span for item in repeated for span in item.calls]
            return [call, *(item for item in inner if item.kind != "call")]
        case "tool":
            settled = [item for item in _settle(inner) if item.span.role != "tool"] if inner else []
            for item in settled:
                item.via_tool = item.via_tool or node
            return [Item("tool", node), *settled]
        case "agent" | "workflow":
            settled = _settle(inner)
            if settled:
                return [Item("group", node, settled)]
            return [_make_step(node, inner, explicit=False)] if node.role == "agent" else []
        case _:
            if len(inner) < 2 or sum(item.kind != "tool" for item in inner) < 2:
                return inner
            group = Item("group", node, inner)
            group.is_soft = True
            group.is_mixed = any(item.is_mixed for item in inner)
            group.holds_calls = any(item.holds_calls or item.kind in ("call", "tool") for item in inner)
            return [group]


def _make_step(node: SpanNode, inner: list[Item], *, explicit: bool) -> Item:
    name = node.graph.node if explicit and node.graph is not None else node.name
    owned = list(flatten(inner))
    calls = [item for item in owned if item.kind == "call" and item.calls]
    tools = [item.span for item in owned if item.kind == "tool"] + [span for item in calls for span in item.tools]
    nested = _drop_hollow([item for item in owned if item.kind in ("step", "group")])
    for item in nested:
        if item.via_tool is None:  # some write an agent that a tool runs beside the tool
            around = (tool for tool in tools if tool.start <= item.start and item.end <= tool.end)
            item.via_tool = next(around, None)
    if len(nested) == 1 and not calls and nested[0].kind == "step" and nested[0].via_tool is None:
        only = nested[0]
        if only.name == name or (explicit and only.is_agent and not only.is_explicit):
            only.wrappers.append(node)
            only.tools += tools
            if explicit or (not only.is_explicit and _has_content(node)):
                only.span, only.name = node, name
                only.is_explicit = explicit
            only.start, only.end = min(only.start, node.start), node.end  # a generator may close its span late
            return only
    step = Item("step", node, nested)
    step.name = name
    step.is_explicit, step.is_agent = explicit, node.role == "agent"
    step.calls = [span for item in calls for span in item.calls]
    step.tools = tools
    if nested and not calls and not explicit and all(item.via_tool is None for item in nested):
        step.kind = "group"
        step.inner = _settle(owned)
    return step


def _drop_hollow(items: list[Item]) -> list[Item]:
    """The items without agents that contain nothing: some write an agent beside what it did, at the same time."""
    empty = [
        item for item in items if item.is_agent and not (item.is_explicit or item.calls or item.tools or item.inner)
    ]
    if not empty:
        return items
    ordered = sorted(items, key=order_key)
    starts = [item.start for item in ordered]
    first_to_end: list[list[Item]] = [[]]  # from the last item on, the two that end first
    for item in reversed(ordered):
        first_to_end.append(sorted([*first_to_end[-1], item], key=lambda each: each.end)[:2])
    first_to_end.reverse()
    hollow = {
        item
        for item in empty
        if any(each is not item and each.end <= item.end for each in first_to_end[bisect_left(starts, item.start)])
    }
    return [item for item in items if item not in hollow]


def _settle(items: list[Item]) -> list[Item]:
    """Make steps of the model calls that no step owns, and give them their tool calls."""
    if not items:
        return []
    asked: list[Item] = []
    tools: list[Item] = []
    settled = _settle_level(items, asked, tools)
    by_id: dict[str, Item] = {}
    if tools:
        for step in asked:
            for span in step.calls:
                for message in span.conversation.answered:
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
    return sorted([*settled, *left], key=order_key) if left or len(settled) > 1 else settled


def _settle_level(items: list[Item], asked: list[Item], tools: list[Item]) -> list[Item]:
    groups: dict[int, Item] = {}
    waiting = items[::-1]
    while waiting:
        item = waiting.pop()
        if item.kind == "call":
            _make_call_step(item)
            if item.calls:
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


def _make_call_step(item: Item) -> None:
    """Make a step of a model call, with the span of the application around it."""
    item.kind = "step"
    item.name = item.span.name
    if item.cover is not None:
        item.name = item.name or read_cover_name(item.cover)
        item.span = item.cover
        item.start, item.end = item.cover.start, item.cover.end
        if item.cover not in item.wrappers:
            item.wrappers.insert(0, item.cover)


def _list_settled(items: Iterable[Item], groups: Container[int]) -> list[Item]:
    """The items without tool calls, and with what one of these groups holds in its place if that is less than two."""
    settled: list[Item] = []
    for item in items:
        if id(item) in groups and len(item.inner) < 2:
            settled += item.inner
        elif item.kind != "tool":
            settled.append(item)
    return settled


def _has_content(node: SpanNode) -> bool:
    attributes = node.span.attributes
    return (
        first(attributes, INPUT) is not None
        or first(attributes, OUTPUT) is not None
        or "gen_ai.input.messages" in attributes
        or bool(node.span.events)
    )
