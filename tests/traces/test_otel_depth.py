"""Runs that are nested far deeper than Python's stack, and larger than what may be compared pair by pair."""

from __future__ import annotations

from typing import Any

import pytest

from traces.otel.runs import build_traces
from traces.otel.spans import Span

AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "agent"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "delegate"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": "an answer"}


def make_span(number: int, parent: int | None, attributes: dict[str, Any], *, start: int, end: int) -> Span:
    parent_id = None if parent is None else f"{parent:016x}"
    return Span("1" * 32, f"{number:016x}", parent_id, "", 1, start, end, dict(attributes), (), False, "", "")


def nest(depth: int, *kinds: dict[str, Any]) -> list[Span]:
    """Spans in each other, of these kinds in turn."""
    return [
        make_span(level, level - 1 if level else None, kinds[level % len(kinds)], start=level, end=9 * depth - level)
        for level in range(depth)
    ]


def test_agents_that_call_each_other_deeper_than_the_stack_are_a_chain() -> None:
    depth = 1_500
    chats = [make_span(depth + level, level, CHAT, start=level, end=level + 1) for level in range(0, depth, 300)]
    [trace] = build_traces([*nest(depth, AGENT, TOOL), *chats])
    assert len(trace.steps) == depth // 2
    assert sum(len(step.predecessors) for step in trace.steps) == depth // 2 - 1


@pytest.mark.slow
def test_one_model_call_below_five_thousand_spans_is_one_step() -> None:
    spans = [*nest(5_000, {}), make_span(5_000, 4_999, CHAT, start=5_000, end=5_001)]
    [trace] = build_traces(spans)
    assert [step.kind for step in trace.steps] == ["llm"]


@pytest.mark.slow
def test_wrappers_in_wrappers_are_levels_without_recursion() -> None:
    chats = [make_span(2_000 + level, level, CHAT, start=2_000 + level, end=2_000 + level) for level in range(1_200)]
    [trace] = build_traces([*nest(1_200, {}), *chats])
    assert len(trace.steps) == 1_200


@pytest.mark.slow
def test_agents_that_call_each_other_five_thousand_deep_are_a_chain() -> None:
    spans = nest(5_000, AGENT, TOOL)
    chats = [make_span(10_000 + level, level, CHAT, start=level, end=level + 1) for level in range(0, 5_000, 2)]
    [trace] = build_traces([*spans, *chats])
    assert len(trace.steps) == 2_500
    assert sum(len(step.predecessors) for step in trace.steps) == 2_499
