"""Agents that a tool runs, written beside the agent that called the tool: they are put below the tool's span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traces.model import Json
from traces.otel.recover.concepts import TOOL_ARGUMENTS, TOOL_RESULT, first, load_json
from traces.otel.recover.forest import SpanNode, sort_key, walk, walk_up


def place_tool_runs(nodes: list[SpanNode]) -> list[SpanNode]:
    """The nodes of a run, parents first, with such agents below the tool that was given their text or returned it."""
    levels = (node.children for node in nodes if len(node.children) > 1)
    beside = [node for level in levels for node in _find_beside(level)]
    if not beside:
        return nodes
    tools: dict[str, list[SpanNode]] = {}
    for node in nodes:
        if node.role == "tool":
            for text in _list_texts(node):
                tools.setdefault(text, []).append(node)
    for node in beside:
        around = [tool for text in _list_said(node) for tool in tools.get(text, ()) if _is_around(tool, node)]
        if around:
            _move(node, min(around, key=lambda tool: (tool.end - tool.start, tool.id)))
    return list(walk([node for node in nodes if node.parent is None]))


def _find_beside(level: Iterable[SpanNode]) -> Iterator[SpanNode]:
    """The agents of a level that ran while another one of it did. Levels are in the order of their starts."""
    last = -1
    for node in level:
        if node.role == "agent":
            if node.end <= last:
                yield node
            last = max(last, node.end)


def _list_texts(tool: SpanNode) -> Iterator[str]:
    """What a tool was given, argument by argument, and what it returned."""
    attributes = tool.span.attributes
    yield from _list_strings(load_json(first(attributes, TOOL_ARGUMENTS)))
    yield from _list_strings(load_json(first(attributes, TOOL_RESULT)))


def _list_strings(value: Json) -> Iterable[str]:
    values: Sequence[Json] = list(value.values()) if isinstance(value, dict) else [value]
    return [text for each in values if isinstance(each, str) and (text := each.strip())]


def _list_said(agent: SpanNode) -> list[str]:
    """What an agent was asked first, and what it answered last."""
    talks = [node.conversation for node in walk([agent]) if node.role in ("agent", "llm")]
    asked = [message.text for talk in talks for message in talk.asked[-1:]][:1]
    answered = [message.text for talk in talks for message in talk.answered[-1:]][-1:]
    return [text for each in (*asked, *answered) if (text := each.strip())]


def _is_around(tool: SpanNode, agent: SpanNode) -> bool:
    return tool.start <= agent.start and agent.end <= tool.end and agent not in walk_up(tool)


def _move(agent: SpanNode, tool: SpanNode) -> None:
    if agent.parent is not None:
        agent.parent.children.remove(agent)
    agent.parent, agent.agent = tool, tool.agent
    tool.children.append(agent)
    tool.children.sort(key=sort_key)
