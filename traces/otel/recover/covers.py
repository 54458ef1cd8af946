"""The spans of the application around model calls: they are what its author calls steps.

A span covers the model calls of one conversation if it is a task, or beside others that cover some. Its siblings that
make no model call but return something are steps, too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from traces.otel.recover.concepts import FINISH_REASON, INPUT, INPUT_TOKENS, OUTPUT, first
from traces.otel.recover.content import WINDOW
from traces.otel.recover.forest import SpanNode
from traces.otel.recover.items import Item, flatten, order_key
from traces.otel.recover.messages import has_messages


def cover_calls(below: Sequence[tuple[SpanNode, list[Item]]]) -> list[tuple[SpanNode, list[Item]]]:
    """Wrap the model calls of a level in the spans of the application around them: tasks, or several at least."""
    is_bare = any(child.role == "llm" for child, _ in below)
    functions = {id(child) for child, items in below if not items and not is_bare and _is_function(child)}
    active = len(functions) + sum(bool(items) for _, items in below)
    wraps = [(active > 1 or _is_task(child)) and _wraps_one_call(child, items) for child, items in below]
    if not any(wraps):
        return list(below)
    covered: list[tuple[SpanNode, list[Item]]] = []
    for (child, items), is_cover in zip(below, wraps, strict=True):
        if is_cover:
            items = [_merge_calls(child, items)]
        elif id(child) in functions:
            items = [_merge_calls(child, [Item("call", child)])]
        covered.append((child, items))
    return covered


def drop_preparations(below: Sequence[tuple[SpanNode, list[Item]]]) -> Sequence[tuple[SpanNode, list[Item]]]:
    """A level without spans that call themselves model calls, but only hand their input on to the next one."""
    calls = [child for child, _ in below if child.role == "llm"]
    prepared = {id(earlier) for earlier, later in itertools.pairwise(calls) if _prepares(earlier, later)}
    return [pair for pair in below if id(pair[0]) not in prepared] if prepared else below


_QUOTED = re.compile(r"[^ -!#-&(-\[\]-~]")
"""What the text of a message is without, however it is quoted."""


def _prepares(earlier: SpanNode, later: SpanNode) -> bool:
    taken, returned, tokens = (first(earlier.span.attributes, keys) for keys in (INPUT, OUTPUT, INPUT_TOKENS))
    if earlier.children or tokens is not None or not (isinstance(taken, str) and isinstance(returned, str)):
        return False
    if has_messages(earlier.span):
        return False
    asked = later.conversation.asked if has_messages(later.span) else ()
    passage = max(_QUOTED.split(asked[-1].text), key=len) if asked else ""
    return passage.count(" ") >= WINDOW - 1 and passage in taken and passage in returned


def _is_function(node: SpanNode) -> bool:
    return node.role == "chain" and node.graph is None and first(node.span.attributes, OUTPUT) is not None


_TURN = re.compile(r"\w+ \d+")


def _wraps_one_call(node: SpanNode, items: list[Item]) -> bool:
    """Whether a span is there for one model call, or for several of one conversation. A turn of an agent is not."""
    if node.role not in ("chain", "other") or node.is_lost or node.graph is not None or _TURN.fullmatch(node.span.name):
        return False
    if any(item.is_mixed for item in items):
        return False
    flat = list(flatten(items))
    calls = [span for item in flat if item.kind == "call" for span in item.calls]
    if not calls or any(item.kind not in ("call", "tool") for item in flat):
        return False
    is_one = len(calls) == 1 or _is_one_conversation(sorted(calls, key=lambda call: call.start))
    for item in items:
        item.is_mixed = not is_one and item.is_soft
    return is_one


def _merge_calls(cover: SpanNode, items: list[Item]) -> Item:
    flat = sorted(flatten(items), key=order_key)
    calls = [item for item in flat if item.kind == "call"]
    merged = calls[0]
    merged.cover = cover
    merged.calls = [span for item in calls for span in item.calls]
    merged.tools = [span for item in flat for span in ([item.span] if item.kind == "tool" else item.tools)]
    merged.wrappers = list(dict.fromkeys(span for item in calls for span in item.wrappers))
    merged.end = max(item.end for item in calls)
    return merged


def _is_one_conversation(calls: Sequence[SpanNode]) -> bool:
    """Whether every model call but the first answers a tool call of the one before it, or was shown its answer."""
    return all(_continues(earlier, later) for earlier, later in itertools.pairwise(calls))


def _continues(earlier: SpanNode, later: SpanNode) -> bool:
    if "tool" in str(first(earlier.span.attributes, FINISH_REASON)):
        return True
    texts = {message.text for message in earlier.conversation.answered if message.text}
    ids = {call.id for message in earlier.conversation.answered for call in message.calls if call.id}
    return any(message.text in texts or not ids.isdisjoint(message.answers) for message in later.conversation.asked)


def _is_task(node: SpanNode) -> bool:
    return node.span.attributes.get("traceloop.span.kind") == "task"


_STATED_NAMES = ("traceloop.entity.name", "graph.node.name", "haystack.component.name", "ai.telemetry.functionId")


def read_cover_name(node: SpanNode) -> str | None:
    """The name that the application gave a step; None if it is only the name of a class that many steps share."""
    stated = first(node.span.attributes, _STATED_NAMES)
    if stated is not None:
        return str(stated)
    name = node.span.name
    above = node.parent.span.name.rpartition(".")[0] if node.parent is not None else ""
    if above and name.startswith(f"{above}."):
        return name.removeprefix(f"{above}.")
    return None if name.startswith("Runnable") or re.fullmatch(r"[A-Z]\w*(\(\w+\))?\.\w+", name) else name
