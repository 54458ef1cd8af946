"""Calls that came through the endpoint as traces: a step for each call, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptiter.endpoint.sessions import EndpointCall
from promptiter.grouping import group_by
from promptiter.llm.messages import EmbeddingRequest
from promptiter.llm.models import openai_messages
from traces import ExecutionTrace, Step, ToolCall
from traces.model import Snapshot, TraceStatus

NODE = "agent"
"""The node of calls that name none."""


def build_traces(calls: Iterable[EndpointCall]) -> list[ExecutionTrace]:
    """A trace for each conversation, and one for all calls that name none."""
    answered = [call for call in calls if not isinstance(call.request, EmbeddingRequest)]  # vectors are no text
    grouped = group_by(answered, lambda call: call.conversation)
    return [_build_trace(name, sorted(each, key=lambda call: call.start_ns)) for name, each in sorted(grouped.items())]


def _build_trace(name: str, calls: Sequence[EndpointCall]) -> ExecutionTrace:
    steps: list[Step] = []
    visits: dict[str, int] = {}
    for call in calls:
        node = call.node or NODE
        visits[node] = visits.get(node, 0) + 1
        ended = [step for step in steps if (step.end_ns or 0) <= call.start_ns]
        last = max(ended, key=lambda step: step.end_ns or 0, default=None)
        steps.append(_build_step(call, node, visits[node], follows=last))
    status: TraceStatus = "failed" if calls[-1].error is not None else "completed"
    return ExecutionTrace(id=name or "gateway", steps=tuple(steps), status=status, conversation_id=name or None)


def _build_step(call: EndpointCall, node: str, visit: int, *, follows: Step | None) -> Step:
    reply = call.reply
    return Step(
        id=node if visit == 1 else f"{node}~{visit}",
        node_id=node,
        kind="llm",
        predecessors=() if follows is None else (follows.id,),
        input=Snapshot(call.request.messages[-1].content, {"messages": openai_messages(call.request)}),
        output=Snapshot(reply.text if reply else ""),
        tool_calls=tuple(
            ToolCall(name=each.name, id=each.id or None, arguments=each.arguments)
            for each in (reply.tool_requests if reply else ())
        ),
        error=call.error,
        usage=reply.usage if reply else None,
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        attributes={"gen_ai.request.model": call.request.model},
    )
