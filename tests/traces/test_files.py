from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.strategies import traces
from traces import (
    CycleError,
    DuplicateStepError,
    Edge,
    EmptyTraceError,
    ExecutionTrace,
    Snapshot,
    Step,
    TraceError,
    UnknownPredecessorError,
    UnreadableTraceError,
    UnwritableTraceError,
    read_traces,
    write_otel,
    write_traces,
)
from traces.checked_documents import read_any, write_any
from traces.documents import from_json, to_json

SMALL = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a"),))


def document(**trace: object) -> bytes:
    fields = {"trace_id": "t", "steps": [{"step_id": "a", "node_id": "a"}]} | trace
    return orjson.dumps({"schema_version": 2, **fields})


@pytest.mark.slow
@given(traces())
def test_a_trace_survives_a_json_round_trip(trace: ExecutionTrace) -> None:
    assert from_json(to_json(trace)) == trace


@pytest.mark.slow
@given(st.lists(traces(max_steps=4), max_size=4))
def test_traces_survive_a_json_lines_round_trip(
    tmp_path_factory: pytest.TempPathFactory, many: list[ExecutionTrace]
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    for name in ("many.jsonl", "many.jsonl.gz"):
        assert write_traces(folder / name, many) == len(many)
        assert list(read_traces(folder / name)) == many
        assert [path.name for path in folder.glob(".*")] == []


def test_default_values_are_omitted() -> None:
    assert (
        to_json(SMALL)
        == b'{"schema_version":2,"trace_id":"t","steps":[{"step_id":"a","node_id":"a","predecessor_step_ids":[]}]}'
    )


def test_a_document_of_the_first_version_is_read() -> None:
    steps = [{"id": "a", "node_id": "a"}, {"id": "b", "node_id": "b", "predecessors": ["a"]}]
    raw = orjson.dumps({"schema_version": 1, "trace": {"id": "t", "steps": steps, "status": "failed"}})
    trace = from_json(raw)
    assert (trace.id, trace.status, [step.predecessors for step in trace.steps]) == ("t", "failed", [(), ("a",)])


def test_what_a_step_only_read_is_no_predecessor_in_a_document_but_in_its_edges() -> None:
    followed, read = Edge(source="b"), Edge(source="a", kind="data", evidence="text", confidence=0.8)
    last = Step(id="c", node_id="c", predecessors=("a", "b"), edges=(followed, read))
    trace = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a"), Step(id="b", node_id="b"), last))
    for raw in (to_json(trace), write_any(trace)):
        assert orjson.loads(raw)["steps"][-1]["predecessor_step_ids"] == ["b"]
        assert from_json(raw) == read_any(raw) == trace


def test_lines_are_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(to_json(SMALL) + b"\n\n" + b"{broken\n")
    lines: Iterator[ExecutionTrace] = read_traces(path)
    assert next(lines) == SMALL
    with pytest.raises(UnreadableTraceError, match="line 3"):
        next(lines)


def test_a_document_spread_over_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(orjson.dumps(orjson.loads(to_json(SMALL)), option=orjson.OPT_INDENT_2))
    assert list(read_traces(path)) == [SMALL]
    path.write_bytes(path.read_bytes().replace(b'"node_id"', b'"node_id" oops'))
    with pytest.raises(UnreadableTraceError, match=r"one.json, line 7: is not valid JSON"):
        list(read_traces(path))


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        (document()[:40], UnreadableTraceError, "not valid JSON"),
        (document().replace(b'"t"', b'"\xff"'), UnreadableTraceError, "invalid UTF-8 at byte"),
        (b"[" * 100_000, UnreadableTraceError, "not valid JSON"),
        (b'{"schema_version": 3, "trace_id": "t"}', UnreadableTraceError, "schema_version is 3, this release reads 2"),
        (b'{"hello": 1}', UnreadableTraceError, "is not a trace: expected"),
        (b"17", UnreadableTraceError, "is not a trace: expected .*, got 17"),
        (document(color="red"), UnreadableTraceError, r"color: is not a known field"),
        (document(steps=[{"step_id": "a"}]), UnreadableTraceError, r"steps\[0\].node_id: is missing"),
        (
            document(steps=[{"step_id": 7, "node_id": "a"}]),
            UnreadableTraceError,
            r"steps\[0\].step_id: .*string, got 7",
        ),
        (
            document(steps=[{"step_id": "a", "node_id": "a", "start_ns": "1"}]),
            UnreadableTraceError,
            "valid integer, got '1'",
        ),
        (document(status="odd"), UnreadableTraceError, "status: input"),
        (document(steps=[]), EmptyTraceError, "has no steps"),
        (document(steps=[{"step_id": "a", "node_id": "a"}] * 2), DuplicateStepError, "'a' occurs twice"),
        (
            document(steps=[{"step_id": "a", "node_id": "a", "predecessor_step_ids": ["b"]}]),
            UnknownPredecessorError,
            "follows step 'b'",
        ),
        (
            document(steps=[{"step_id": "a", "node_id": "a", "predecessor_step_ids": ["a"]}]),
            CycleError,
            "depends on itself",
        ),
    ],
)
def test_bad_input_is_a_typed_error_with_its_place(
    tmp_path: Path, raw: bytes, kind: type[TraceError], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(to_json(SMALL) + b"\n" + raw + b"\n")
    with pytest.raises(kind, match=message) as caught:
        list(read_traces(path))
    assert str(caught.value).startswith(f"{path}, line 2: ")


@pytest.mark.slow
def test_a_text_of_50_mb_is_read_whole(tmp_path: Path) -> None:
    large = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot("é" * 25_000_000)),))
    write_traces(tmp_path / "large.jsonl", [large])
    assert list(read_traces(tmp_path / "large.jsonl")) == [large]


@pytest.mark.parametrize("value", [math.nan, math.inf, [{"a": -math.inf}], "\ud800", object()])
def test_values_that_json_cannot_represent_are_rejected(tmp_path: Path, value: object) -> None:
    trace = ExecutionTrace(id="odd", steps=(Step(id="a", node_id="a", output=Snapshot(data=value)),))
    with pytest.raises(UnwritableTraceError, match="'odd' contains a"):
        write_traces(tmp_path / "odd.jsonl", [SMALL, trace])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [SMALL, "abc", [SMALL, None]])
def test_only_traces_are_written(tmp_path: Path, given: Any) -> None:
    for write in (write_traces, write_otel):
        with pytest.raises(UnwritableTraceError, match="pass a list of"):
            write(tmp_path / "x.jsonl", given)
    assert list(tmp_path.iterdir()) == []


def test_the_word_nan_in_a_text_is_accepted() -> None:
    trace = ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", output=Snapshot("NaN, Infinity")),))
    assert from_json(to_json(trace)) == trace


def test_files_that_cannot_be_opened_raise_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="No such file"):
        list(read_traces(tmp_path / "missing.jsonl"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(to_json(SMALL) * 100)[:-20])
    with pytest.raises(UnreadableTraceError, match="damaged gzip"):
        list(read_traces(tmp_path / "cut.jsonl.gz"))
    (tmp_path / "packed.zst").write_bytes(b"\x28\xb5\x2f\xfdxxxx")
    with pytest.raises(UnreadableTraceError, match="zstd"):
        list(read_traces(tmp_path / "packed.zst"))
