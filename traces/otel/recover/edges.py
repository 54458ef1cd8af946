"""Who followed whom: all evidence together, the strongest first.

1. Links between spans.
2. Names: LangGraph's triggers and routes, static graphs, hand-overs.
3. Calls: what a step called by a tool follows it, and its next model call follows what was called.
4. Otherwise text, and time where there is no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from traces.model import Edge
from traces.otel.recover.concepts import INPUT, OUTPUT, first, load_json
from traces.otel.recover.content import TextIndex
from traces.otel.recover.forest import SpanNode, walk, walk_up
from traces.otel.recover.messages import Conversation, read_conversation
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

    __slots__ = ("answered", "asked", "conversations", "inputs", "outputs")

    def __init__(self, draft: Draft) -> None:
        self.conversations: list[Conversation] = [read_conversation(call.span) for call in draft.calls]
        item = draft.item
        if not draft.calls and item.span.role == "agent":
            self.conversations = [read_conversation(item.span.span)]
        asked = [message.text for each in self.conversations for message in each.asked]
        answered = [message.text for each in self.conversations for message in each.answered if message.text]
        spans = [each.span.attributes for each in item.wrappers]
        if not asked:
            asked = [_to_text(value) for value in (first(each, INPUT) for each in spans) if value is not None]
        if draft.number == 1 or not answered:
            answered += [_to_text(value) for value in (first(each, OUTPUT) for each in spans[:1]) if value is not None]
        self.inputs, self.outputs = asked, answered


def find_edges(
    drafts: Sequence[Draft], roots: Sequence[SpanNode], texts: Mapping[Draft, Texts]
) -> dict[Draft, list[Edge]]:
    """The edges to each step's predecessors. What a step only read, and did not follow, is an edge of kind data."""
    owners = _find_owners(drafts)
    nodes = {node.id: node for node in walk(roots)}
    readers = _find_sources(drafts, texts)
    read_by_others: dict[Draft, int] = {}
    for sources in readers.values():
        for source in sources:
            read_by_others[source] = read_by_others.get(source, 0) + 1
    edges: dict[Draft, list[Edge]] = {}
    ancestors: dict[Draft, set[Draft]] = {}
    linked = {draft: _follow_links(draft, nodes, owners) for draft in drafts}
    for draft in drafts:
        read = readers[draft]
        if found := {each for each in linked[draft] if each.place < draft.place}:
            control = dict.fromkeys(found, "link")
            for each, evidence in draft.before.items():  # a join may be linked to the last arrival only
                is_waiting = not any(each in linked[other] for other in drafts if other is not draft)
                if (
                    each not in control
                    and evidence == "time"
                    and is_waiting
                    and not _is_ancestor(each, found, ancestors)
                ):
                    control[each] = "time"
        elif draft.stated is not None and not _is_ambiguous(draft.stated):
            control = dict(draft.stated)
        else:
            control = _fuse(draft.before if draft.stated is None else draft.stated, read, read_by_others)
            control = {
                each: evidence
                for each, evidence in control.items()
                if not _is_ancestor(each, control.keys() - {each}, ancestors)
            }
        ancestors[draft] = set(control).union(*(ancestors[each] for each in control))
        edges[draft] = [
            Edge(source=each.id, evidence=evidence, confidence=CONFIDENCE[evidence])
            for each, evidence in control.items()
        ] + [Edge(source=each.id, kind="data", evidence="text", confidence=CONFIDENCE["text"]) for each in read]
    return edges


def _is_ambiguous(stated: Mapping[Draft, Evidence]) -> bool:
    """Whether all that is known is that one of several steps came before."""
    return len(stated) > 1 and set(stated.values()) == {"superstep"}


def _fuse(
    before: Mapping[Draft, Evidence], read: Iterable[Draft], read_by_others: Mapping[Draft, int]
) -> dict[Draft, Evidence]:
    """A step follows those whose text it read. It also follows the one step before it if nobody read that one's text.

    Of several steps before it that nobody read, each may as well have been the end of its branch, unless the step read
    another one of the same node: whoever collects from a fan-out collects from all of it.
    """
    control: dict[Draft, Evidence] = dict.fromkeys(read, "text")
    collected = {each.item.name for each in control if each in before} - {None}
    control |= {
        each: evidence
        for each, evidence in before.items()
        if each not in control and each.item.name in collected and not read_by_others.get(each)
    }
    if not control or (len(before) == 1 and not any(map(read_by_others.get, before))):
        control = {**before, **control}
    return control


def _is_ancestor(draft: Draft, others: Iterable[Draft], ancestors: dict[Draft, set[Draft]]) -> bool:
    return any(draft in ancestors[each] for each in others)


def _find_sources(drafts: Sequence[Draft], texts: Mapping[Draft, Texts]) -> dict[Draft, list[Draft]]:
    """For each step the steps whose text it read: of several that produced a text, the latest."""
    given = [text for draft in drafts[:1] for text in texts[draft].inputs]
    index = TextIndex(given)
    for draft in drafts:
        index.add(draft.place, texts[draft].outputs)
    index.finish()
    sources: dict[Draft, list[Draft]] = {}
    for draft in drafts:
        found: dict[Draft, None] = {}
        for places in index.find_producers(texts[draft].inputs):
            earlier = [
                drafts[place]
                for place in places
                if place < draft.place
                and drafts[place].caller is draft.caller
                and drafts[place].item is not draft.item
                and drafts[place].end <= draft.start
            ]
            if earlier:
                found[max(earlier, key=lambda each: each.start)] = None
        sources[draft] = list(found)
    return sources


def _find_owners(drafts: Sequence[Draft]) -> dict[str, Draft]:
    """The step that each span belongs to: its own, or the one that it is folded into."""
    owners: dict[str, Draft] = {}
    for draft in drafts:
        for node in draft.item.wrappers:
            owners.setdefault(node.id, draft)
    return owners


def _follow_links(draft: Draft, nodes: dict[str, SpanNode], owners: dict[str, Draft]) -> set[Draft]:
    """The steps that the spans of a step link to, also through spans of the transport between them."""
    if draft.number > 1:
        return set()
    envelope = list(draft.item.wrappers)
    above = draft.item.wrappers[-1].parent
    while above is not None and above.role == "other" and above.id not in owners:
        envelope.append(above)
        above = above.parent
    waiting = [link.span_id for node in envelope for link in node.span.links]
    seen: set[str] = set()
    found: set[Draft] = set()
    while waiting:
        target = waiting.pop()
        if target in seen or target not in nodes:
            continue
        seen.add(target)
        for node in walk_up(nodes[target]):
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
