from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from examples.record_a_run import record
from traces import ExecutionTrace, read_traces

BUNDLED = Path(__file__).parent.parent / "examples" / "traces" / "research_desk.jsonl"


def without_times(trace: ExecutionTrace) -> ExecutionTrace:
    return replace(
        trace,
        steps=tuple(
            replace(
                step,
                start_ns=None,
                end_ns=None,
                tool_calls=tuple(replace(call, start_ns=None, end_ns=None) for call in step.tool_calls),
            )
            for step in trace.steps
        ),
    )


@pytest.mark.slow
async def test_the_bundled_trace_is_what_the_example_records() -> None:
    [bundled] = read_traces(BUNDLED)
    assert without_times(await record()) == without_times(bundled)
