"""Where LangGraph ran a span, as its metadata say in the ways of each instrumentation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traces.model import Json
from traces.otel.recover.concepts import load_json
from traces.otel.spans import Span


class GraphPlace:
    """Where LangGraph ran a span: node, superstep, what triggered it, and the namespace of this execution."""

    __slots__ = ("namespace", "node", "step", "triggers")

    def __init__(self, node: str, namespace: str, step: int | None, triggers: tuple[str, ...]) -> None:
        self.node = node
        self.namespace = namespace
        self.step = step
        self.triggers = triggers


_PREFIXES = ("traceloop.association.properties.", "langsmith.metadata.", "metadata.", "")
_NODE_KEYS = frozenset(f"{prefix}langgraph_node" for prefix in _PREFIXES)


def read_graph_place(span: Span) -> GraphPlace | None:
    """Where LangGraph ran this span, from its metadata; None if it did not."""
    attributes = span.attributes
    found: Mapping[str, Json] = attributes
    prefix: str | None = None
    metadata = attributes.get("metadata")
    if metadata is not None:
        parsed = _load_metadata(metadata) if isinstance(metadata, str) and "langgraph_node" in metadata else metadata
        if isinstance(parsed, dict) and "langgraph_node" in parsed:
            found, prefix = parsed, ""
    if prefix is None:
        if attributes.keys().isdisjoint(_NODE_KEYS):
            return None
        prefix = next(each for each in _PREFIXES if f"{each}langgraph_node" in attributes)
    node = found[f"{prefix}langgraph_node"]
    namespace = found.get(f"{prefix}langgraph_checkpoint_ns") or found.get(f"{prefix}checkpoint_ns")
    step, triggers = found.get(f"{prefix}langgraph_step"), found.get(f"{prefix}langgraph_triggers")
    if isinstance(triggers, str):
        triggers = load_json(triggers)
    listed = tuple(each for each in triggers if isinstance(each, str)) if isinstance(triggers, list | tuple) else ()
    number = _read_number(step)
    return GraphPlace(str(node), str(namespace or f"{node}@{number}"), number, listed)


_FIELD = re.compile(r'"((?:langgraph_)?\w+)": ?("(?:[^"\\]|\\.)*"|\d+|\[[^\]]*\])')


def _load_metadata(text: str) -> Json:
    """Metadata as JSON; of a text that was cut off, the fields before the cut."""
    loaded = load_json(text)
    return {key: load_json(value) for key, value in _FIELD.findall(text)} if isinstance(loaded, str) else loaded


def _read_number(value: Json) -> int | None:
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
