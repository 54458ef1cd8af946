"""Where the traces of case runs are kept, by digest, so that an evaluation does not hold them in memory."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

from promptiter.concurrency import run_in_thread
from promptiter.errors import SetupError
from promptiter.llm.redaction import Redactor
from traces import ExecutionTrace, Failure, Step, TraceError, digest
from traces.files import from_json, to_json, write_atomically

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


class TraceFolder:
    """Traces in a folder, compressed, for blocking code. Without a path it is a temporary one, deleted with the object.

    With `durable`, `sync` makes new traces survive a power failure. Safe to use from several threads.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        self._given = None if path is None else Path(path)
        self._opened_at = time.time()
        self._is_durable = durable
        self._unsynced: list[Path] = []
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def write(self, name: str, raw: bytes) -> None:
        """Write an encoded trace."""
        path = self._path(name)
        if name[:2] not in self._made:
            path.parent.mkdir(exist_ok=True)
            self._made.add(name[:2])
        with write_atomically(path, is_compressed=True) as file:
            file.write(gzip.compress(raw, 6))
        if self._is_durable:
            with self._lock:
                self._unsynced.append(path)

    @cached_property
    def folder(self) -> Path:
        """The folder of the traces, created when it is first needed."""
        if self._given is not None:
            self._given.mkdir(parents=True, exist_ok=True)
            return self._given
        folder = Path(tempfile.mkdtemp(prefix="promptiter-traces-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def sync(self) -> None:
        """Flush new traces to disk."""
        with self._lock:
            written, self._unsynced = self._unsynced, []
        for path in (*written, *{path.parent for path in written}):
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def __contains__(self, name: str) -> bool:
        return self._is_complete(self._path(name))

    def get(self, name: str) -> ExecutionTrace:
        """The trace with this digest."""
        try:
            return from_json(gzip.decompress(self._path(name).read_bytes()))
        except (OSError, EOFError, zlib.error, TraceError) as error:
            problem = getattr(error, "strerror", None) or error
            raise SetupError(f"the trace {name[:12]}… in {self.folder} cannot be read: {problem}") from error

    def _path(self, name: str) -> Path:
        return self.folder.joinpath(name[:2], f"{name}.json.gz")

    def _is_complete(self, path: Path) -> bool:
        """Whether a trace is stored completely. A power failure may have truncated one of an earlier process."""
        try:
            if path.stat().st_mtime >= self._opened_at:
                return True
            return bool(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error):
            return False


class FolderTraceStore:
    """The traces of a folder; see TraceFolder. Blocking work is done in threads, except for small files.

    Writing a small file takes less time than a thread.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        self._traces = TraceFolder(path, durable=durable)

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
