"""Where the traces of case runs are kept, by digest, so that an evaluation does not hold them in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from promptiter.concurrency import run_in_thread
from promptiter.evaluation.trace_file import TraceFile
from promptiter.llm.redaction import Redactor
from traces import ExecutionTrace, Failure, Step, digest
from traces.documents import to_json

SMALL = 1 << 16
"""Bytes of a trace that is written on the event loop."""

_TIMES = re.compile(rb',"(?:start|end)_ns":\d+')


ReadTrace: TypeAlias = Callable[[str], Awaitable[ExecutionTrace]]
"""Returns the trace with a digest."""


class TraceStore(Protocol):
    """Keeps traces by digest. It is called on the event loop, so no method may block."""

    async def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        """Store a trace and return its digest; see `encode_trace`. An equal trace is stored once."""
        ...

    async def get(self, name: str) -> ExecutionTrace:
        """Return the trace with this digest. SetupError if there is none or it cannot be read."""
        ...

    async def has(self, name: str) -> bool:
        """Return whether the trace with this digest is stored completely."""
        ...

    async def sync(self) -> None:
        """Make all traces survive a power failure."""
        ...


def encode_trace(trace: ExecutionTrace, redactor: Redactor | None = None) -> tuple[str, bytes]:
    """Return the digest of a trace and its JSON, without known secrets.

    Times are left out of the digest, so equal runs have equal digests.
    """
    if redactor is None:
        raw = to_json(trace)
    else:
        raw = redactor.redact_known_document(to_json(_redact_errors(trace, redactor.redact_text)))
    return digest(_TIMES.sub(b"", raw)), raw


class FileTraceStore:
    """The traces of a file; see TraceFile. Blocking work is done in threads, except for small traces.

    Writing a small trace takes less time than a thread.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._traces = TraceFile(path)

    async def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        name, raw = encode_trace(trace, redactor)
        if name in self._traces:
            return name
        if len(raw) <= SMALL:
            self._traces.write(name, raw)
        else:
            await run_in_thread(lambda: self._traces.write(name, raw))
        return name

    async def get(self, name: str) -> ExecutionTrace:
        return await run_in_thread(lambda: self._traces.get(name))

    async def has(self, name: str) -> bool:
        return name in self._traces

    async def sync(self) -> None:
        await run_in_thread(self._traces.sync)


def _redact_errors(trace: ExecutionTrace, redact: Callable[[str], str]) -> ExecutionTrace:
    """Redact the errors of steps and tool calls, which are free text from user code."""
    if not any(step.error or any(call.error for call in step.tool_calls) for step in trace.steps):
        return trace

    def redact_failure(error: Failure | None) -> Failure | None:
        return error and replace(error, message=redact(error.message))

    def redact_step(step: Step) -> Step:
        calls = tuple(replace(call, error=redact_failure(call.error)) for call in step.tool_calls)
        return replace(step, error=redact_failure(step.error), tool_calls=calls)

    return replace(trace, steps=tuple(map(redact_step, trace.steps)))
