from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given

from tests.traces.strategies import traces
from traces import Edge, ExecutionTrace, Failure, Loop, Step, TraceGraph, UnknownStepError
from traces.graph import measure_time_after


def ids(steps: tuple[Step, ...]) -> list[str]:
    return [step.id for step in steps]


def oracle(trace: ExecutionTrace) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(step.id for step in trace.steps)
    graph.add_edges_from((source, step.id) for step in trace.steps for source in step.predecessors)
    return graph


@given(traces(rich=False))
def test_the_digraph_is_the_trace(trace: ExecutionTrace) -> None:
    graph = TraceGraph(trace)
    assert nx.utils.graphs_equal(nx.DiGraph(graph.digraph.edges), nx.DiGraph(oracle(trace).edges))
    assert all(graph.digraph.nodes[step.id]["step"] is step for step in trace.steps)


@given(traces(rich=False))
def test_degrees_are_those_of_networkx(trace: ExecutionTrace) -> None:
    graph, expected = TraceGraph(trace), oracle(trace)
    assert set(ids(graph.roots)) == {node for node, degree in expected.in_degree if degree == 0}
    assert set(ids(graph.terminals)) == {node for node, degree in expected.out_degree if degree == 0}
    assert set(ids(graph.joins)) == {node for node, degree in expected.in_degree if degree > 1}
    assert set(ids(graph.fan_outs)) == {node for node, degree in expected.out_degree if degree > 1}


@given(traces(rich=False))
def test_relatives_are_those_of_networkx(trace: ExecutionTrace) -> None:
    graph, expected = TraceGraph(trace), oracle(trace)
    for step in trace.steps:
        assert set(ids(graph.predecessors(step.id))) == set(expected.predecessors(step.id))
        assert set(ids(graph.successors(step.id))) == set(expected.successors(step.id))
        assert set(ids(graph.ancestors(step.id))) == nx.ancestors(expected, step.id)
        assert set(ids(graph.descendants(step.id))) == nx.descendants(expected, step.id)


@given(traces(rich=False))
def test_reverse_ready_order_is_the_generations_of_the_reversed_graph(trace: ExecutionTrace) -> None:
    waves = [set(ids(wave)) for wave in TraceGraph(trace).reverse_ready_order()]
    assert waves == [set(wave) for wave in nx.topological_generations(oracle(trace).reverse())]


@given(traces(rich=False))
def test_critical_path_is_the_longest_weighted_path(trace: ExecutionTrace) -> None:
    graph, expected = TraceGraph(trace), oracle(trace)
    weighted: nx.DiGraph[str] = nx.DiGraph()
    for step in trace.steps:
        if not step.predecessors:
            weighted.add_edge("", step.id, weight=step.duration_ns)
        for source in graph.predecessors(step.id):
            weighted.add_edge(source.id, step.id, weight=measure_time_after(source, step))
    path = graph.critical_path()
    busy = (path[0].duration_ns or 0) + sum(measure_time_after(first, second) for first, second in pairwise(path))
    assert busy == nx.dag_longest_path_length(weighted)
    assert not path[0].predecessors
    assert all(expected.has_edge(first.id, second.id) for first, second in pairwise(path))


@given(traces(rich=False))
def test_visits_are_the_steps_of_a_node(trace: ExecutionTrace) -> None:
    graph = TraceGraph(trace)
    found = [step for node_id in {step.node_id for step in trace.steps} for step in graph.visits(node_id)]
    assert sorted(ids(tuple(found))) == sorted(ids(trace.steps))


@given(traces(rich=False))
def test_a_node_is_in_a_loop_exactly_when_one_of_its_steps_descends_from_another(trace: ExecutionTrace) -> None:
    graph, expected = TraceGraph(trace), oracle(trace)
    looping = {
        step.node_id
        for step in trace.steps
        for other in nx.descendants(expected, step.id)
        if graph.step(other).node_id == step.node_id
    }
    assert {node_id for loop in graph.unrolled_loops() for node_id in loop.node_ids} == looping


@given(traces(rich=False))
def test_iterations_of_a_loop_are_the_longest_chain_of_visits(trace: ExecutionTrace) -> None:
    graph = TraceGraph(trace)
    closure = nx.transitive_closure_dag(oracle(trace))
    for loop in graph.unrolled_loops():
        longest = max(
            len(nx.dag_longest_path(closure.subgraph(ids(graph.visits(node_id))))) for node_id in loop.node_ids
        )
        assert loop.iterations == longest


@given(traces(rich=False))
def test_failing_path_leads_from_a_root_to_the_step_that_failed_first(trace: ExecutionTrace) -> None:
    path = TraceGraph(trace).failing_path()
    failed = [step for step in trace.steps if step.error]
    if not failed:
        assert path == ()
        return
    assert path[-1].end_ns == min(step.end_ns or 0 for step in failed)
    assert not path[0].predecessors
    assert all(first.id in second.predecessors for first, second in pairwise(path))


def test_a_cancelled_sibling_is_not_the_cause() -> None:
    cancelled = Step(id="a", node_id="a", error=Failure("cancelled"), start_ns=1, end_ns=2)
    cause = Step(id="z", node_id="z", error=Failure("ValueError"), start_ns=1, end_ns=3)
    assert TraceGraph(ExecutionTrace(id="t", status="failed", steps=(cancelled, cause))).failing_path() == (cause,)


def test_a_handled_error_is_not_a_failure() -> None:
    steps = (Step(id="a", node_id="a", error=Failure("Oops")), Step(id="b", node_id="b", predecessors=("a",)))
    assert TraceGraph(ExecutionTrace(id="t", steps=steps)).failing_path() == ()


def test_the_critical_path_includes_nested_steps() -> None:
    steps = (
        Step(id="ask", node_id="ask", start_ns=1, end_ns=10),
        Step(id="agent/think", node_id="agent/think", predecessors=("ask",), start_ns=20, end_ns=90),
        Step(id="agent", node_id="agent", predecessors=("agent/think",), start_ns=10, end_ns=100),
        Step(id="end", node_id="end", predecessors=("agent",), start_ns=100, end_ns=101),
    )
    path = TraceGraph(ExecutionTrace(id="t", steps=steps)).critical_path()
    assert ids(path) == ["ask", "agent/think", "agent", "end"]


def test_a_loop_of_two_rounds_is_one_loop() -> None:
    rounds = [
        Step(id="plan", node_id="plan"),
        Step(id="review", node_id="review", predecessors=("plan",)),
        Step(id="plan~2", node_id="plan", predecessors=("review",)),
        Step(id="review~2", node_id="review", predecessors=("plan~2",)),
        Step(id="end", node_id="end", predecessors=("review~2",)),
    ]
    graph = TraceGraph(ExecutionTrace(id="t", steps=tuple(rounds)))
    assert graph.unrolled_loops() == (Loop(("plan", "review"), 2),)


def test_parallel_visits_are_not_a_loop() -> None:
    steps = [Step(id="a", node_id="a"), *(Step(id=f"w[{n}]", node_id="w", predecessors=("a",)) for n in range(3))]
    assert TraceGraph(ExecutionTrace(id="t", steps=tuple(steps))).unrolled_loops() == ()


def test_edges_keep_their_kind_and_evidence() -> None:
    edge = Edge(source="a", kind="data", evidence="content", confidence=0.8)
    steps = (Step(id="a", node_id="a"), Step(id="b", node_id="b", predecessors=("a",), edges=(edge,)))
    assert TraceGraph(ExecutionTrace(id="t", steps=steps)).digraph.edges["a", "b"]["data"] is edge


def test_an_unknown_step_error_suggests_the_nearest_id() -> None:
    graph = TraceGraph(ExecutionTrace(id="t", steps=(Step(id="planner", node_id="planner"),)))
    with pytest.raises(UnknownStepError, match="did you mean 'planner'"):
        graph.ancestors("planer")


@pytest.mark.long
def test_a_chain_of_100_000_steps_answers_everything() -> None:
    size = 100_000
    steps = tuple(
        Step(
            id=f"n{number}",
            node_id=f"node{number % 7}",
            predecessors=(f"n{number - 1}",) if number else (),
            start_ns=number + 1,
            end_ns=number + 2,
            error=Failure("Oops") if number == size - 1 else None,
        )
        for number in range(size)
    )
    graph = TraceGraph(ExecutionTrace(id="t", status="failed", steps=steps))
    assert len(graph.ancestors(f"n{size - 1}")) == size - 1
    assert len(graph.critical_path()) == len(graph.failing_path()) == size
    assert sum(1 for _ in graph.reverse_ready_order()) == size
    assert graph.unrolled_loops()[0].iterations == size // 7 + 1
