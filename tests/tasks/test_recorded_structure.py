"""Texts that were changed, and texts that are filled in for each run."""

from __future__ import annotations

import pytest

from promptiter.tasks.recorded_structure import count_versions, has_read, list_given_up, recover_structure
from traces import ExecutionTrace, Step
from traces.model import digest
from traces.otel.recover.surfaces import SURFACES

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
    found = recover_structure(make_trace(number, text) for number, text in enumerate(texts))
    template = found.templates["agent#instruction"]
    assert template.endswith(RULES)
    assert "{…}" in template
    assert found.snapshot.surface("agent#instruction").value == template


def test_a_text_that_was_changed_has_versions_and_no_template() -> None:
    traces = [make_trace(number, f"{RULES} Version {number // 5}.") for number in range(10)]
    found = recover_structure(traces)
    assert not found.templates
    assert found.snapshot.surface("agent#instruction").value == f"{RULES} Version 1."
    versions = count_versions([(trace, False) for trace in traces], found.snapshot)
    given_up = list_given_up(versions)
    assert [has_read(trace, given_up) for trace in traces] == [True] * 5 + [False] * 5


def test_versions_that_are_tried_side_by_side_are_all_current() -> None:
    traces = [make_trace(number, f"{RULES} Version {number % 2}.") for number in range(10)]
    versions = count_versions([(trace, False) for trace in traces], recover_structure(traces).snapshot)
    assert not list_given_up(versions)
