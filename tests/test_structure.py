from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest

from promptiter.errors import InvalidStructureError, SurfaceValueError, UnknownSurfaceError
from promptiter.structure import (
    Limits,
    Node,
    StructureEdge,
    StructureSnapshot,
    Surface,
    SurfaceType,
    child_ids,
)

LOOP = StructureSnapshot(
    nodes=(Node(id="planner", kind="llm"), Node(id="reviewer", kind="llm"), Node(id="agent/tools", kind="agent")),
    edges=(
        StructureEdge(source="planner", target="reviewer"),
        StructureEdge(source="reviewer", target="planner", condition="again"),
    ),
    surfaces=(
        Surface(node_id="planner", type="instruction", value="Plan {topic}.", limits=Limits(placeholders=("topic",))),
        Surface(node_id="planner", type="parameter", part="top_k", value=3, limits=Limits(kind="integer", minimum=1)),
        Surface(node_id="agent/tools", type="tool", part="search", value="Search the web."),
    ),
    entry="planner",
)


def test_ids_are_paths_with_type_and_part() -> None:
    assert LOOP.surface_ids == ("planner#instruction", "planner#parameter.top_k", "agent/tools#tool.search")
    assert child_ids(["a", "a/b", "a~c", "a"], parent="root") == ["root/a", "root/a~1b", "root/a~0c", "root/a~2"]


def test_editing_a_value_changes_the_baseline_but_not_the_structure() -> None:
    surfaces = (replace(LOOP.surfaces[0], value="Plan {topic} well."), *LOOP.surfaces[1:])
    edited = replace(LOOP, surfaces=surfaces)
    assert edited.structure_id == LOOP.structure_id
    assert edited.baseline_id != LOOP.baseline_id
    fewer = replace(LOOP, surfaces=LOOP.surfaces[1:])
    assert fewer.structure_id != LOOP.structure_id


def test_the_order_of_parts_does_not_matter_to_ids() -> None:
    turned = replace(LOOP, nodes=LOOP.nodes[::-1], edges=LOOP.edges[::-1], surfaces=LOOP.surfaces[::-1])
    assert (turned.structure_id, turned.baseline_id) == (LOOP.structure_id, LOOP.baseline_id)


def test_a_structure_survives_json() -> None:
    assert StructureSnapshot.from_json(LOOP.to_json()) == LOOP
    with pytest.raises(InvalidStructureError, match="this is not a structure"):
        StructureSnapshot.from_json({"nodes": 7})


def test_the_networkx_view_may_have_cycles() -> None:
    graph = LOOP.digraph()
    assert not nx.is_directed_acyclic_graph(graph)
    assert graph.edges["reviewer", "planner"]["condition"] == "again"
    assert [surface.id for surface in graph.nodes["agent/tools"]["surfaces"]] == ["agent/tools#tool.search"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": ()}, "at least one node"),
        ({"nodes": (*LOOP.nodes, Node(id="planner"))}, "node ids must be unique: planner"),
        ({"nodes": (*LOOP.nodes, Node(id="a#b"))}, "must not be empty or contain a '#'"),
        ({"edges": (StructureEdge(source="planner", target="missing"),)}, "leads to 'missing'"),
        ({"surfaces": (*LOOP.surfaces, LOOP.surfaces[0])}, "surface ids must be unique"),
        ({"surfaces": (Surface(node_id="missing", type="instruction"),)}, "which is not a node"),
        ({"entry": "missing"}, "the entry 'missing' is not a node"),
    ],
)
def test_structures_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidStructureError, match=message):
        replace(LOOP, **change)


def test_an_unknown_surface_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownSurfaceError, match=r"did you mean 'planner#instruction'\?"):
        LOOP.surface("planer#instruction")


@pytest.mark.parametrize(
    ("kind", "limits", "good", "bad", "problem"),
    [
        ("instruction", Limits(), "", 7, "must be text, got 7"),
        ("instruction", Limits(max_chars=3), "abc", "abcd", "it has 4 characters, at most 3"),
        ("instruction", Limits(placeholders=("x",)), "a {x}", "a", "placeholder {x} is missing"),
        ("skill", Limits(locked=("KEEP",)), "a KEEP b", "a keep b", "locked part 'KEEP'"),
        ("tool", Limits(), "Search.", {"name": "x"}, "must be text"),
        ("model", Limits(choices=("a", "b")), "a", "c", "'c' is not one of 'a', 'b'"),
        ("model", Limits(), "any", "", "must be a name"),
        ("parameter", Limits(minimum=0, maximum=1), 0.5, 2, "2 is not between 0 and 1"),
        ("parameter", Limits(minimum=0), 1.5, float("nan"), "is not between"),
        ("parameter", Limits(kind="integer"), 3, 3.5, "a whole number"),
        ("parameter", Limits(), 3, True, "a number, got True"),
        ("parameter", Limits(kind="choice", choices=("x", 1)), 1, "y", "'y' is not one of"),
        ("parameter", Limits(kind="choice", choices=("x", 1)), 1, True, "True is not one of"),
        ("parameter", Limits(kind="boolean", choices=(False, True)), False, 0, "true or false, got 0"),
        ("examples", Limits(), [{"role": "user", "content": "a"}], "a", "a list of messages"),
        ("examples", Limits(), [], [{"role": "user"}], "message 0 must have exactly"),
        ("examples", Limits(), [], [{"role": "system", "content": "a"}], "text by one of user, assistant"),
        ("examples", Limits(max_examples=0), [], [{"role": "user", "content": "a"}], "it has 1 messages"),
    ],
)
def test_values_must_follow_the_rules_of_their_type(
    kind: SurfaceType, limits: Limits, good: object, bad: object, problem: str
) -> None:
    surface = Surface(node_id="n", type=kind, value=good, limits=limits)
    surface.check(good)
    with pytest.raises(SurfaceValueError, match=r"surface 'n#\w+' cannot take this value") as caught:
        surface.check(bad)
    assert problem in str(caught.value)


def test_nodes_that_a_route_leads_to_are_reachable_with_the_nodes_inside_them() -> None:
    structure = StructureSnapshot(
        nodes=tuple(
            Node(id=name) for name in ("start", "team", "team/first", "team/last", "end", "unused", "unused/in")
        ),
        edges=(
            StructureEdge(source="start", target="team", condition="hard"),
            StructureEdge(source="team/last", target="end"),
            StructureEdge(source="unused", target="end"),
        ),
        entry="start",
    )
    assert structure.find_reachable_nodes() == {"start", "team", "team/first", "team/last", "end"}
    assert len(replace(structure, entry="").find_reachable_nodes()) == 7, "unknown, so all"


@pytest.mark.parametrize(
    ("value", "limits", "kind"),
    [
        (3, Limits(minimum=1, maximum=5), "integer"),
        (1, Limits(minimum=0, maximum=1.5), "number"),
        (0.5, Limits(), "number"),
        (True, Limits(), "boolean"),
        ("a", Limits(choices=("a", "b")), "choice"),
        (3, Limits(kind="number"), "number"),
    ],
)
def test_the_value_of_a_parameter_says_of_which_kind_others_are(value: object, limits: Limits, kind: str) -> None:
    completed = limits.complete(value)
    assert completed.kind == kind
    Surface(node_id="n", type="parameter", limits=completed).check(value)
