"""Names for the steps of a trace: the node, and which of its executions.

Recorded steps have ids that people can read. The id of an imported step is that of its span, such as `1f0c2b…`; it is
shown as `writer`, and the next execution of the same node as `writer#2`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from traces.model import ExecutionTrace, Step

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


def show_names(trace: ExecutionTrace) -> ExecutionTrace:
    """An imported trace as it is shown: steps by the names of their executions, without texts that were only read.

    Reading is guessed from texts, and long texts pass through many steps. The attribute `span_id` keeps the id.
    Recorded traces are shown as they are.
    """
    if not all(_SPAN_ID.fullmatch(step.id) for step in trace.steps):
        return trace
    names = name_executions(trace)
    return replace(trace, steps=tuple(_rename(step, names) for step in trace.steps))


def _rename(step: Step, names: Mapping[str, str]) -> Step:
    followed = set(step.followed)
    return replace(
        step,
        id=names[step.id],
        predecessors=tuple(names[source] for source in followed),
        edges=tuple(replace(edge, source=names[edge.source]) for edge in step.edges if edge.kind == "control"),
        attributes={**step.attributes, "span_id": step.id},
    )
