"""Calls of tools in recorded traces. They show what a tool returns that the run in question did not call."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.structure import Surface
from traces import ExecutionTrace, ToolCall


class FirstCalls:
    """The first call of each tool in some traces."""

    def __init__(self, traces: Iterable[ExecutionTrace]) -> None:
        self._calls: dict[tuple[str, str], ToolCall] = {}
        for trace in traces:
            for step in trace.steps:
                for call in step.tool_calls:
                    self._calls.setdefault((step.node_id, call.name), call)

    def find(self, surface: Surface) -> ToolCall | None:
        """The call of the tool that a surface describes, made by its node; None if there is none."""
        return self._calls.get((surface.node_id, surface.part)) if surface.type == "tool" else None
