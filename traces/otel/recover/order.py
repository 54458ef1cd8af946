"""Steps in the order of nesting and time: the steps of a run, in segments, each with those it came right after.

Every level of spans is ordered by itself: what ran in one branch never precedes what ran in another one. A step that
contains others is cut into segments where they were called, so that its later model calls follow what they called.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeAlias

from traces.otel.recover.forest import SpanNode
from traces.otel.recover.items import Item

Evidence: TypeAlias = str
Named: TypeAlias = Callable[[Sequence[Item]], Mapping[int, list[tuple[Item, Evidence]]]]
"""Predecessors among the items of one level, by `id(item)`, where names or static graphs state them."""


class Draft:
    """A step, or a segment of one, before its content is read.

    `before` are its predecessors by nesting and time, `stated` those that names or calls state; None if they do not.
    """

    __slots__ = ("before", "caller", "calls", "end", "id", "item", "number", "place", "start", "stated", "tools")

    def __init__(self, item: Item, number: int, before: Mapping[Draft, Evidence], caller: Draft | None) -> None:
        self.item = item
        self.number = number
        self.id = item.span.id if number == 1 else f"{item.span.id}#{number}"
        self.before = dict(before)
        self.stated: dict[Draft, Evidence] | None = None
        self.caller = caller
        self.calls: list[SpanNode] = []
        self.tools: list[SpanNode] = []
        self.start, self.end = item.start, item.end
        self.place = 0


Placing: TypeAlias = "Generator[Placing, list[Draft], list[Draft]]"
"""Places items and returns the steps that end them. What it yields is run first: items may be nested thousands deep."""


class _Arranger:
    def __init__(self, named: Named) -> None:
        self.named = named
        self.drafts: list[Draft] = []

    def run(self, placing: Placing) -> None:
        """Run what places the items of a run, and what that yields, on a stack of our own."""
        running, exits = [placing], None
        while running:
            try:
                running.append(running[-1].send(exits))  # type: ignore[arg-type]
                exits = None
            except StopIteration as done:
                exits = done.value
                running.pop()

    def arrange(self, items: Sequence[Item], before: Mapping[Draft, Evidence], caller: Draft | None) -> Placing:
        """Place the items of one level after `before`; returns the steps that end the level."""
        ordered = sorted(items, key=lambda item: (item.start, item.end, item.span.id))
        known = self.named(ordered)
        exits: dict[int, list[Draft]] = {}
        for item, earlier in zip(ordered, list_immediately_before(ordered), strict=True):
            after = {draft: "time" for each in earlier for draft in exits[id(each)]} or dict(before)
            stated: dict[Draft, Evidence] | None = None
            if id(item) in known:
                placed = ((each, evidence) for each, evidence in known[id(item)] if id(each) in exits)
                stated = {draft: evidence for each, evidence in placed for draft in exits[id(each)]} or dict(before)
            exits[id(item)] = yield self.place(item, after, caller, stated)
        last = max((item.start for item in ordered), default=0)
        ending = [item for item in ordered if item.end > last] or list(ordered[-1:])
        return [draft for item in ending for draft in exits[id(item)]]

    def place(
        self,
        item: Item,
        before: Mapping[Draft, Evidence],
        caller: Draft | None,
        stated: Mapping[Draft, Evidence] | None = None,
    ) -> Placing:
        if item.kind == "group":
            return (yield self.arrange(item.inner, before if stated is None else stated, caller))
        draft = self.add(item, 1, before, caller)
        draft.stated = None if stated is None else dict(stated)
        if not item.inner:
            draft.calls, draft.tools = item.calls, item.tools
            return [draft]
        return (yield self.cut(item, draft))

    def cut(self, item: Item, draft: Draft) -> Placing:
        """Cut a step into segments at the steps that it contains."""
        elements: list[tuple[int, Item | SpanNode]] = [(inner.start, inner) for inner in item.inner]
        elements += [(call.start, call) for call in item.calls]
        elements.sort(key=lambda pair: pair[0])
        segments = [draft]
        called: list[Item] = []
        for _, element in elements:
            if isinstance(element, Item):
                called.append(element)
                continue
            if called:
                exits = yield self.call(called, segments[-1])
                called = []
                segments[-1].end = min(
                    segments[-1].end, min((each.end for each in segments[-1].calls), default=item.end)
                )
                segment = self.add(item, len(segments) + 1, dict.fromkeys(exits, "loop"), draft.caller)
                segment.start, segment.stated = element.start, segment.before
                segments.append(segment)
            segments[-1].calls.append(element)
        starts = [each.start for each in segments[1:]]
        for tool in item.tools:
            segments[bisect_right(starts, tool.start)].tools.append(tool)
        return (yield self.call(called, segments[-1])) if called else [segments[-1]]

    def call(self, items: Sequence[Item], caller: Draft) -> Placing:
        """Place what a segment called: by tools each for itself, by its code in order."""
        exits: list[Draft] = []
        for item in items:
            if item.via_tool is not None:
                exits += yield self.place(item, {caller: "loop"}, caller, {caller: "loop"})
        rest = [item for item in items if item.via_tool is None]
        return exits + ((yield self.arrange(rest, {caller: "nesting"}, caller)) if rest else [])

    def add(self, item: Item, number: int, before: Mapping[Draft, Evidence], caller: Draft | None) -> Draft:
        draft = Draft(item, number, before, caller)
        draft.place = len(self.drafts)
        self.drafts.append(draft)
        return draft


def arrange(items: Sequence[Item], named: Named) -> list[Draft]:
    """The steps of a run, predecessors first."""
    arranger = _Arranger(named)
    arranger.run(arranger.arrange(items, {}, None))
    return arranger.drafts


def list_immediately_before(ordered: Sequence[Item]) -> list[list[Item]]:
    """For each item, those that ended before it started, without those that precede another of them.

    Items are ordered by start. Takes the time of sorting, plus what it returns.
    """
    by_end = sorted((item.end, index) for index, item in enumerate(ordered))
    latest: list[tuple[int, int]] = []  # of the items that ended so far, the one that started last
    for _, index in by_end:
        latest.append(max(latest[-1], (ordered[index].start, index)) if latest else (ordered[index].start, index))
    found: list[list[Item]] = []
    for position, item in enumerate(ordered):
        count = bisect_left(by_end, (item.start, position))  # of items without a duration, those that come before it
        before: list[Item] = []
        for at in range(count - 1, -1, -1):
            if by_end[at] < latest[count - 1]:
                break
            before.append(ordered[by_end[at][1]])
        found.append(before)
    return found
