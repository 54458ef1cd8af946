"""Names for the steps of a trace: the node, and which of its executions.

Recorded steps have ids that people can read. The id of an imported step is that of its span, such as `1f0c2b…`; it is
shown as `writer`, and the next execution of the same node as `writer#2`.
"""

from __future__ import annotations

import re
from collections import Counter

from traces.model import ExecutionTrace

_SPAN_ID = re.compile(r"[0-9a-f]{16}(?:#\d+)?")


def name_executions(trace: ExecutionTrace) -> dict[str, str]:
    """The node of each step, by step id, in the order in which they started, with `#2`, `#3` … if it ran before."""
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    for step in sorted(trace.steps, key=lambda step: step.start_ns or 0):
        counts[step.node_id] += 1
        count = counts[step.node_id]
        names[step.id] = step.node_id if count == 1 else f"{step.node_id}#{count}"
    return names


def name_steps(trace: ExecutionTrace) -> dict[str, str]:
    """What to call each step: its id, or the name of the execution if the id is that of a span."""
    if not any(_SPAN_ID.fullmatch(step.id) for step in trace.steps):
        return {step.id: step.id for step in trace.steps}
    return {
        step_id: name if _SPAN_ID.fullmatch(step_id) else step_id for step_id, name in name_executions(trace).items()
    }
