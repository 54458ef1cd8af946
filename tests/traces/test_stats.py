from __future__ import annotations

from traces import ExecutionTrace, Failure, Step, Usage
from traces.stats import compute_statistics

SECOND = 10**9


def test_statistics_are_computed_per_node() -> None:
    runs = [
        ExecutionTrace(
            id=f"run-{number}",
            status="failed" if number == 2 else "completed",
            steps=(
                Step(id="a", node_id="a", kind="llm", usage=Usage(input_tokens=10), start_ns=1, end_ns=1 + SECOND),
                Step(id="a~2", node_id="a", kind="llm", predecessors=("a",), start_ns=2, end_ns=2 + number * SECOND),
                Step(id="b", node_id="b", predecessors=("a~2",), error=Failure("Oops") if number == 2 else None),
            ),
        )
        for number in (1, 2, 3)
    ]
    found = compute_statistics(runs)
    assert (found.traces, found.by_status, found.steps) == (3, {"completed": 2, "failed": 1}, 9)
    assert found.traces_with_loops == 3
    assert found.errors == {"Oops": 1}
    node_a, node_b = found.nodes
    assert (node_a.visits, node_a.errors, node_a.median_s) == (6, 0, 1.0)
    assert node_a.usage == found.usage == Usage(input_tokens=30)
    assert (node_b.visits, node_b.errors, node_b.median_s, node_b.usage) == (3, 1, None, Usage())


def test_no_traces_give_empty_statistics() -> None:
    found = compute_statistics([])
    assert (found.traces, found.steps, found.median_s, found.nodes) == (0, 0, None, ())
