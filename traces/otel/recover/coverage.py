"""What an import took over from the spans and what it did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from traces.model import ExecutionTrace, Json


@dataclass(slots=True)
class Coverage:
    """Counts of one import. Spans that became the outermost span of a step are neither folded nor dropped.

    `received` are the spans and log records so far, while an import is running.
    """

    spans: int = 0
    traces: int = 0
    steps: int = 0
    folded: int = 0
    without_steps: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    edges: Counter[str] = field(default_factory=Counter)
    without_predecessors: int = 0
    changed_by_consensus: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    received: int = 0

    def add_spans(self, count: int, dropped: Counter[str]) -> None:
        self.spans += count
        self.dropped += dropped

    def add_folded(self, count: int, *, is_trace: bool) -> None:
        self.folded += count
        self.without_steps += not is_trace

    def add_trace(self, trace: ExecutionTrace, *, spans: int) -> None:
        self.traces += 1
        self.steps += len(trace.steps)
        self.folded += spans - len({step.id.partition("#")[0] for step in trace.steps})

    def add_edges(self, trace: ExecutionTrace, *, is_changed: bool) -> None:
        """Count the edges of a trace when they are final. It `is_changed` if other runs corrected them."""
        self.changed_by_consensus += is_changed
        self.edges.update(f"{edge.kind}/{edge.evidence}" for step in trace.steps for edge in step.edges)
        self.without_predecessors += sum(not step.predecessors for step in trace.steps)

    def to_json(self) -> dict[str, Json]:
        return {
            "spans": self.spans,
            "traces": self.traces,
            "steps": self.steps,
            "spans_folded": self.folded,
            "spans_dropped": dict(self.dropped),
            "traces_without_steps": self.without_steps,
            "edges": dict(self.edges),
            "steps_without_predecessors": self.without_predecessors,
            "traces_changed_by_consensus": self.changed_by_consensus,
            "warnings": dict(self.warnings),
        }
