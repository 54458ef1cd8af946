from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given

from tests.traces.strategies import traces
from traces import ExecutionTrace, Failure, Step, TraceGraph
from traces.draw.diagram import Diagram, of_nodes, of_trace
from traces.draw.lanes import to_lanes
from traces.draw.mermaid import to_mermaid
from traces.draw.svg import to_svg
from traces.text import format_duration

SVG = "{http://www.w3.org/2000/svg}"


def step(step_id: str, *predecessors: str, node: str | None = None, error: Failure | None = None) -> Step:
    return Step(id=step_id, node_id=node or step_id, predecessors=predecessors, error=error)


def trace(*steps: Step) -> ExecutionTrace:
    return ExecutionTrace(id="t", status="failed", steps=steps)


def boxes_of(svg: str) -> dict[str, tuple[float, float]]:
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rectangle = group.find(f"{SVG}rect")
        assert rectangle is not None
        found[group.attrib["data-id"]] = (float(rectangle.attrib["x"]), float(rectangle.attrib["y"]))
    return found


@given(traces())
def test_svg_is_well_formed_and_boxes_do_not_overlap(random_trace: ExecutionTrace) -> None:
    for diagram in (of_trace(random_trace), of_nodes(random_trace)):
        places = boxes_of(to_svg(diagram))
        assert len(places) == len(diagram.boxes)
        for first, (x1, y1) in places.items():
            for second, (x2, y2) in places.items():
                assert first == second or abs(y1 - y2) >= 50 or abs(x1 - x2) >= 190


@given(traces(rich=False))
def test_svg_has_an_arrow_per_edge_and_predecessors_above(random_trace: ExecutionTrace) -> None:
    svg = to_svg(of_trace(random_trace))
    edges = list(TraceGraph(random_trace).digraph.edges)
    assert svg.count('marker-end="url(#tip)"') == len(edges)
    places = boxes_of(svg)
    assert all(places[source][1] < places[target][1] for source, target in edges)


@given(traces())
def test_mermaid_names_every_box_and_arrow(random_trace: ExecutionTrace) -> None:
    diagram = of_trace(random_trace)
    text = to_mermaid(diagram)
    assert len(re.findall(r"^    s\d+\[", text, re.MULTILINE)) == len(diagram.boxes)
    assert len(re.findall(r"^    s\d+ (?:-->|==>) s\d+$", text, re.MULTILINE)) == len(diagram.arrows)
    assert all(line.count('"') == 2 for line in text.splitlines() if "[" in line)


def test_the_failing_path_is_marked() -> None:
    diagram = of_trace(trace(step("a"), step("b", "a"), step("c", "a"), step("d", "c", error=Failure("Oops"))))
    assert {box.id: box.tone for box in diagram.boxes} == {"a": "path", "b": "function", "c": "path", "d": "failed"}
    assert [(arrow.source, arrow.target) for arrow in diagram.arrows if arrow.is_marked] == [("a", "c"), ("c", "d")]
    assert "s0 ==> " in to_mermaid(diagram)


def test_visits_of_a_node_share_a_box() -> None:
    loop = trace(step("a"), step("b", "a"), step("a~2", "b", node="a"), step("b~2", "a~2", node="b"))
    diagram = of_nodes(loop)
    assert [box.title for box in diagram.boxes] == ["a ×2", "b ×2"]
    assert {(arrow.source, arrow.target, arrow.label) for arrow in diagram.arrows} == {("a", "b", "×2"), ("b", "a", "")}
    assert len(boxes_of(to_svg(diagram))) == 2


def test_lanes_part_and_meet() -> None:
    diamond = trace(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"), step("e", "d"))
    rows = to_lanes(TraceGraph(diamond), diamond.steps)
    assert rows is not None
    assert [drawing for drawing, _ in rows] == ["●", "├─╮", "● │", "│ ●", "├─╯", "●", "●"]


@given(traces(rich=False))
def test_lanes_have_a_row_per_step(random_trace: ExecutionTrace) -> None:
    rows = to_lanes(TraceGraph(random_trace), random_trace.steps)
    assert rows is not None
    assert [row_step for _, row_step in rows if row_step] == list(random_trace.steps)
    for drawing, row_step in rows:
        assert sum(drawing.count(mark) for mark in "●✗○") == (1 if row_step else 0)


def test_lanes_that_would_be_too_wide_are_not_drawn() -> None:
    wide = trace(step("a"), *(step(f"w{number}", "a") for number in range(30)))
    assert to_lanes(TraceGraph(wide), wide.steps, widest=40) is None


def test_odd_names_make_no_odd_pictures() -> None:
    odd = trace(step("a\x01b"), step("\x1b[2J", "a\x01b"), step("x\0y", "\x1b[2J"))
    assert len(boxes_of(to_svg(of_trace(odd)))) == 3


def test_an_empty_diagram_title_does_not_matter() -> None:
    diagram = of_trace(trace(step("a")))
    assert to_svg(Diagram("", diagram.boxes, ())).startswith("<svg")


def test_durations_read_well() -> None:
    assert [format_duration(ns) for ns in (900, 2_500_000, 1_234_000_000, 125 * 10**9)] == [
        "1 µs",
        "2 ms",
        "1.23 s",
        "2 min 05 s",
    ]
