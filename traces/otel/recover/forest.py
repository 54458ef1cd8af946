"""The spans of one run as trees, whatever was lost on the way or exported twice."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from traces.otel.recover.concepts import AGENT_NAME, Role, first, read_role
from traces.otel.recover.graph_place import GraphPlace, read_graph_place
from traces.otel.recover.messages import Conversation, read_conversation
from traces.otel.spans import Span


class SpanNode:
    """A span in its tree, with what it stands for. `is_lost` stands for a parent that was not exported.

    `agent` is the nearest span of an agent above it.
    """

    __slots__ = (
        "_conversation",
        "agent",
        "children",
        "end",
        "graph",
        "is_lost",
        "name",
        "parent",
        "role",
        "span",
        "start",
    )

    def __init__(self, span: Span, *, is_lost: bool = False) -> None:
        self.span: Final = span
        self.is_lost: Final = is_lost
        self._conversation: Conversation | None = None
        self.parent: SpanNode | None = None
        self.agent: SpanNode | None = None
        self.children: list[SpanNode] = []
        self.start = span.start_ns or 0
        self.end = max(span.end_ns or 0, self.start)
        self.role: Role = "other" if is_lost else read_role(span)
        self.graph: GraphPlace | None = None if is_lost else read_graph_place(span)
        self.name: str | None = None if is_lost else _read_name(span, self.role)

    @property
    def id(self) -> str:
        return self.span.span_id

    @property
    def conversation(self) -> Conversation:
        """The messages of a model call or an agent run."""
        if self._conversation is None:
            self._conversation = read_conversation(self.span)
        return self._conversation


def build_forest(spans: Iterable[Span], dropped: Counter[str]) -> list[SpanNode]:
    """The nodes of the trees of these spans, parents first and each level in the order of start times.

    Counts spans that were dropped, and why.
    """
    chosen: dict[str, Span] = {}
    for span in spans:
        if span.attributes.get("logfire.span_type") == "pending_span":
            dropped["written before the span ended"] += 1
            continue
        known = chosen.get(span.span_id)
        if known is None:
            chosen[span.span_id] = span
            continue
        dropped["exported twice"] += 1
        if known.end_ns is None and span.end_ns is not None:
            chosen[span.span_id] = span
    nodes = {span_id: SpanNode(span) for span_id, span in chosen.items()}
    lost: dict[str, SpanNode] = {}
    roots: list[SpanNode] = []
    for node in nodes.values():
        parent_id = node.span.parent_id
        if parent_id is None or parent_id == node.id:
            roots.append(node)
            continue
        parent = nodes.get(parent_id) or lost.get(parent_id)
        if parent is None:
            stand_in = node.span._replace(
                span_id=parent_id, parent_id=None, name="", attributes={}, links=(), events=()
            )
            parent = lost[parent_id] = SpanNode(stand_in, is_lost=True)
            roots.append(parent)
        node.parent = parent
        parent.children.append(node)
    reached = list(walk(roots))
    if len(reached) < len(nodes) + len(lost):
        roots += _break_cycles(nodes.values(), reached)
        reached = list(walk(roots))
    for node in reversed(reached):
        if children := node.children:
            if node.is_lost or node.span.end_ns is None:
                node.end = max(node.end, *[child.end for child in children])
            if node.is_lost:
                node.start = min([child.start for child in children])
            if len(children) > 1:
                children.sort(key=sort_key)
    roots.sort(key=sort_key)
    ordered = list(walk(_place_lost(roots) if lost else roots))
    for node in ordered:
        if (parent := node.parent) is not None:
            node.agent = parent if parent.role == "agent" else parent.agent
    return ordered


def walk(roots: Sequence[SpanNode]) -> Iterator[SpanNode]:
    """All nodes, parents before their children."""
    waiting = list(reversed(roots))
    while waiting:
        node = waiting.pop()
        yield node
        if node.children:
            waiting += node.children[::-1]


def walk_up(node: SpanNode | None) -> Iterator[SpanNode]:
    """A node and its ancestors."""
    while node is not None:
        yield node
        node = node.parent


def take_apart(nodes: Iterable[SpanNode]) -> None:
    """Cut the nodes from each other, so that they are freed at once: parents and children refer to each other."""
    for node in nodes:
        node.parent = node.agent = None
        node.children = []


def sort_key(node: SpanNode) -> tuple[int, int, str]:
    return node.start, node.end, node.id


def _place_lost(roots: list[SpanNode]) -> list[SpanNode]:
    """Put what a lost span held below the deepest span around it in time, as long as only one comes into question.

    Roots are ordered by start, and so are the questions to each level.
    """
    whole: dict[str, list[SpanNode]] = {}
    for root in roots:
        if not root.is_lost:
            whole.setdefault(root.span.trace_id, []).append(root)
    top = {trace_id: _Level(level) for trace_id, level in whole.items()}
    below: dict[tuple[SpanNode, str], _Level] = {}
    kept: list[SpanNode] = []
    for root in roots:
        trace_id = root.span.trace_id
        above: SpanNode | None = None
        level = top.get(trace_id) if root.is_lost else None
        while level is not None and len(around := level.find_around(root)) == 1:
            above = around[0]
            level = below.get((above, trace_id))
            if level is None:
                inner = [each for each in above.children if each.role != "llm" and each.span.trace_id == trace_id]
                level = below[above, trace_id] = _Level(inner)
        if above is None or level is None:
            kept.append(root)
        else:
            root.parent = above
            above.children.append(root)
            level.add(root)
    for node, _ in below:
        node.children.sort(key=sort_key)
    return kept


class _Level:
    """Spans of one trace, side by side, and which of them are around another one in time."""

    def __init__(self, nodes: Iterable[SpanNode]) -> None:
        ordered = sorted(nodes, key=sort_key)
        self._starts = [node.start for node in ordered]
        self._last: list[list[SpanNode]] = [[]]  # of the first none, one, two and so on, the two that end last
        for node in ordered:
            self._last.append(_choose_last(*self._last[-1], node))
        self._added: list[SpanNode] = []

    def add(self, node: SpanNode) -> None:
        """Add a span that starts no later than any that is asked for after it."""
        self._added = _choose_last(*self._added, node)

    def find_around(self, node: SpanNode) -> list[SpanNode]:
        """The spans around another one in time; of several, two."""
        last = self._last[bisect_right(self._starts, node.start)]
        return [each for each in _choose_last(*last, *self._added) if node.end <= each.end]


def _choose_last(*nodes: SpanNode) -> list[SpanNode]:
    return sorted(nodes, key=lambda node: node.end, reverse=True)[:2]


def _break_cycles(nodes: Iterable[SpanNode], below_roots: Iterable[SpanNode]) -> list[SpanNode]:
    """Spans that are their own ancestors become roots."""
    reached = set(map(id, below_roots))
    added: list[SpanNode] = []
    for node in nodes:
        if id(node) in reached:
            continue
        if node.parent is not None:
            node.parent.children.remove(node)
            node.parent = None
        added.append(node)
        reached.update(id(each) for each in walk([node]))
    return added


_NAMED_BY_SPAN = frozenset(
    ("langfuse.observation.type", "langsmith.span.kind", "mlflow.spanType", "agentops.span.kind")
)


def _read_name(span: Span, role: Role) -> str | None:
    """The name of the agent or node, if the attributes or a well-known span name state one."""
    if (executor := span.attributes.get("executor.id")) is not None:
        return str(executor)
    if span.name.startswith("run node "):
        return span.name.removeprefix("run node ")
    if span.name.startswith("agent_run ["):
        return span.name.removeprefix("agent_run [").removesuffix("]")
    if role in ("agent", "llm") and (name := first(span.attributes, AGENT_NAME)) is not None:
        return str(name)
    if role in ("agent", "workflow") and (entity := span.attributes.get("traceloop.entity.name")):
        return str(entity)
    if role == "agent" and isinstance(name := span.attributes.get("name"), str):
        return name
    if role == "agent" and not _NAMED_BY_SPAN.isdisjoint(span.attributes):
        return span.name
    return None


def is_explicit(node: SpanNode) -> bool:
    """Whether a span is one execution of a node of a graph, as the instrumentation says."""
    if node.graph is not None:
        above = node.parent.graph if node.parent is not None else None
        return above is None or above.namespace != node.graph.namespace
    return "executor.id" in node.span.attributes or node.span.name.startswith("run node ")
