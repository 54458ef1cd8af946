"""Model calls that belong together: a request that continues an earlier one with its reply and the results of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from promptiter.endpoint.sessions import EndpointCall
from promptiter.llm.messages import Message, ToolRequest
from traces import Failure, ToolCall, Usage
from traces.model import Json, sum_usage


@dataclass(slots=True, eq=False)
class ToolLoop:
    """A model call, and those that continue it. Most have one call."""

    calls: list[EndpointCall] = field(default_factory=list)

    @property
    def first(self) -> EndpointCall:
        return self.calls[0]

    @property
    def last(self) -> EndpointCall:
        return self.calls[-1]

    @property
    def start_ns(self) -> int:
        return self.first.start_ns

    @property
    def end_ns(self) -> int:
        return self.last.end_ns

    @property
    def input(self) -> str:
        """The message that it answers."""
        messages = self.first.request.messages
        return messages[-1].content if messages else ""

    @property
    def output(self) -> Json:
        """The last answer: data if the request asked for JSON, otherwise text."""
        text = "" if self.last.reply is None else self.last.reply.text
        return text if self.last.request.schema is None else parse_json(text)

    @property
    def error(self) -> Failure | None:
        return self.last.error

    @property
    def usage(self) -> Usage:
        return sum_usage(call.reply.usage for call in self.calls if call.reply is not None)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the model asked for, with the results that it was sent."""
        found: list[ToolCall] = []
        for number, call in enumerate(self.calls):
            wanted = () if call.reply is None else call.reply.tool_requests
            after = self.calls[number + 1] if number + 1 < len(self.calls) else None
            results = _list_results(wanted, after.request.messages[len(call.request.messages) + 1 :]) if after else []
            for at, each in enumerate(wanted):
                result = results[at] if at < len(results) else None
                found.append(
                    ToolCall(
                        name=each.name,
                        id=each.id or None,
                        arguments=each.arguments,
                        result=None if result is None else parse_json(result),
                        start_ns=call.end_ns,
                        end_ns=None if after is None else after.start_ns,
                    )
                )
        return tuple(found)


def find_tool_loops(calls: Iterable[EndpointCall]) -> list[ToolLoop]:
    """The calls of a run as loops, in the order of their starts."""
    loops: list[ToolLoop] = []
    waiting: dict[_Conversation, list[ToolLoop]] = {}
    for call in sorted(calls, key=lambda each: (each.start_ns, each.end_ns)):
        candidates = waiting.get(_find_start(call), [])
        loop = next((each for each in reversed(candidates) if _continues(call, each.last)), None)
        if loop is None:
            loop = ToolLoop()
            loops.append(loop)
        else:
            candidates.remove(loop)
        loop.calls.append(call)
        if call.reply is not None and call.reply.tool_requests:
            waiting.setdefault(_summarize(call.node, call.request.messages), []).append(loop)
    return loops


def parse_json(text: str) -> Json:
    """The data that a text is JSON of, or the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


_Conversation: TypeAlias = "tuple[str, tuple[str, ...]]"
"""The node of a call and the texts of its messages: what a call has in common with those that continue it."""


def _find_start(call: EndpointCall) -> _Conversation:
    """The conversation that a call would continue: without the tool results at its end, and the turn before these."""
    messages = call.request.messages
    end = len(messages)
    while end and messages[end - 1].role == "tool":
        end -= 1
    return _summarize(call.node, messages[: max(0, end - 1)])


def _summarize(node: str, messages: Sequence[Message]) -> _Conversation:
    return node, tuple(each.content for each in messages)


def _continues(call: EndpointCall, earlier: EndpointCall) -> bool:
    """Whether a request is an earlier one with its reply and the results of the tools that this asked for."""
    reply, before, now = earlier.reply, earlier.request.messages, call.request.messages
    if reply is None or not reply.tool_requests or earlier.end_ns > call.start_ns or call.node != earlier.node:
        return False
    if len(now) < len(before) + 2 or now[: len(before)] != before:
        return False
    turn, results = now[len(before)], now[len(before) + 1 :]
    return (
        turn.role == "assistant"
        and _list_wanted(turn.tool_requests) == _list_wanted(reply.tool_requests)
        and all(each.role == "tool" for each in results)
    )


def _list_wanted(requests: Iterable[ToolRequest]) -> list[tuple[str, Json]]:
    return [(each.name, each.arguments) for each in requests]


def _list_results(wanted: Sequence[ToolRequest], messages: Sequence[Message]) -> list[str | None]:
    by_id = {each.tool_request_id: each.content for each in messages if each.tool_request_id}
    if all(each.id in by_id for each in wanted) and len({each.id for each in wanted}) == len(wanted):
        return [by_id[each.id] for each in wanted]
    return [each.content for each in messages[: len(wanted)]]
