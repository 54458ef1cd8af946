"""How sure it is that what a step did reached the place of a loss, given how sure each edge of the trace is.

Recorded edges are certain. Those of imported traces are often guessed from text or time, and blame that is carried back
over them counts for less.
"""

from __future__ import annotations

from collections.abc import Iterable

from traces import ExecutionTrace


def trust_steps(trace: ExecutionTrace, losses: Iterable[str]) -> dict[str, float]:
    """The trust in the surest way from each step to a step with a loss: that of its least certain edge.

    A step without such a way is not in it.
    """
    trust = dict.fromkeys(losses, 1.0)
    for step in reversed(trace.steps):
        reached = trust.get(step.id)
        if reached is None:
            continue
        for source in step.predecessors:
            sure = [edge.confidence for edge in step.edges if edge.source == source]
            trust[source] = max(trust.get(source, 0.0), min(reached, max(sure, default=1.0)))
    return trust


def has_guesses(trace: ExecutionTrace) -> bool:
    """Whether an edge of the trace is less than certain."""
    return any(edge.confidence < 1.0 for step in trace.steps for edge in step.edges)
