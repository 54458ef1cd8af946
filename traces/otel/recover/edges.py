"""Who followed whom: all evidence together, the strongest first.

1. Links between spans.
2. Names: LangGraph's triggers and routes, static graphs, hand-overs.
3. Calls: what a step called by a tool follows it, and its next model call follows what was called.
4. Otherwise text, and time where there is no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from math import inf

from traces.model import Edge
from traces.otel.recover.concepts import INPUT, OUTPUT, first, load_json
from traces.otel.recover.content import GivenTexts, TextIndex
from traces.otel.recover.forest import SpanNode, walk_up
from traces.otel.recover.messages import Conversation
from traces.otel.recover.order import Draft, Evidence

CONFIDENCE = {
    "link": 1.0,
    "trigger": 1.0,
    "route": 1.0,
    "graph": 0.95,
    "name": 0.95,
    "loop": 0.95,
    "superstep": 0.8,
    "text": 0.8,
    "nesting": 0.7,
    "time": 0.6,
}


class Texts:
    """What a step read and returned, as texts."""

    __slots__ = ("conversations", "inputs", "outputs")

    def __init__(self, draft: Draft) -> None:
        self.conversations: list[Conversation] = [call.conversation for call in draft.calls]
        item = draft.item
        if not draft.calls and item.span.role == "agent":
            self.conversations = [item.span.conversation]
        asked = [message.text for each in self.conversations for message in each.asked]
        answered = [message.text for each in self.conversations for message in each.answered if message.text]
        spans = [each.span.attributes for each in item.wrappers]
        if not asked:
            asked = [_to_text(value) for value in (first(each, INPUT) for each in spans) if value is not None]
        if draft.number == 1 or not answered:
            answered += [_to_text(value) for value in (first(each, OUTPUT) for each in spans[:1]) if value is not None]
        instructions = [each.system for each in self.conversations if each.system]  # templates may be filled in
        self.inputs, self.outputs = asked + instructions, answered


def find_edges(
    drafts: Sequence[Draft], nodes: Sequence[SpanNode], texts: Mapping[Draft, Texts]
) -> dict[Draft, list[Edge]]:
    """The edges to each step's predecessors. What a step only read, and did not follow, is an edge of kind data."""
    sources = find_sources(drafts, texts)
    read_by_others = Counter(source for read in sources.values() for source in read)
    linked = _find_linked(drafts, nodes)
    linked_by_others = Counter(each for found in linked.values() for each in found)
    ancestors = _Ancestors()
    edges: dict[Draft, list[Edge]] = {}
    for draft in drafts:
        read = sources[draft]
        if found := {each for each in linked[draft] if each.place < draft.place}:
            control: dict[Draft, Evidence] = dict.fromkeys(found, "link")
            earlier = ancestors.collect(draft, found)
            candidates: dict[Draft, Evidence] = {**draft.before, **dict.fromkeys(read, "text")}
            for each, evidence in candidates.items():  # a join may be linked to the last arrival only
                is_open = evidence == "text" or (evidence == "time" and not read_by_others[each])
                if is_open and not linked_by_others[each] and not is_among(earlier, each, draft):
                    control[each] = evidence
        elif draft.stated is not None and not _is_ambiguous(draft.stated):
            control = dict(draft.stated)
        else:
            control = _fuse(draft, sources, read_by_others)
            if len(control) > 1:
                earlier = ancestors.collect(draft, control)
                control = {each: why for each, why in control.items() if not is_among(earlier, each, draft)}
        ancestors.add(draft, control)
        edges[draft] = [
            Edge(source=each.id, evidence=evidence, confidence=CONFIDENCE[evidence])
            for each, evidence in control.items()
        ] + [Edge(source=each.id, kind="data", evidence="text", confidence=CONFIDENCE["text"]) for each in read]
    return edges


class _Ancestors:
    """The steps before each step, as bits: bit n of a step's set is the step n places before it.

    Steps more than REACH places earlier are forgotten, which bounds both time and memory.
    """

    def __init__(self) -> None:
        self._sets: dict[int, int] = {}

    def collect(self, draft: Draft, before: Iterable[Draft]) -> int:
        """The ancestors of the steps before one."""
        found = 0
        for each in before:
            if (distance := draft.place - each.place) < REACH:
                found |= self._sets[each.place] << distance
        return found & _WITHIN_REACH

    def add(self, draft: Draft, before: Collection[Draft]) -> None:
        """Remember the steps before one, and their ancestors."""
        found = self.collect(draft, before)
        for each in before:
            if (distance := draft.place - each.place) < REACH:
                found |= 1 << distance
        self._sets[draft.place] = found
        self._sets.pop(draft.place - REACH, None)


REACH = 1 << 14
_WITHIN_REACH = (1 << REACH) - 1


def is_among(ancestors: int, draft: Draft, later: Draft) -> bool:
    """Whether a step is among the ancestors that were collected for a later one."""
    return bool(ancestors >> (later.place - draft.place) & 1)


def _is_ambiguous(stated: Mapping[Draft, Evidence]) -> bool:
    """Whether all that is known is that one of several steps came before."""
    return len(stated) > 1 and set(stated.values()) == {"superstep"}


def _fuse(
    draft: Draft, sources: Mapping[Draft, list[Draft]], read_by_others: Mapping[Draft, int]
) -> dict[Draft, Evidence]:
    """A step follows those whose text it read. It also follows the one step before it if nobody read that one's text.

    Not so if that is an execution of the same node that read the same: a fan-out with few workers is no chain. Of
    several steps before it that nobody read, each may as well have been the end of its branch, unless the step read
    another one of the same node: whoever collects from a fan-out collects from all of it.
    """
    before = draft.before if draft.stated is None else draft.stated
    control: dict[Draft, Evidence] = dict.fromkeys(sources[draft], "text")
    collected = {each.item.name for each in control if each in before} - {None}
    control |= {
        each: evidence
        for each, evidence in before.items()
        if each not in control and each.item.name in collected and not read_by_others.get(each)
    }
    lone = next(iter(before)) if len(before) == 1 else None
    if not control or (lone is not None and not read_by_others.get(lone) and not _are_siblings(lone, draft, sources)):
        control = {**before, **control}
    return control


def _are_siblings(one: Draft, other: Draft, sources: Mapping[Draft, list[Draft]]) -> bool:
    return one.item.name is not None and one.item.name == other.item.name and sources[one] == sources[other]


def find_sources(drafts: Sequence[Draft], texts: Mapping[Draft, Texts]) -> dict[Draft, list[Draft]]:
    """For each step the steps whose text it read: of several that produced a text, the latest that had ended.

    Only steps with the same caller count. Among these, the segments of a step follow each other, and none of them reads
    what another one produced.
    """
    given = GivenTexts(text for draft in drafts[:1] for text in texts[draft].inputs)
    sources: dict[Draft, list[Draft]] = {draft: [] for draft in drafts}
    by_caller: dict[Draft | None, list[Draft]] = {}
    for draft in drafts:
        by_caller.setdefault(draft.caller, []).append(draft)
    for scope in by_caller.values():
        index = TextIndex(given)
        last_start = max(draft.start for draft in scope)
        first_end: float = inf
        for _, same_item in groupby(scope, key=lambda draft: draft.item):
            segments = list(same_item)
            for draft in segments:
                if first_end <= draft.start:
                    sources[draft] = _choose_producers(draft, drafts, index, texts[draft].inputs)
            for draft in segments:
                if draft.end <= last_start:
                    index.add(draft.place, texts[draft].outputs)
                    first_end = min(first_end, draft.end)
    return sources


def _choose_producers(draft: Draft, drafts: Sequence[Draft], index: TextIndex, inputs: Iterable[str]) -> list[Draft]:
    """The steps whose texts a step read. Who produced all of a text is not joined by those who have a part of it."""

    def find_latest(places: Iterable[int]) -> Draft | None:
        ended = (each for each in map(drafts.__getitem__, places) if each.end <= draft.start)
        return max(ended, key=lambda each: each.start, default=None)

    found: set[Draft | None] = set()
    for text in dict.fromkeys(inputs):
        whole = find_latest(index.find_whole(text))
        found |= {whole} if whole is not None else set(map(find_latest, index.find_passages(text)))
    return sorted((each for each in found if each is not None), key=lambda each: each.place)


def _find_owners(drafts: Sequence[Draft]) -> dict[str, Draft]:
    """The step that each span belongs to: its own, or the one that it is folded into."""
    owners: dict[str, Draft] = {}
    for draft in drafts:
        for node in draft.item.wrappers:
            owners.setdefault(node.id, draft)
    return owners


def _find_linked(drafts: Sequence[Draft], nodes: Sequence[SpanNode]) -> dict[Draft, set[Draft]]:
    """For each step the steps that its spans link to, also through spans of the transport between them."""
    if not any(node.span.links for node in nodes):
        return {draft: set() for draft in drafts}
    by_id = {node.span.span_id: node for node in nodes}
    owners = _find_owners(drafts)
    carriers: dict[str | None, SpanNode] = {}  # of spans of the transport, the nearest one at or above with links
    for node in nodes:
        if node.role == "other" and node.id not in owners:
            carrier = node if node.span.links else carriers.get(node.parent.id if node.parent else None)
            if carrier is not None:
                carriers[node.id] = carrier
    return {draft: _follow_links(draft, by_id, owners, carriers) for draft in drafts}


def _follow_links(
    draft: Draft, nodes: Mapping[str, SpanNode], owners: Mapping[str, Draft], carriers: Mapping[str | None, SpanNode]
) -> set[Draft]:
    if draft.number > 1:
        return set()
    waiting = [link.span_id for node in draft.item.wrappers for link in node.span.links]
    above = draft.item.wrappers[-1].parent
    while above is not None and (carrier := carriers.get(above.id)) is not None:
        waiting += [link.span_id for link in carrier.span.links]
        above = carrier.parent
    seen: set[str] = set()
    found: set[Draft] = set()
    while waiting:
        target = waiting.pop()
        if target not in nodes:
            continue
        for node in walk_up(nodes[target]):
            if node.id in seen:
                break
            seen.add(node.id)
            if node.id in owners:
                if owners[node.id] is not draft:
                    found.add(owners[node.id])
                break
            waiting += [link.span_id for link in node.span.links]
    return found


def _to_text(value: object) -> str:
    loaded = load_json(value)
    if isinstance(loaded, dict) and isinstance(loaded.get("inputs", loaded.get("outputs")), dict | str):
        loaded = loaded.get("inputs", loaded.get("outputs"))
    return "\n".join(_list_texts(loaded))


def _list_texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _list_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _list_texts(each)
    elif value is not None:
        yield str(value)
