"""Spans by hand: trees of what frameworks write, as short as they can be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from traces.model import ExecutionTrace, Json
from traces.otel.recover.build import build_trace
from traces.otel.recover.coverage import Coverage
from traces.otel.spans import Span


class Tree:
    """A span from `start` to `end` with those below it. Its id is its name, numbered if it comes again."""

    def __init__(
        self, name: str, start: int, end: int, *below: Tree, attributes: Mapping[str, Json] | None = None
    ) -> None:
        self.name, self.start, self.end, self.below = name, start, end, below
        self.attributes = dict(attributes or {})


def chain(name: str, start: int, end: int, *below: Tree, **attributes: Json) -> Tree:
    """A wrapper of OpenInference. Underscores of a keyword stand for dots."""
    return Tree(name, start, end, *below, attributes={"openinference.span.kind": "CHAIN", **_dotted(attributes)})


def agent(name: str, start: int, end: int, *below: Tree, **attributes: Json) -> Tree:
    named = {"openinference.span.kind": "AGENT", "agent.name": name}
    return Tree(name, start, end, *below, attributes={**named, **_dotted(attributes)})


def call(
    start: int,
    end: int,
    *,
    system: str = "",
    asked: str = "",
    answered: str = "",
    tool_call: str = "",
    result: str = "",
) -> Tree:
    """A model call. `tool_call` is the id of the tool call that it asks for, `result` of the one it is answered."""
    before: list[Json] = [{"role": "system", "content": system}] if system else []
    before.append({"role": "user", "content": asked})
    if result:
        before.append({"role": "tool", "tool_call_id": result, "content": "found"})
    parts: list[Json] = [{"type": "text", "content": answered}] if answered else []
    if tool_call:
        parts.append({"type": "tool_call", "id": tool_call, "name": "search", "arguments": {}})
    attributes: dict[str, Json] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(before),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}]),
    }
    return Tree("chat", start, end, attributes=attributes)


def node(name: str, start: int, end: int, *below: Tree, step: int, **attributes: Json) -> Tree:
    """A node of LangGraph, as OpenInference writes it."""
    metadata = {"langgraph_node": name, "langgraph_step": step, "langgraph_checkpoint_ns": f"{name}:{start}"}
    metadata |= {"langgraph_triggers": attributes.pop("triggers", [f"branch:to:{name}"])}
    return chain(name, start, end, *below, metadata=json.dumps(metadata), **attributes)


def list_spans(*roots: Tree) -> list[Span]:
    seen: Counter[str] = Counter()
    spans: list[Span] = []

    def add(tree: Tree, parent: str | None) -> None:
        seen[tree.name] += 1
        name = tree.name if seen[tree.name] == 1 else f"{tree.name}-{seen[tree.name]}"
        attributes = dict(tree.attributes)
        spans.append(Span("run", name, parent, tree.name, 1, tree.start, tree.end, attributes, (), False, "", "test"))
        for each in tree.below:
            add(each, name)

    for root in roots:
        add(root, None)
    return spans


def build(*roots: Tree, lost: Iterable[str] = ()) -> ExecutionTrace:
    """The trace of these spans, without the lost ones."""
    gone = set(lost)
    trace = build_trace([span for span in list_spans(*roots) if span.span_id not in gone], Coverage())
    assert trace is not None
    return trace


def edges(trace: ExecutionTrace) -> dict[str, set[str]]:
    """The control predecessors of each step."""
    return {step.id: {edge.source for edge in step.edges if edge.kind == "control"} for step in trace.steps}


def _dotted(attributes: dict[str, Json]) -> dict[str, Json]:
    return {name.replace("_", "."): value for name, value in attributes.items()}
