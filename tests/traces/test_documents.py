"""Documents of traces: what orjson reads and writes is what pydantic would."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given

from tests.traces.strategies import traces
from traces import Blob, Edge, ExecutionTrace, Failure, Snapshot, Step, ToolCall, TraceError, Usage
from traces.checked_documents import read_any, write_any
from traces.documents import from_json, to_json

FULL = ExecutionTrace(
    id="t",
    status="failed",
    conversation_id="c",
    attributes={"a": 1},
    steps=(
        Step(id="a", node_id="a"),
        Step(
            id="b",
            node_id="b",
            kind="llm",
            predecessors=("a",),
            edges=(Edge(source="a", kind="data", evidence="guessed", confidence=0.5),),
            surface_reads={"b#instruction": "d"},
            input=Snapshot("in", data={"x": [1.5]}, blobs=(Blob("d", 3, "text/plain"),)),
            output=Snapshot("out"),
            tool_calls=(
                ToolCall(
                    name="t", id="1", arguments={"q": 1}, result=[2], error=Failure("E", "m"), start_ns=1, end_ns=2
                ),
            ),
            error=Failure("E", "m", "here", is_outage=True),
            usage=Usage(input_tokens=1, output_tokens=2, cached_input_tokens=1, cost_usd=0.5),
            start_ns=1,
            end_ns=2,
            attributes={"k": "v"},
        ),
    ),
)


@pytest.mark.slow
@given(traces())
def test_a_document_is_the_one_that_pydantic_writes(trace: ExecutionTrace) -> None:
    assert to_json(trace) == write_any(trace)


@pytest.mark.slow
def test_a_document_with_any_other_value_is_read_or_refused_as_by_pydantic() -> None:
    for raw in list_variants(orjson.loads(to_json(FULL))):
        assert read_or_refuse(from_json, raw) == read_or_refuse(read_any, raw), raw


def test_null_in_a_document_is_not_taken_for_a_number_that_json_cannot_represent() -> None:
    trace = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot(data={"x": None})),))
    assert from_json(to_json(trace)) == trace


def read_or_refuse(read: Any, raw: bytes) -> object:
    try:
        return read(raw)
    except TraceError as error:
        return type(error), str(error)


def list_variants(document: Any) -> Iterator[bytes]:
    """The document without each of its fields, with an unknown one, and with other values for each of them."""
    for path in list(list_paths(document)):
        for value in (None, 0, 1, 0.5, True, "", "a", "control", [], ["a"], {}, {"a": "b"}, {"text": "x"}):
            yield orjson.dumps(change(document, path, lambda inside, key, value=value: inside.update({key: value})))
        yield orjson.dumps(change(document, path, lambda inside, key: inside.pop(key)))
        yield orjson.dumps(change(document, path, lambda inside, _: inside.update(unknown=1)))


def list_paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(value, dict):
            yield (key,)
        yield from ((key, *path) for path in list_paths(inner))


def change(document: Any, path: tuple[Any, ...], edit: Any) -> Any:
    changed = inside = copy.deepcopy(document)
    for key in path[:-1]:
        inside = inside[key]
    edit(inside, path[-1])
    return changed
