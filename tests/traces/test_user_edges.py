"""Edges that users supply replace guessed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traces import TraceError, read_otel
from traces.model import Edge, ExecutionTrace, Step
from traces.otel.user_edges import EdgeSource, load_edges

EXPORT = Path(__file__).parent / "exports" / "strands_native_events.graph_cycle.otlp.jsonl"


def make_trace() -> ExecutionTrace:
    """A writer and a critic in a loop, with edges that were guessed wrongly from times."""

    def step(step_id: str, node_id: str, start: int, *edges: Edge) -> Step:
        sources = tuple({edge.source for edge in edges})
        return Step(id=step_id, node_id=node_id, start_ns=start, end_ns=start + 1, predecessors=sources, edges=edges)

    guess = Edge(source="p", evidence="time", confidence=0.6)
    return ExecutionTrace(
        id="run",
        steps=(
            step("p", "planner", 1),
            step("w", "writer", 3, guess),
            step("c", "critic", 5, guess, Edge(source="p", kind="data", evidence="text", confidence=0.8)),
            step("w2", "writer", 7, guess, Edge(source="w", evidence="link")),
        ),
    )


def list_edges(edges: EdgeSource) -> dict[str, list[tuple[str, str, str]]]:
    trace = load_edges(edges).apply(make_trace())
    return {step.id: [(edge.source, edge.kind, edge.evidence) for edge in step.edges] for step in trace.steps}


def test_an_edge_leads_from_the_latest_execution_that_the_target_has_not_followed_yet() -> None:
    found = list_edges(["planner -> writer", "writer -> critic", "critic -> writer"])
    assert found["w"] == [("p", "control", "user")]
    assert found["c"] == [("p", "data", "text"), ("w", "control", "user")]
    assert found["w2"] == [("c", "control", "user"), ("w", "control", "link")]


def test_an_edge_may_name_executions_steps_and_a_trace() -> None:
    assert list_edges(["critic -> writer#2"])["w2"][0] == ("c", "control", "user")
    assert list_edges([{"source": "c", "target": "w2", "trace_id": "run"}])["w2"][0] == ("c", "control", "user")
    assert list_edges([{"source": "c", "target": "w2", "trace_id": "other"}])["w2"][0] == ("p", "control", "time")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("edges.txt", "# who follows whom\nplanner -> writer\n\nwriter -> critic\n"),
        ("edges.yaml", "- planner -> writer\n- source: writer\n  target: critic\n"),
        ("edges.yaml", "edges:\n- [planner, writer]\n- [writer, critic]\n"),
        ("edges.json", '["planner -> writer", {"source": "writer", "target": "critic"}]'),
        (
            "graph.json",
            json.dumps(
                {
                    "nodes": [{"id": "__start__"}, {"id": "planner"}, {"id": "writer"}, {"id": "never_ran"}],
                    "edges": [
                        {"source": "__start__", "target": "planner"},
                        {"source": "planner", "target": "writer"},
                        {"source": "writer", "target": "critic", "conditional": True},
                        {"source": "critic", "target": "never_ran"},
                    ],
                }
            ),
        ),
    ],
)
def test_edges_are_read_from_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    edges = load_edges(tmp_path / name)
    trace = edges.apply(make_trace())
    edges.check()
    by_id = {step.id: step for step in trace.steps}
    assert by_id["w"].followed == ("p",)
    assert by_id["c"].followed == ("w",)


def test_an_unknown_name_is_an_error_with_a_suggestion() -> None:
    edges = load_edges(["planer -> writer"])
    edges.apply(make_trace())
    with pytest.raises(TraceError, match=r"no node or step 'planer' \(did you mean 'planner'\?\)"):
        edges.check()


@pytest.mark.parametrize("text", ["planner writer\n", "planner ->\n", "{}", "- 7\n", "a -> b -> c\n", "[1, 2"])
def test_a_file_without_edges_says_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"edges\.txt.*source"):
        load_edges(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.txt"):
        read_otel(EXPORT, edges=tmp_path / "nowhere.txt")


def test_an_import_takes_edges() -> None:
    (trace,) = read_otel(EXPORT)
    step = next(step for step in trace.steps if step.edges)
    source = next(each for each in trace.steps if each.id == step.edges[0].source)
    (stated,) = read_otel(EXPORT, edges=[f"{source.id} -> {step.id}"])
    changed = next(each for each in stated.steps if each.id == step.id)
    assert [edge for edge in changed.edges if edge.kind == "control"] == [Edge(source=source.id, evidence="user")]
