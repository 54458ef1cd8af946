from __future__ import annotations

import pytest

from promptiter.stages.routes import MissedRoute, RouteMap
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from traces import ExecutionTrace, Step


def edge(source: str, target: str, condition: str | None = None) -> StructureEdge:
    return StructureEdge(source=source, target=target, condition=condition)


def structure(*edges: StructureEdge, tools: tuple[tuple[str, str], ...] = (), inner: str = "") -> StructureSnapshot:
    names = dict.fromkeys([end for each in edges for end in (each.source, each.target)] + inner.split())
    return StructureSnapshot(
        nodes=tuple(Node(id=name) for name in names),
        edges=edges,
        surfaces=tuple(Surface(node_id=node_id, type="tool", part=name) for node_id, name in tools),
    )


def ran(*steps: str) -> ExecutionTrace:
    """A trace of steps such as `b<a`: `b` ran after `a`."""
    made = []
    for each in steps:
        step_id, _, before = each.partition("<")
        made.append(Step(id=step_id, node_id=step_id.partition("~")[0], predecessors=tuple(before.split())))
    return ExecutionTrace(id="t", steps=tuple(made))


def name(routes: tuple[MissedRoute, ...]) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(route.step.id, route.node_id, route.words, route.taken) for route in routes]


DESK = structure(
    edge("router", "billing", "bill"),
    edge("router", "shipping", "ship"),
    edge("router", "shipping", "other"),
    edge("billing", "end"),
    edge("shipping", "end"),
    tools=(("shipping", "find_order"),),
)


def test_a_branch_that_was_not_taken_is_missed_with_all_its_words() -> None:
    routes = RouteMap(DESK)
    assert name(routes.list_missed(ran("router", "billing<router", "end<billing"))) == [
        ("router", "shipping", ("ship", "other"), ("billing",))
    ]
    assert name(routes.list_missed(ran("router", "shipping<router", "end<shipping"))) == [
        ("router", "billing", ("bill",), ("shipping",))
    ]
    assert routes.list_missed(ran("router")) == ()  # the run ended there


def test_a_way_leads_to_a_node_that_did_not_run() -> None:
    routes = RouteMap(DESK)
    owners = routes.find_owners("find_order")
    assert owners == ("shipping",)
    [way] = routes.find_ways(ran("router", "billing<router", "end<billing"), owners)
    assert (way.step.id, way.node_id) == ("router", "shipping")
    assert routes.find_ways(ran("router", "shipping<router", "end<shipping"), owners) == ()
    assert routes.find_ways(ran("router", "billing<router", "end<billing"), routes.find_owners("unknown")) == ()


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (ran("first", "left<first", "l1<left"), ("left", "l2")),
        (ran("first", "right<first"), ("first", "left")),
    ],
)
def test_of_two_routers_in_a_row_the_last_that_could_lead_there_is_meant(
    trace: ExecutionTrace, expected: tuple[str, str]
) -> None:
    routers = structure(
        edge("first", "left", "a"), edge("first", "right", "b"), edge("left", "l1", "c"), edge("left", "l2", "d")
    )
    [way] = RouteMap(routers).find_ways(trace, ["l2"])
    assert (way.step.id, way.node_id) == expected


def test_a_loop_that_ended_too_early_is_a_missed_route_of_its_last_visit() -> None:
    loop = structure(edge("review", "fix", "no"), edge("fix", "review"), edge("review", "end", "yes"))
    trace = ran("review", "fix<review", "review~2<fix", "end<review~2")
    assert name(RouteMap(loop).list_missed(trace)) == [
        ("review", "end", ("yes",), ("fix",)),
        ("review~2", "fix", ("no",), ("end",)),
    ]
    assert RouteMap(loop).find_ways(trace, ["fix"]) == ()  # it did run


def test_agents_that_are_nodes_are_taken_by_their_inner_nodes_and_reached_with_them() -> None:
    nested = structure(
        edge("router", "help", "h"),
        edge("router", "sales", "s"),
        edge("help/ask", "help/answer", "x"),
        edge("help/ask", "help/escalate", "y"),
        edge("help", "end"),
        inner="help/ask help/answer help/escalate",
    )
    routes = RouteMap(nested)
    in_sales = ran("router", "sales<router")
    in_help = ran("router", "help/ask<router", "help/answer<help/ask", "help<help/answer", "end<help")
    assert [way.node_id for way in routes.find_ways(in_sales, ["help/escalate"])] == ["help"]
    assert [(way.step.id, way.node_id) for way in routes.find_ways(in_help, ["help/escalate"])] == [
        ("help/ask", "help/escalate")
    ]
    assert [way.node_id for way in routes.find_ways(in_sales, ["end"])] == ["help"]
    assert not routes.leads_to("help/answer", ["help/escalate"])
    assert routes.leads_to("help/answer", ["end"])
