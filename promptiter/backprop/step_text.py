"""The inputs, outputs and tool results of steps as plain text, and the single values in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import orjson

from traces import ExecutionTrace, Snapshot
from traces.model import Json


def snapshot_text(snapshot: Snapshot) -> str:
    """A snapshot as text; structured data as JSON."""
    if snapshot.data is None:
        return snapshot.text or ""
    data = json_text(snapshot.data)
    return data if snapshot.text is None else f"{snapshot.text}\n{data}"


def render_answer(trace: ExecutionTrace) -> str:
    """What a run ended with: the outputs of its last steps."""
    return "\n".join(snapshot_text(step.output) for step in trace.terminals)


def json_text(value: Json) -> str:
    """A string as it is, anything else as JSON; empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return orjson.dumps(value, default=repr).decode()
    except TypeError:  # a number beyond 64 bits, half a surrogate pair
        return json.dumps(value, default=repr)


def json_leaves(value: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every value that is neither an object nor a list, in document order, with the keys that lead to it."""
    waiting: list[tuple[tuple[str, ...], Json]] = [((), value)]
    while waiting:
        keys, item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += reversed([((*keys, str(key)), inner) for key, inner in item.items()])
        elif isinstance(item, list | tuple):
            waiting += reversed([(keys, inner) for inner in item])
        else:
            yield keys, item
