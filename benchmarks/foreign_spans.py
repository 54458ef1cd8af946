"""Exports of spans as other frameworks write them: OTLP/JSON lines in the GenAI conventions, messages as JSON texts.

A run has 50 spans of about 1,750 bytes: a planner, three researchers at the same time, an editor that calls a writer as
a tool, a reviewer that is linked to the editor's message, and a last agent. Each agent calls its model, a tool, and its
model again, and each model call has a transport span. As from a batch exporter, spans come in the order of their ends,
512 to a line, from runs that overlap.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

SPANS_PER_RUN = 50
RUNS_AT_ONCE = 8
SPANS_PER_LINE = 512
SECOND = 1_000_000_000

_SYLLABLES = ("al", "be", "ga", "de", "ep", "ze", "et", "tho", "io", "ka", "ron", "lam", "tis", "mor", "vex", "nid")
_WORDS = [f"{a}{b}{c}" for a in _SYLLABLES for b in _SYLLABLES for c in ("", "s", "ing", "ed", "ly", "er")]


def write_foreign(path: Path, spans: int) -> None:
    """Write an export of this many spans."""
    with path.open("wb") as file:
        for batch in _cut(list_spans(spans // SPANS_PER_RUN), SPANS_PER_LINE):
            file.write(write_request(batch))


def write_request(spans: Sequence[dict[str, Any]]) -> bytes:
    """One line of an export."""
    resource = {"attributes": make_attributes({"service.name": "desk", "telemetry.sdk.language": "python"})}
    scope_spans = [{"scope": {"name": "opentelemetry.instrumentation.genai", "version": "1.0"}, "spans": list(spans)}]
    return orjson.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scope_spans}]}) + b"\n"


def list_spans(runs: int) -> Iterator[dict[str, Any]]:
    """The spans of many runs. Eight of them run at the same time."""
    for first in range(0, runs, RUNS_AT_ONCE):
        at_once = (make_run(number) for number in range(first, min(first + RUNS_AT_ONCE, runs)))
        yield from sorted((span for run in at_once for span in run), key=lambda span: int(span["endTimeUnixNano"]))


def make_run(number: int) -> list[dict[str, Any]]:
    """The spans of one run, parents first."""
    return _Run(number).make()


def make_span(
    trace: int,
    number: int,
    parent: int | None,
    name: str,
    attributes: dict[str, Any],
    *,
    start: int,
    end: int,
    links: Sequence[int] = (),
) -> dict[str, Any]:
    """A span as OTLP/JSON, with numbers for ids. Links go to spans of the same trace."""
    trace_id = f"{trace + 1:032x}"
    span = {
        "traceId": trace_id,
        "spanId": f"{(trace + 1) << 24 | number:016x}",
        "parentSpanId": "" if parent is None else f"{(trace + 1) << 24 | parent:016x}",
        "flags": 256,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(1_790_000_000 * SECOND + start),
        "endTimeUnixNano": str(1_790_000_000 * SECOND + end),
        "attributes": make_attributes(attributes),
        "status": {},
    }
    if links:
        span["links"] = [{"traceId": trace_id, "spanId": f"{(trace + 1) << 24 | link:016x}"} for link in links]
    return span


def make_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _make_value(value)} for key, value in attributes.items()]


def make_messages(*messages: tuple[str, str]) -> str:
    """Messages as the text of an attribute."""
    return orjson.dumps(
        [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages]
    ).decode()


class _Run:
    def __init__(self, number: int) -> None:
        self.number = number
        self.rng = random.Random(number)
        self.spans: list[dict[str, Any]] = []
        self.conversation = f"conversation-{number}"
        self.offset = number // RUNS_AT_ONCE * 100 * SECOND + number % RUNS_AT_ONCE * SECOND // 3

    def make(self) -> list[dict[str, Any]]:
        task = self.write(50)
        root = self.add(None, "invoke_workflow desk", {"gen_ai.operation.name": "invoke_workflow"}, 0, 90)
        plan = self.run_agent(root, "planner", task, 1)
        found = [self.run_agent(root, f"researcher_{each}", f"{task}\n\n{plan}", 10 + each) for each in range(3)]
        draft, sent = self.run_editor(root, "\n\n".join([task, *found]), 30)
        review = self.run_agent(root, "reviewer", draft, 60, links=[sent])
        self.run_agent(root, "publisher", f"{task}\n\n{draft}\n\n{review}", 75)
        return self.spans

    def run_agent(self, parent: int, name: str, asked: str, start: float, *, links: Sequence[int] = ()) -> str:
        agent = self.add(parent, f"invoke_agent {name}", self.name_agent(name), start, start + 9, links)
        call_id, query = f"call_{self.rng.getrandbits(64):016x}", self.write(12)
        result, answer = self.write(50), self.write(80)
        self.call_model(agent, name, asked, start + 1, asks=("search", call_id, query))
        self.call_tool(agent, "search", call_id, query, result, start + 3.1, start + 4)
        self.call_model(agent, name, asked, start + 5, asks=("search", call_id, query), result=result, answer=answer)
        return answer

    def run_editor(self, parent: int, asked: str, start: float) -> tuple[str, int]:
        """An agent that calls another one as a tool, and sends a message at its end."""
        agent = self.add(parent, "invoke_agent editor", self.name_agent("editor"), start, start + 25)
        call_id, order, answer = f"call_{self.rng.getrandbits(64):016x}", self.write(40), self.write(80)
        self.call_model(agent, "editor", asked, start + 1, asks=("write", call_id, order))
        tool = self.call_tool(agent, "write", call_id, order, "", start + 4, start + 18)
        draft = self.run_agent(tool, "writer", order, start + 5)
        self.call_model(agent, "editor", asked, start + 19, asks=("write", call_id, order), result=draft, answer=answer)
        return answer, self.add(agent, "message.send", {"messaging.system": "local"}, start + 23, start + 24)

    def call_model(
        self,
        parent: int,
        agent: str,
        asked: str,
        start: float,
        *,
        asks: tuple[str, str, str],
        result: str | None = None,
        answer: str | None = None,
    ) -> None:
        tool, call_id, argument = asks
        text = {"type": "text", "content": asked}
        call = {"type": "tool_call", "id": call_id, "name": tool, "arguments": {"query": argument}}
        shown: list[dict[str, Any]] = [{"role": "user", "parts": [text]}]
        given = {"role": "assistant", "parts": [call], "finish_reason": "tool_call"}
        if result is not None:
            response = {"type": "tool_call_response", "id": call_id, "response": result}
            shown += [{"role": "assistant", "parts": [call]}, {"role": "tool", "parts": [response]}]
        if answer is not None:
            given = {"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}
        span = self.add(
            parent,
            "chat gpt-5-mini",
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "gpt-5-mini",
                "gen_ai.response.model": "gpt-5-mini-2026-01-01",
                "gen_ai.response.id": f"resp_{self.rng.getrandbits(96):024x}",
                "gen_ai.request.temperature": 0.2,
                "gen_ai.request.max_tokens": 1024,
                "gen_ai.response.finish_reasons": [given["finish_reason"]],
                "gen_ai.usage.input_tokens": len(asked) // 4,
                "gen_ai.usage.output_tokens": 200,
                "gen_ai.agent.name": agent,
                "server.address": "api.openai.com",
                "server.port": 443,
                "gen_ai.conversation.id": self.conversation,
                "gen_ai.system_instructions": _dump([{"type": "text", "content": _INSTRUCTIONS[agent]}]),
                "gen_ai.tool.definitions": _dump([_TOOLS[tool]]),
                "gen_ai.input.messages": _dump(shown),
                "gen_ai.output.messages": _dump([given]),
            },
            start,
            start + 2,
        )
        transport = {"http.request.method": "POST", "url.full": "https://api.openai.com/v1/responses"}
        self.add(span, "POST", {**transport, "http.response.status_code": 200}, start + 0.1, start + 1.9)

    def call_tool(self, parent: int, name: str, call_id: str, query: str, result: str, start: float, end: float) -> int:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.call.arguments": _dump({"query": query}),
            "gen_ai.tool.call.result": result,
        }
        return self.add(parent, f"execute_tool {name}", attributes, start, end)

    def name_agent(self, name: str) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "openai",
            "gen_ai.agent.name": name,
            "gen_ai.agent.id": f"agent-{name}",
            "gen_ai.conversation.id": self.conversation,
            "gen_ai.request.model": "gpt-5-mini",
        }

    def add(
        self,
        parent: int | None,
        name: str,
        attributes: dict[str, Any],
        start: float,
        end: float,
        links: Sequence[int] = (),
    ) -> int:
        number = len(self.spans) + 1
        times = {"start": self.offset + int(start * SECOND), "end": self.offset + int(end * SECOND)}
        self.spans.append(make_span(self.number, number, parent, name, attributes, links=links, **times))
        return number

    def write(self, words: int) -> str:
        return write_words(self.rng, words)


def write_words(rng: random.Random, words: int) -> str:
    """A text of this many words, in sentences of twelve."""
    chosen = rng.choices(_WORDS, k=words)
    return " ".join(" ".join(chosen[at : at + 12]).capitalize() + "." for at in range(0, words, 12))


_AGENTS = ("planner", "researcher_0", "researcher_1", "researcher_2", "editor", "writer", "reviewer", "publisher")
_INSTRUCTIONS = {name: f"You are the {name}. {write_words(random.Random(name), 60)}" for name in _AGENTS}
_TOOLS = {
    name: {
        "type": "function",
        "name": name,
        "description": write_words(random.Random(name), 30),
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
    for name in ("search", "write")
}


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def _make_value(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"arrayValue": {"values": [_make_value(each) for each in value]}}


def _cut(spans: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for span in spans:
        batch.append(span)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
