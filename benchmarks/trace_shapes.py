"""Runs of one shape and any size, as spans of another framework: deep, wide, linked, long, and all quoting one text."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.foreign_spans import make_messages, make_run, write_request, write_words
from traces.errors import Place
from traces.otel.intake import Intake
from traces.otel.otlp_json import decode
from traces.otel.spans import Link, Span

QUOTED = write_words(random.Random(0), 40)


def make_nested(size: int) -> list[Span]:
    """Agents that call each other as tools: each span is in the one before it."""
    spans = []
    for number in range(size):
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "delegate"}
        if number % 3 == 0:
            attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": f"agent {number}"}
        times = (number, 3 * size - number)
        spans.append(make_span(number, number - 1 if number else None, attributes, *times))
        if number % 3 == 0:
            spans.append(make_span(size + number, number, make_chat(f"question {number}", f"answer {number}"), *times))
    return spans


def make_wrapped(size: int) -> list[Span]:
    """Spans that say nothing, each in the one before it, with a model call in each."""
    spans = []
    for number in range(size // 2):
        times = (number, 3 * size - number)
        spans.append(make_span(number, number - 1 if number else None, {}, *times))
        chat = make_chat(f"question {number}", f"answer {number}")
        spans.append(make_span(size + number, number, chat, number, number + 1))
    return spans


def make_siblings(size: int) -> list[Span]:
    """Model calls side by side, each with a transport span: half at the same time, half one after the other."""
    spans = [make_span(0, None, {"gen_ai.operation.name": "invoke_workflow"}, 0, 10 * size)]
    for number in range(1, size // 2):
        start, end = (number, 2 * size) if number % 2 else (2 * size + 2 * number, 2 * size + 2 * number + 1)
        spans.append(make_span(number, 0, make_chat(f"question {number}", f"answer {number}"), start, end))
        spans.append(make_span(size + number, number, {}, start, end))
    return spans


def make_linked(size: int) -> list[Span]:
    """Steps that are linked to a message of the step before."""
    spans = [make_span(0, None, {}, 0, 10 * size)]
    for number in range(1, size // 2):
        attributes = {"executor.id": f"executor {number % 7}"}
        links = (Link(TRACE_ID, f"{size + number - 1:016x}", {}),) if number > 1 else ()
        spans.append(make_span(number, 0, attributes, 3 * number, 3 * number + 2)._replace(links=links))
        spans.append(make_span(size + number, number, {}, 3 * number + 1, 3 * number + 1))
    return spans


def make_quoting(size: int) -> list[Span]:
    """Model calls that all read one text, and answer with it."""
    return [
        make_span(number, None, make_chat(f"{QUOTED} {number}", f"{number} {QUOTED}"), 2 * number, 2 * number + 1)
        for number in range(size)
    ]


def make_overlapping(size: int) -> list[Span]:
    """The same, and they all run at the same time."""
    chats = (make_chat(f"{QUOTED} {number}", f"{number} {QUOTED}") for number in range(size))
    return [make_span(number, None, chat, number, 2 * size) for number, chat in enumerate(chats)]


def make_long(size: int) -> list[Span]:
    """Agents with tools and messages, in one long trace."""
    spans: list[Span] = []
    for number in range(size // 50):
        for batch in decode([(Place("spans"), write_request(make_run(number)))], Intake()):
            spans += [span._replace(trace_id=TRACE_ID) for span in batch if isinstance(span, Span)]
    return spans


TRACE_ID = f"{1:032x}"


def make_span(number: int, parent: int | None, attributes: dict[str, Any], start: int, end: int) -> Span:
    parent_id = None if parent is None else f"{parent:016x}"
    second = 1_790_000_000_000_000_000
    return Span(
        TRACE_ID, f"{number:016x}", parent_id, "span", 1, second + start, second + end, attributes, (), False, "", ""
    )


def make_chat(asked: str, answered: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": make_messages(("user", asked)),
        "gen_ai.output.messages": make_messages(("assistant", answered)),
    }


SHAPES: Mapping[str, tuple[Callable[[int], list[Span]], int]] = {
    "nested agents": (make_nested, 10_000),
    "nested wrappers": (make_wrapped, 10_000),
    "siblings": (make_siblings, 10_000),
    "linked steps": (make_linked, 10_000),
    "steps that quote one text": (make_quoting, 10_000),
    "the same, at the same time": (make_overlapping, 10_000),
    "one long trace": (make_long, 50_000),
}
"""What makes each shape, and the largest size that is measured."""
