"""The static graph and the surfaces behind traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.dom import minidom

import pytest

from traces import ExecutionTrace, Step, digest, read_otel, to_structure
from traces.draw.mermaid import to_mermaid
from traces.draw.structure_diagram import draw_structure
from traces.draw.svg import to_svg
from traces.structure import MOST_VALUES, SURFACES, merge_template

ROOT = Path(__file__).parent.parent.parent
EXPORT = ROOT / "tests" / "traces" / "exports" / "strands_native_events.graph_cycle.otlp.jsonl"
DESK = ROOT / "examples" / "import_spans" / "desk.otlp.jsonl"


def make_trace(number: int, instruction: str) -> ExecutionTrace:
    """A planner, and a writer that is recorded without edges."""
    reads = {"planner#instruction": digest(instruction)}
    steps = (
        Step(id="planner", node_id="planner", kind="llm", surface_reads=reads, start_ns=number, end_ns=number + 1),
        Step(id="writer", node_id="writer", predecessors=("planner",), start_ns=number + 2, end_ns=number + 3),
    )
    surfaces = {"planner#instruction": {"type": "instruction", "value": instruction}}
    return ExecutionTrace(id=f"run{number}", steps=steps, attributes={SURFACES: surfaces})


def test_a_structure_has_nodes_edges_and_surfaces_with_counts_and_times() -> None:
    structure = to_structure(make_trace(number, "Plan.") for number in (10, 20))
    assert [(node.id, node.kind, node.steps, node.first_ns, node.last_ns) for node in structure.nodes] == [
        ("planner", "llm", 2, 10, 20),
        ("writer", "function", 2, 12, 22),
    ]
    [edge] = structure.edges
    assert (edge.source, edge.target, edge.kind, edge.traces) == ("planner", "writer", "control", 2)
    assert edge.evidence == {"recorded": 2}
    assert not edge.is_guessed
    [surface] = structure.surfaces
    assert (surface.node_id, surface.type, surface.template) == ("planner", "instruction", None)
    [value] = surface.values
    assert (value.value, value.digest, value.steps, value.traces) == ("Plan.", digest("Plan."), 2, 2)
    assert (value.first_ns, value.last_ns) == (10, 20)


def test_instructions_that_differ_in_filled_in_values_are_one_template() -> None:
    texts = [f"Today is 2026-11-{day}. Help {name}. Keep order ids." for day, name in ((16, "Ada"), (17, "Bo Li"))]
    [surface] = to_structure(make_trace(at, text) for at, text in enumerate(texts, start=1)).surfaces
    assert surface.template == "Today is 2026-11-{…}. Help {…}. Keep order ids."
    assert len(surface.values) == 2


def test_different_instructions_are_no_template() -> None:
    texts = ["Today is Monday. Plan the trip.", "You write a summary of every given text in English."]
    [surface] = to_structure(make_trace(at, text) for at, text in enumerate(texts, start=1)).surfaces
    assert surface.template is None


@pytest.mark.parametrize(
    ("template", "text", "merged"),
    [
        ("a b c d", "a b c d", "a b c d"),
        ("a b c d", "a x c d", "a {…} c d"),
        ("a {…} c d e", "a b c x e", "a {…} c {…} e"),
        ("a b c d", "a b c d e", "a b c d{…}"),
        ("", "a", None),
    ],
)
def test_what_two_texts_share(template: str, text: str, merged: str | None) -> None:
    assert merge_template(template, text) == merged


def test_the_number_of_values_that_are_kept_is_bounded() -> None:
    numbers = [*range(1, MOST_VALUES + 11), MOST_VALUES + 10]  # the last one twice
    [surface] = to_structure(make_trace(at, f"Plan {at} now.") for at in numbers).surfaces
    assert (len(surface.values), surface.others) == (MOST_VALUES, 10)
    assert surface.template == "Plan {…} now."


def test_a_value_that_a_trace_does_not_have_is_taken_from_another() -> None:
    known = make_trace(1, "Plan.")
    [surface] = to_structure([replace(known, attributes={}), known]).surfaces
    assert [(value.value, value.steps) for value in surface.values] == [("Plan.", 2)]


def test_a_structure_is_written_as_json_and_drawn() -> None:
    structure = to_structure(read_otel(EXPORT))
    assert to_structure(read_otel(EXPORT)) == structure
    fields = json.loads(json.dumps(structure.to_json()))
    assert [node["id"] for node in fields["nodes"]] == ["planner", "compose", "retrieve", "reviewer", "finalize"]
    diagram = draw_structure(structure)
    minidom.parseString(to_svg(diagram))
    assert "-.->" in to_mermaid(diagram)


def test_runs_of_one_application_are_one_graph() -> None:
    structure = to_structure(read_otel(DESK))
    assert {(edge.source, edge.target) for edge in structure.edges} == {
        ("planner", "search"),
        ("planner", "check"),
        ("search", "writer"),
        ("check", "writer"),
    }
