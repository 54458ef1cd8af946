"""Spans that were lost."""

from __future__ import annotations

from tests.traces.recover.spans import Tree, agent, build, call, edges


def test_what_a_lost_span_held_goes_below_the_span_around_it() -> None:
    tool = Tree(
        "ask", 10, 20, agent("lawyer", 11, 19, call(12, 18)), attributes={"gen_ai.operation.name": "execute_tool"}
    )
    trace = build(agent("boss", 0, 40, call(1, 9), tool, call(21, 29)), lost=["ask"])
    assert edges(trace) == {"boss": set(), "lawyer": {"boss"}, "boss#2": {"lawyer"}}
    assert trace.status == "incomplete"


def test_a_lost_span_that_two_spans_may_have_held_is_left_beside_them() -> None:
    lost = Tree("ask", 10, 20, agent("lawyer", 11, 19, call(12, 18)))
    twins = [agent(name, 0, 40, call(1, 9)) for name in ("left", "right")]
    twins[0].below = (*twins[0].below, lost)
    trace = build(Tree("run", 0, 50, *twins), lost=["ask"])
    assert not edges(trace)["lawyer"] & {"left", "right"}
