"""Traces on disk, compressed and named by their digest, so that an evaluation does not hold them in memory."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.llm.redaction import Redactor
from traces import ExecutionTrace, Failure, Step, TraceError, digest
from traces.files import from_json, to_json, write_atomically

_TIMES = re.compile(rb',"(?:start|end)_ns":\d+')


class TraceStore:
    """A folder of traces. Without a path it is a temporary folder that is deleted with the object.

    With `durable`, `sync` makes new traces survive a power failure.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        self._given = None if path is None else Path(path)
        self._opened_at = time.time()
        self._is_durable = durable
        self._unsynced: list[Path] = []

    def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        """Store a trace and return its digest. Times are left out of the digest, so equal runs have equal digests.

        Known secrets are redacted before the trace is stored and the digest is computed.
        """
        if redactor is None:
            raw = to_json(trace)
        else:
            raw = redactor.redact_known_document(to_json(_redact_errors(trace, redactor.redact_text)))
        name = digest(_TIMES.sub(b"", raw))
        path = self._path(name)
        if not self._is_complete(path):
            path.parent.mkdir(exist_ok=True)
            with write_atomically(path) as file:
                file.write(raw)
            if self._is_durable:
                self._unsynced.append(path)
        return name

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
        return self.folder / name[:2] / f"{name}.json.gz"

    def _is_complete(self, path: Path) -> bool:
        """Whether a trace is stored completely. A power failure may have truncated one of an earlier process."""
        if not path.exists():
            return False
        if path.stat().st_mtime >= self._opened_at:
            return True
        try:
            return bool(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error):
            return False


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
