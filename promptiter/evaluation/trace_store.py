"""Traces on disk under their digest, compressed: ten thousand cases do not hold ten thousand traces in memory."""

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
from traces.files import from_json, replacing, to_json

_TIMES = re.compile(rb',"(?:start|end)_ns":\d+')


class TraceStore:
    """A folder of traces. Without a path it is a temporary one that goes with the object.

    One that is `durable` remembers what was put until it is synced.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        self._given = None if path is None else Path(path)
        self._opened_at = time.time()
        self._is_durable = durable
        self._unsynced: list[Path] = []

    def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        """Keep a trace and give its digest: of what happened, not of when, so that equal runs have equal digests.

        What is kept, and what the digest is of, has no secrets that the redactor knows.
        """
        if redactor is None:
            raw = to_json(trace)
        else:
            raw = redactor.redact_known_document(to_json(_redact_errors(trace, redactor.redact_text)))
        name = digest(_TIMES.sub(b"", raw))
        path = self._path(name)
        if not self._is_complete(path):
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                file.write(raw)
            if self._is_durable:
                self._unsynced.append(path)
        return name

    @cached_property
    def folder(self) -> Path:
        """Where the traces are; made when it is first needed."""
        if self._given is not None:
            self._given.mkdir(parents=True, exist_ok=True)
            return self._given
        folder = Path(tempfile.mkdtemp(prefix="promptiter-traces-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def sync(self) -> None:
        """Make what was put survive a loss of power too."""
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
        """The trace of that digest."""
        try:
            return from_json(gzip.decompress(self._path(name).read_bytes()))
        except (OSError, EOFError, zlib.error, TraceError) as error:
            told = getattr(error, "strerror", None) or error
            raise SetupError(f"the trace {name[:12]}… cannot be read in {self.folder}: {told}") from error

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}.json.gz"

    def _is_complete(self, path: Path) -> bool:
        """Whether a trace is there. What an earlier process wrote, a loss of power may have cut."""
        if not path.exists():
            return False
        if path.stat().st_mtime >= self._opened_at:
            return True
        try:
            return bool(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error):
            return False


def _redact_errors(trace: ExecutionTrace, redact: Callable[[str], str]) -> ExecutionTrace:
    """The trace with the errors of its steps and tool calls redacted: they are texts of users' code, and no data."""
    if not any(step.error or any(call.error for call in step.tool_calls) for step in trace.steps):
        return trace

    def redact_failure(error: Failure | None) -> Failure | None:
        return error and replace(error, message=redact(error.message))

    def redact_step(step: Step) -> Step:
        calls = tuple(replace(call, error=redact_failure(call.error)) for call in step.tool_calls)
        return replace(step, error=redact_failure(step.error), tool_calls=calls)

    return replace(trace, steps=tuple(map(redact_step, trace.steps)))
