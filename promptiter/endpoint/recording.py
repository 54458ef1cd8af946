"""Calls that came through the endpoint as traces: a step for each call, in the order in which they were made."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from pathlib import Path

from promptiter.endpoint.sessions import EndpointCall
from promptiter.grouping import group_by
from promptiter.llm.messages import EmbeddingRequest
from promptiter.llm.models import openai_messages
from promptiter.llm.redaction import Redactor
from traces import ExecutionTrace, Step, ToolCall, write_traces
from traces.documents import from_json, to_json
from traces.model import Snapshot, TraceStatus

NODE = "agent"
"""The node of calls that name none."""
PAUSE_S = 0.2
"""How long calls are collected before they are written."""
WORK_SHARE = 0.1
"""How much of the time may be spent on writing: a file that has become large is written less often."""


class TraceFile:
    """A file with the traces of all calls so far. It is replaced as a whole, so it is complete at any time."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self._redactor = redactor
        self._calls: list[EndpointCall] = []
        self._changed = asyncio.Event()
        self._lock = threading.Lock()

    def add(self, call: EndpointCall) -> None:
        """Remember a call; on the event loop of `keep_written`."""
        self._calls.append(call)
        self._changed.set()

    async def keep_written(self) -> None:
        """Write calls soon after they have ended, until this is cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(PAUSE_S)
            self._changed.clear()
            started = time.perf_counter()
            await asyncio.to_thread(self.write)
            await asyncio.sleep((time.perf_counter() - started) / WORK_SHARE)

    def write(self) -> int:
        """Write all calls so far, and return the number of traces; blocking."""
        redact = self._redactor.redact_known_document
        with self._lock:
            traces = build_traces(list(self._calls))
            return write_traces(self.path, (from_json(redact(to_json(trace))) for trace in traces))


def build_traces(calls: Iterable[EndpointCall]) -> list[ExecutionTrace]:
    """A trace for each conversation, and one for all calls that name none."""
    answered = [call for call in calls if not isinstance(call.request, EmbeddingRequest)]  # embeddings are not steps
    grouped = group_by(answered, lambda call: call.conversation)
    return [_build_trace(name, sorted(each, key=lambda call: call.start_ns)) for name, each in sorted(grouped.items())]


def _build_trace(name: str, calls: Sequence[EndpointCall]) -> ExecutionTrace:
    steps: list[Step] = []
    visits: dict[str, int] = {}
    ended: list[tuple[int, str]] = []
    for call in calls:
        node = call.node or NODE
        visits[node] = visits.get(node, 0) + 1
        before = bisect_right(ended, call.start_ns, key=lambda each: each[0])
        steps.append(_build_step(call, node, visits[node], follows=ended[before - 1][1] if before else None))
        insort(ended, (call.end_ns, steps[-1].id))
    status: TraceStatus = "failed" if calls[-1].error is not None else "completed"
    return ExecutionTrace(id=name or "gateway", steps=tuple(steps), status=status, conversation_id=name or None)


def _build_step(call: EndpointCall, node: str, visit: int, *, follows: str | None) -> Step:
    reply = call.reply
    return Step(
        id=node if visit == 1 else f"{node}~{visit}",
        node_id=node,
        kind="llm",
        predecessors=() if follows is None else (follows,),
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
