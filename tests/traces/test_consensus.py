"""Several runs of one application correct each other's guessed edges."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.worlds.random_runs import score_recovery
from traces.model import Edge, ExecutionTrace, Step
from traces.otel.recover import consensus
from traces.otel.recover.consensus import APPLICATION, reach_consensus


def make_trace(
    times: Mapping[str, tuple[int, int]],
    edges: Mapping[str, Mapping[str, str]],
    *,
    trace_id: str = "run",
    application: str | None = "desk/run",
    nodes: Mapping[str, str] | None = None,
) -> ExecutionTrace:
    """A trace of steps with these times; `edges` has the evidence of each edge, by target and source."""
    steps = []
    for step_id, (start, end) in times.items():
        found = [Edge(source=source, evidence=evidence) for source, evidence in edges.get(step_id, {}).items()]
        found += [
            Edge(source=source, kind="data", evidence="text")
            for source, evidence in edges.get(step_id, {}).items()
            if evidence == "text"
        ]
        steps.append(
            Step(
                id=step_id,
                node_id=(nodes or {}).get(step_id, step_id),
                predecessors=tuple({edge.source for edge in found}),
                edges=tuple(found),
                start_ns=start,
                end_ns=end,
            )
        )
    attributes = {} if application is None else {APPLICATION: application}
    return ExecutionTrace(id=trace_id, steps=tuple(steps), attributes=attributes)


def list_edges(trace: ExecutionTrace) -> dict[str, dict[str, str]]:
    return {
        step.id: {edge.source: edge.evidence for edge in step.edges if edge.kind == "control"}
        for step in trace.steps
        if step.edges
    }


LATE = make_trace(
    {"plan": (1, 2), "search": (3, 5), "draft": (6, 9)}, {"search": {"plan": "time"}, "draft": {"search": "time"}}
)
AT_ONCE = make_trace(
    {"plan": (1, 2), "search": (3, 7), "draft": (4, 9)}, {"search": {"plan": "time"}, "draft": {"plan": "time"}}
)


def test_an_edge_by_time_that_another_run_contradicts_is_replaced_by_those_before_it() -> None:
    corrected, same = reach_consensus([LATE, AT_ONCE])
    assert list_edges(corrected) == {"search": {"plan": "time"}, "draft": {"plan": "time"}}
    assert same is AT_ONCE


@pytest.mark.parametrize("evidence", ["link", "trigger", "route", "graph", "name", "loop", "superstep", "user", "text"])
def test_stated_edges_and_texts_are_never_dropped(evidence: str) -> None:
    stated = make_trace(
        {"plan": (1, 2), "search": (3, 5), "draft": (6, 9)}, {"search": {"plan": "time"}, "draft": {"search": evidence}}
    )
    assert reach_consensus([stated, AT_ONCE])[0] is stated


def test_runs_of_other_applications_and_recorded_runs_say_nothing() -> None:
    for application in ("shop/run", None):
        other = make_trace(
            {"plan": (1, 2), "search": (3, 7), "draft": (4, 9)}, {"search": {"plan": "time"}}, application=application
        )
        assert reach_consensus([LATE, other])[0] is LATE


def test_an_edge_that_other_runs_show_as_text_is_added_where_the_text_is_hidden() -> None:
    times = {"plan": (1, 2), "search": (3, 5), "check": (3, 4), "draft": (6, 9)}
    first = {"search": {"plan": "time"}, "check": {"plan": "time"}}
    shown = make_trace(times, {**first, "draft": {"search": "text"}})
    hidden = make_trace(times, {**first, "draft": {"search": "time", "check": "time"}})
    corrected = reach_consensus([shown, hidden])[1]
    assert list_edges(corrected)["draft"] == {"search": "consensus"}
    rarely = reach_consensus([shown, hidden, hidden, hidden])[1]
    assert rarely is hidden


def test_in_a_loop_the_opposite_order_contradicts_nothing() -> None:
    nodes = {"think1": "think", "think2": "think", "think3": "think"}
    edges = {"a": {"think1": "time"}, "think2": {"a": "time"}, "b": {"think2": "time"}, "think3": {"b": "time"}}
    times = {"think1": (1, 2), "a": (3, 4), "think2": (5, 6), "b": (7, 8), "think3": (9, 10)}
    other_edges = {"b": {"think1": "time"}, "think2": {"b": "time"}, "a": {"think2": "time"}, "think3": {"a": "time"}}
    other_times = {"think1": (1, 2), "b": (3, 4), "think2": (5, 6), "a": (7, 8), "think3": (9, 10)}
    runs = [make_trace(times, edges, nodes=nodes), make_trace(other_times, other_edges, nodes=nodes)]
    assert [list_edges(trace) for trace in reach_consensus(runs)] == [list_edges(trace) for trace in runs]


def test_executions_of_a_node_that_ran_at_the_same_time_are_not_compared() -> None:
    nodes = {"read1": "read", "read2": "read", "sum1": "sum", "sum2": "sum"}
    edges = {"sum1": {"read1": "time"}, "sum2": {"read2": "time"}}
    first = make_trace({"read1": (1, 3), "read2": (2, 6), "sum1": (4, 9), "sum2": (7, 9)}, edges, nodes=nodes)
    second = make_trace({"read1": (1, 6), "read2": (2, 3), "sum2": (4, 9), "sum1": (7, 9)}, edges, nodes=nodes)
    assert reach_consensus([first, second]) == [first, second]


def test_a_step_that_was_never_awaited_is_followed_by_those_that_awaited_it_only() -> None:
    edges = {
        "quick": {"plan": "time"},
        "slow": {"plan": "time"},
        "reply": {"quick": "time"},
        "report": {"slow": "time", "quick": "time"},
    }
    runs = [
        make_trace(
            {"plan": (1, 2), "quick": (3, 4), "slow": (3, 20 + at), "reply": (5, 40), "report": (25 + at, 30 + at)},
            edges,
            trace_id=f"run{at}",
        )
        for at in range(consensus.MIN_RUNS)
    ]
    assert list_edges(reach_consensus(runs)[0])["report"] == {"slow": "time"}
    assert list_edges(reach_consensus(runs[:-1])[0])["report"] == {"slow": "time", "quick": "time"}


def test_a_run_whose_clocks_contradict_its_links_is_left_as_it_is() -> None:
    odd = make_trace({"search": (3, 5), "draft": (1, 2)}, {"draft": {"search": "link"}})
    assert reach_consensus([odd, odd]) == [odd, odd]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "MOST_EXECUTIONS", 2)
    assert reach_consensus([LATE, AT_ONCE]) == [LATE, AT_ONCE]
    monkeypatch.setattr(consensus, "MOST_APPLICATIONS", 0)
    assert reach_consensus([LATE, AT_ONCE]) == [LATE, AT_ONCE]


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "hidden", "bar"), [(1, 1, 0.80), (5, 1, 0.91), (10, 1, 0.94), (5, 0.5, 0.95)])
def test_consensus_over_random_runs(runs: int, hidden: float, bar: float) -> None:
    alone = score_recovery("asynchronous", hidden, seeds=range(12), runs=runs, agree=False)
    together = score_recovery("asynchronous", hidden, seeds=range(12), runs=runs)
    assert together.f1 >= max(bar, alone.f1)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 0.2])
def test_consensus_does_not_harm_where_texts_are_shown(hidden: float) -> None:
    for regime in ("asynchronous", "supersteps"):
        alone = score_recovery(regime, hidden, seeds=range(8), runs=5, agree=False)
        assert score_recovery(regime, hidden, seeds=range(8), runs=5).f1 >= alone.f1
