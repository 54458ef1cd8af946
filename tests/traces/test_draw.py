from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from tests.traces.strategies import traces
from traces import ExecutionTrace, Failure, Snapshot, Step, TraceGraph
from traces.draw.diagram import Arrow, Box, Diagram
from traces.draw.labels import find_point, place_labels
from traces.draw.lanes import to_lanes
from traces.draw.layers import assign_layers
from traces.draw.layout import BOX_HEIGHT, Layout, arrange
from traces.draw.mermaid import to_mermaid
from traces.draw.svg import to_svg
from traces.draw.trace_diagram import MOST_BOXES, draw_nodes, draw_steps, draw_trace

SVG = "{http://www.w3.org/2000/svg}"
BOX_WIDTH = 160


def step(step_id: str, *predecessors: str, node: str | None = None, error: Failure | None = None) -> Step:
    return Step(id=step_id, node_id=node or step_id, predecessors=predecessors, error=error)


def trace(*steps: Step) -> ExecutionTrace:
    return ExecutionTrace(id="t", status="failed", steps=steps)


def fan_out(size: int, *, failing: int | None = None) -> ExecutionTrace:
    """A planner, parallel branches of two steps each, and a step that joins them unless one failed."""
    steps = [step("plan")]
    for index in range(size):
        error = Failure("TimeoutError") if index == failing else None
        steps += [
            step(f"search[{index}]", "plan", node="search"),
            step(f"read[{index}]", f"search[{index}]", node="read", error=error),
        ]
    if failing is None:
        steps.append(step("answer", *(f"read[{index}]" for index in range(size))))
    return trace(*steps)


def loop(turns: int) -> ExecutionTrace:
    """A writer whose two critics send it back, each with an edge of its own."""
    steps: list[Step] = []
    for turn in range(1, turns + 1):
        before = (f"facts~{turn - 1}", f"style~{turn - 1}") if turn > 1 else ()
        steps += [
            step(f"write~{turn}", *before, node="write"),
            step(f"facts~{turn}", f"write~{turn}", node="facts"),
            step(f"style~{turn}", f"write~{turn}", node="style"),
        ]
    return trace(*steps)


def arrange_diagram(diagram: Diagram) -> Layout:
    return arrange(diagram, box_width=BOX_WIDTH, measure_label=lambda label: 6.0 * len(label))


def titles_of(diagram: Diagram) -> list[str]:
    return [box.title for box in diagram.boxes]


def boxes_of(svg: str) -> dict[str, ElementTree.Element]:
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return {group.attrib["data-id"]: group for group in groups if "data-id" in group.attrib}


def texts_of(box: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in box.iter(f"{SVG}text")]


@pytest.mark.slow
@settings(max_examples=50)
@given(traces())
def test_pictures_are_well_formed_and_have_every_box_and_arrow(random_trace: ExecutionTrace) -> None:
    for diagram in (draw_steps(random_trace), draw_nodes(random_trace)):
        assert len(boxes_of(to_svg(diagram))) == len(diagram.boxes)
        text = to_mermaid(diagram)
        assert len(re.findall(r"^    s\d+\[", text, re.MULTILINE)) == len(diagram.boxes)
        assert len(re.findall(r"^    s\d+ (?:-->|==>)(?:\|[^|]*\|)? s\d+$", text, re.MULTILINE)) == len(diagram.arrows)
        assert all(line.count('"') == 2 for line in text.splitlines() if "[" in line)


@given(traces(rich=False))
def test_boxes_do_not_overlap(random_trace: ExecutionTrace) -> None:
    for diagram in (draw_steps(random_trace), draw_nodes(random_trace)):
        places = arrange_diagram(diagram).boxes
        for first, (x1, y1) in places.items():
            for second, (x2, y2) in places.items():
                assert first == second or abs(y1 - y2) >= BOX_HEIGHT or abs(x1 - x2) >= BOX_WIDTH


@given(traces(rich=False))
def test_no_arrow_runs_behind_a_box(random_trace: ExecutionTrace) -> None:
    for diagram in (draw_steps(random_trace), draw_nodes(random_trace)):
        layout = arrange_diagram(diagram)
        for route in layout.routes:
            for curve in route:
                for share in range(11):
                    x, y = find_point(curve, share / 10)
                    assert not any(
                        abs(x - box.x) < BOX_WIDTH / 2 - 0.1 and 0.1 < y - box.y < BOX_HEIGHT - 0.1
                        for box in layout.boxes.values()
                    )


@given(traces(rich=False))
def test_svg_has_an_arrow_per_edge_and_predecessors_above(random_trace: ExecutionTrace) -> None:
    diagram = draw_steps(random_trace, unfold=True)
    edges = list(TraceGraph(random_trace).digraph.edges)
    assert to_svg(diagram).count("marker-end=") == len(edges)
    places = arrange_diagram(diagram).boxes
    assert all(places[source].y < places[target].y for source, target in edges)


def test_the_failing_path_is_marked() -> None:
    failed = trace(step("a"), step("b", "a"), step("c", "a"), step("d", "c", error=Failure("Oops")))
    for diagram in (draw_steps(failed), draw_nodes(failed)):
        assert {box.id: (box.tone, box.is_marked) for box in diagram.boxes} == {
            "a": ("function", True),
            "b": ("function", False),
            "c": ("function", True),
            "d": ("failed", True),
        }
        assert [(arrow.source, arrow.target) for arrow in diagram.arrows if arrow.is_marked] == [("a", "c"), ("c", "d")]
        assert "s0 ==> " in to_mermaid(diagram)
        assert "class s0,s2,s3 marked" in to_mermaid(diagram)
        assert to_svg(diagram).count("url(#marked-tip)") == 2


def test_visits_of_a_node_share_a_box() -> None:
    twice = trace(step("a"), step("b", "a"), step("a~2", "b", node="a"), step("b~2", "a~2", node="b"))
    diagram = draw_nodes(twice)
    assert titles_of(diagram) == ["a ×2", "b ×2"]
    assert {(arrow.source, arrow.target, arrow.label) for arrow in diagram.arrows} == {("a", "b", "×2"), ("b", "a", "")}


def test_parallel_steps_that_look_alike_share_a_box() -> None:
    assert titles_of(draw_steps(fan_out(40))) == ["plan", "search ×40", "read ×40", "answer"]
    assert len(draw_steps(fan_out(40), unfold=True).boxes) == 82


def test_a_few_parallel_steps_are_drawn_side_by_side() -> None:
    assert len(draw_steps(fan_out(4)).boxes) == 10


def test_the_branch_that_failed_keeps_a_box_of_its_own() -> None:
    titles = titles_of(draw_steps(fan_out(40, failing=17)))
    assert sorted(titles) == ["plan", "read ×39", "read[17]", "search ×39", "search[17]"]


def test_steps_fold_only_with_those_below_the_same_box() -> None:
    steps = [step("start"), step("left", "start"), step("right", "start")]
    steps += [step(f"{side}/work[{index}]", side, node="work") for side in ("left", "right") for index in range(6)]
    diagram = draw_steps(trace(*steps))
    assert sorted(titles_of(diagram)) == ["left", "left/work ×6", "right", "right/work ×6", "start"]


@given(traces(rich=False))
def test_folding_loses_no_step_and_makes_no_loop(random_trace: ExecutionTrace) -> None:
    diagram = draw_steps(random_trace)
    counts = [int(box.title.rpartition("×")[2]) if " ×" in box.title else 1 for box in diagram.boxes]
    assert sum(counts) == len(random_trace.steps)
    layers = assign_layers(diagram)
    assert all(layers[arrow.source] < layers[arrow.target] for arrow in diagram.arrows)


def test_long_traces_are_drawn_by_node() -> None:
    assert len(draw_trace(loop(20)).boxes) == 3
    assert len(draw_trace(loop(MOST_BOXES // 3)).boxes) == 3 * (MOST_BOXES // 3)
    assert titles_of(draw_trace(fan_out(40))) == ["plan", "search ×40", "read ×40", "answer"]


def test_branches_keep_the_order_in_which_they_started() -> None:
    branches = [
        Step(id=name, node_id=name, predecessors=("start",), start_ns=at, end_ns=at + 1)
        for at, name in enumerate(("left", "mid", "right"), start=1)
    ]
    layout = arrange_diagram(draw_steps(trace(step("start"), *branches)))
    assert layout.boxes["left"].x < layout.boxes["mid"].x < layout.boxes["right"].x


def test_arrows_that_close_a_loop_lead_up() -> None:
    layers = assign_layers(draw_nodes(loop(5)))
    assert layers == {"write": 0, "facts": 1, "style": 1}


def test_arrows_between_branches_of_a_loop_still_lead_down() -> None:
    boxes = tuple(Box(name, name, "", "llm") for name in "abc")
    arrows = (Arrow("a", "b"), Arrow("a", "c"), Arrow("c", "b"), Arrow("b", "a"), Arrow("c", "c"))
    diagram = Diagram("", boxes, arrows)
    assert assign_layers(diagram) == {"a": 0, "c": 1, "b": 2}
    assert len(boxes_of(to_svg(diagram))) == 3


def test_labels_of_arrows_overlap_neither_boxes_nor_each_other() -> None:
    diagram = draw_nodes(loop(20))
    layout = arrange_diagram(diagram)
    labels = place_labels(diagram.arrows, layout, box_width=BOX_WIDTH, measure=lambda label: 6.0 * len(label))
    assert len(labels) == 4
    rectangles = [(place.x, place.y - 10, place.x + 18, place.y + 2) for place in labels.values()]
    rectangles += [
        (box.x - BOX_WIDTH / 2, box.y, box.x + BOX_WIDTH / 2, box.y + BOX_HEIGHT) for box in layout.boxes.values()
    ]
    for at, (left, top, right, bottom) in enumerate(rectangles):
        for other_left, other_top, other_right, other_bottom in rectangles[:at]:
            assert left >= other_right or right <= other_left or top >= other_bottom or bottom <= other_top


def test_long_names_keep_their_index() -> None:
    name = "worker_with_a_rather_long_name_for_tests"
    steps = [step(f"{name}[{index}]~2", node=name) for index in range(4)]
    shown = [texts_of(box)[0] for box in boxes_of(to_svg(draw_steps(trace(*steps)))).values()]
    assert len(set(shown)) == 4
    assert all(re.fullmatch(r"worker_with.*….*\[\d\]~2", text) for text in shown)
    (box,) = boxes_of(to_svg(draw_nodes(trace(*steps)))).values()
    assert texts_of(box)[0].endswith(" ×4")


def test_hover_shows_input_and_output() -> None:
    shown = Step(
        id="a",
        node_id="a",
        input=Snapshot(data={"question": "<b>Why?</b>", "n": None}),
        output=Snapshot(text="x" * 10_000),
        error=Failure("ValueError", "bad & ugly"),
    )
    (box,) = boxes_of(to_svg(draw_steps(trace(shown)))).values()
    title, given_input, output, error = (box.findtext(f"{SVG}title") or "").splitlines()
    assert title == "a (function)"
    assert given_input == 'input: {"question": "<b>Why?</b>", "n": null}'
    assert output.startswith("output: xxx")
    assert len(output) < 500
    assert error == "error: ValueError: bad & ugly"


def test_hover_of_a_folded_box_shows_the_first_few_steps() -> None:
    hover = next(box.hover for box in draw_steps(fan_out(40)).boxes if box.title == "read ×40")
    assert "read[0] (function)" in hover
    assert hover.endswith("… and 37 more")


def test_the_legend_names_the_colours_that_occur() -> None:
    picture = to_svg(draw_steps(trace(step("a"), step("b", "a", error=Failure("Oops")))))
    texts = [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert texts[-3:] == ["function", "failed", "on the failing path"]
    assert "model call" not in picture


def test_the_background_is_transparent() -> None:
    picture = to_svg(draw_steps(trace(step("a"))))
    assert "@media (prefers-color-scheme: dark)" in picture
    assert len(list(ElementTree.fromstring(picture).iter(f"{SVG}rect"))) == 1


def test_lanes_split_and_merge() -> None:
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


def test_control_characters_in_names_do_not_break_pictures() -> None:
    odd = trace(step("a\x01b"), step("\x1b[2J", "a\x01b"), step("x\0y", "\x1b[2J"))
    assert len(boxes_of(to_svg(draw_steps(odd)))) == 3


@pytest.mark.parametrize("title", ["", "a title that is wider than the box below it, by far, as anyone can see"])
def test_titles_of_any_length_fit(title: str) -> None:
    picture = ElementTree.fromstring(to_svg(Diagram(title, draw_steps(trace(step("a"))).boxes, ())))
    assert float(picture.attrib["width"]) > 7 * len(title)
