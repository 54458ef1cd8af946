"""Texts that were changed, and texts that are filled in for each run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from promptiter.tasks.recorded_structure import RecordedStructure, recover_structure
from promptiter.tasks.run_tally import RunTally, has_read, list_given_up
from traces import ExecutionTrace, Step, to_structure
from traces.model import Edge, digest
from traces.structure import SURFACES

HOUR = 3_600_000_000_000
RULES = "You answer questions of customers about their orders. Be brief and polite."


def make_trace(number: int, text: str) -> ExecutionTrace:
    step = Step(
        id="s",
        node_id="agent",
        surface_reads={"agent#instruction": digest(text)},
        start_ns=HOUR * (number + 1),
    )
    surfaces = {"agent#instruction": {"type": "instruction", "value": text}}
    return ExecutionTrace(id=f"t{number}", steps=(step,), attributes={SURFACES: surfaces})


def recover(traces: Iterable[ExecutionTrace]) -> RecordedStructure:
    return recover_structure(to_structure(traces))


def tally(traces: Iterable[ExecutionTrace]) -> RunTally:
    found = RunTally()
    for trace in traces:
        found.add(trace, "unknown")
    return found


NAMES = ("Ada", "Bo", "Cy")


@pytest.mark.parametrize(
    "texts",
    [
        [f"Today is 2026-09-{day // 4 + 10}. {RULES}" for day in range(24)],
        [f"The customer is {NAMES[number % 3]}. {RULES}" for number in range(12)],
        [f"The customer is C{chr(97 + number)}. {RULES}" for number in range(12)],
    ],
    ids=["a date", "names that come again", "names that come once"],
)
def test_a_text_that_is_filled_in_has_a_template_and_no_versions(texts: list[str]) -> None:
    found = recover(make_trace(number, text) for number, text in enumerate(texts))
    template = found.templates["agent#instruction"]
    assert template.endswith(RULES)
    assert "{…}" in template
    assert found.snapshot.surface("agent#instruction").value == template


def test_a_text_that_was_changed_has_versions_and_no_template() -> None:
    traces = [make_trace(number, f"{RULES} Version {number // 5}.") for number in range(10)]
    found = recover(traces)
    assert not found.templates
    assert found.snapshot.surface("agent#instruction").value == f"{RULES} Version 1."
    versions = tally(traces).list_versions(found.snapshot, ["unknown"])
    given_up = list_given_up(versions)
    assert [has_read(trace, given_up) for trace in traces] == [True] * 5 + [False] * 5


def test_versions_that_are_tried_side_by_side_are_all_current() -> None:
    traces = [make_trace(number, f"{RULES} Version {number % 2}.") for number in range(10)]
    versions = tally(traces).list_versions(recover(traces).snapshot, ["unknown"])
    assert not list_given_up(versions)


def test_a_text_that_is_filled_in_may_be_read_by_several_steps_of_a_run() -> None:
    texts = [f"The customer is C{chr(97 + number)}. {RULES}" for number in range(6)]
    traces = [make_trace(number, text) for number, text in enumerate(texts)]
    steps = [(trace, trace.steps[0]) for trace in traces]
    looped = [
        replace(trace, steps=(step, replace(step, id="s2", start_ns=(step.start_ns or 0) + 1))) for trace, step in steps
    ]
    assert recover(looped).templates == recover(traces).templates


def test_edges_that_were_only_guessed_are_named() -> None:
    known, guess = Edge(source="a", evidence="link"), Edge(source="b", evidence="time")
    steps = (
        Step(id="a", node_id="plan"),
        Step(id="b", node_id="search", predecessors=("a",), edges=(known,)),
        Step(id="c", node_id="write", predecessors=("b",), edges=(guess,)),
    )
    found = recover([ExecutionTrace(id="t", steps=steps)])
    assert [(edge.source, edge.target) for edge in found.snapshot.edges] == [("plan", "search"), ("search", "write")]
    assert found.guessed == {("search", "write")}
