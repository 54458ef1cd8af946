"""What a level of a run consists of: steps, groups of steps, and calls that no step owns yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from traces.otel.recover.forest import SpanNode

ItemKind: TypeAlias = Literal["step", "group", "call", "tool"]


class Item:
    """Something at one level of a run: a step, a group of items, or a model or tool call that no step owns yet.

    `cover` is the span of the application around a model call that is a step unless an agent or node owns the call. A
    group that `is_mixed` holds model calls that are not one conversation.
    """

    __slots__ = (
        "calls",
        "cover",
        "end",
        "holds_calls",
        "inner",
        "is_agent",
        "is_explicit",
        "is_mixed",
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
        self.cover: SpanNode | None = None
        self.name: str | None = None
        self.is_explicit = False
        self.is_agent = False
        self.is_soft = False
        self.holds_calls = False
        self.is_mixed = False
        self.start, self.end = span.start, span.end


def flatten(items: Iterable[Item]) -> Iterator[Item]:
    """The items, with those of a wrapper that holds model calls in its place: they belong to the step around it."""
    waiting = list(items)[::-1]
    while waiting:
        item = waiting.pop()
        if item.holds_calls:
            waiting += reversed(item.inner)
        else:
            yield item


def order_key(item: Item) -> tuple[int, int, str]:
    return item.start, item.end, item.span.id
