"""LangGraph's supersteps, triggers and routes."""

from __future__ import annotations

from tests.traces.recover.spans import Tree, build, call, chain, edges, node


def test_a_trigger_that_names_a_node_means_all_its_executions() -> None:
    sent = ["__pregel_push"]
    trace = build(
        chain(
            "LangGraph",
            0,
            50,
            node("__start__", 0, 1, step=0),
            node("plan", 1, 9, call(2, 8), step=1, triggers=["start:plan"]),
            *(node("work", 10 + at, 19, call(14, 18), step=2, triggers=sent) for at in range(3)),
            node("total", 20, 29, call(21, 28), step=3, triggers=["work"]),
        )
    )
    assert edges(trace)["total"] == {"work", "work-2", "work-3"}
    assert "__start__" not in edges(trace)


def test_a_node_without_a_router_leads_only_where_it_always_leads() -> None:
    trace = build(
        chain(
            "LangGraph",
            0,
            50,
            node("a", 0, 9, call(1, 8), step=1),
            node("d", 10, 19, call(11, 18), step=2),
            node("e", 10, 19, call(11, 18), step=2),
            node("d", 20, 29, call(21, 28), step=3),
        )
    )
    assert edges(trace)["d-2"] == {"e"}


def test_a_router_may_answer_with_a_label() -> None:
    """Only `facts` has a router. Its label names no node, so the text says who led to `summary`."""
    found = "rainfall fell by nine percent in the northern valley this year"
    trace = build(
        chain(
            "LangGraph",
            0,
            50,
            node("start", 0, 9, call(1, 8), step=1),
            node("facts", 10, 19, call(11, 17, answered=found), chain("route", 18, 19, output_value="good"), step=2),
            node("mood", 10, 19, call(11, 18, answered="calm"), step=2),
            node("summary", 20, 29, call(21, 28, asked=found), step=3),
        )
    )
    assert edges(trace)["summary"] == {"facts"}


def test_metadata_that_was_cut_off_is_read_up_to_the_cut() -> None:
    whole = node("plan", 0, 9, call(1, 8), step=1)
    whole.attributes["metadata"] = str(whole.attributes["metadata"])[:60]
    assert [step.node_id for step in build(chain("LangGraph", 0, 20, whole)).steps] == ["plan"]


def test_an_agent_span_beside_what_it_did_is_no_step() -> None:
    hollow = Tree(
        "invoke_agent graph", 1, 20, attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "graph"}
    )
    inner = chain("graph", 1, 20, node("find", 2, 9, call(3, 8), step=1), node("rank", 10, 19, call(11, 18), step=2))
    trace = build(chain("LangGraph", 0, 30, node("gather", 0, 21, hollow, inner, step=1)))
    assert edges(trace) == {"gather": set(), "find": {"gather"}, "rank": {"find"}}


def test_tasks_that_an_entry_point_calls_are_ordered_by_time() -> None:
    pushed = ["__pregel_push"]
    book = node(
        "book",
        0,
        50,
        node("outline", 1, 9, call(2, 8), step=1, triggers=pushed),
        node("section", 10, 19, call(11, 18), step=1, triggers=pushed),
        node("section", 11, 18, call(12, 17), step=1, triggers=pushed),
        node("assemble", 20, 29, call(21, 28), step=1, triggers=pushed),
        step=1,
    )
    found = edges(build(chain("LangGraph", 0, 60, book)))
    assert found["section"] == found["section-2"] == {"outline"}
    assert found["assemble"] == {"section", "section-2"}


def test_names_that_contradict_the_clock_are_no_hand_overs() -> None:
    def member(name: str, start: int, end: int, source: str = "") -> Tree:
        attributes = {"openinference.span.kind": "AGENT", "graph.node.id": name, "graph.node.parent_id": source}
        return Tree(name, start, end, call(start + 1, end - 1), attributes=attributes)

    listed = (member("rocks", 0, 10), member("prices", 1, 11, "rocks"), member("both", 12, 20, "prices"))
    assert edges(build(chain("crew", 0, 30, *listed)))["both"] == {"rocks", "prices"}
    handed = (member("desk", 0, 10), member("other", 11, 20), member("expert", 21, 30, "desk"))
    assert edges(build(chain("team", 0, 40, *handed)))["expert"] == {"desk"}


def test_a_join_that_is_listed_but_did_not_happen_again_is_no_trigger() -> None:
    listed = ["branch:to:draft", "join:facts+mood:draft"]
    trace = build(
        chain(
            "LangGraph",
            0,
            60,
            node("facts", 0, 9, call(1, 8), step=1),
            node("mood", 0, 9, call(1, 8), step=1),
            node("draft", 10, 19, call(11, 18), step=2, triggers=listed),
            node("review", 20, 29, call(21, 27), chain("route", 28, 29, output_value="draft"), step=3),
            node("draft", 30, 39, call(31, 38), step=4, triggers=listed),
        )
    )
    assert edges(trace)["draft"] == {"facts", "mood"}
    assert edges(trace)["draft-2"] == {"review"}
