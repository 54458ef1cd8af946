"""Traces on disk under their digest, compressed: ten thousand cases do not hold ten thousand traces in memory."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.llm.redaction import Redactor
from traces import ExecutionTrace, Failure, Step, digest
from traces.files import from_json, replacing, to_json

_TIMES = re.compile(rb',"(?:start|end)_ns":\d+')


class TraceSpool:
    """A folder of traces. Without a path it is a temporary one that goes with the object.

    One that is `durable` remembers what was put until it is synced.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        if path is None:
            self.folder = Path(tempfile.mkdtemp(prefix="promptiter-traces-"))
            self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        else:
            self.folder = Path(path)
            self.folder.mkdir(parents=True, exist_ok=True)
        self._is_durable = durable
        self._unsynced: list[Path] = []

    def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        """Keep a trace and give its digest: of what happened, not of when, so that equal runs have equal digests.

        What is kept, and what the digest is of, has no secrets that the redactor knows.
        """
        if redactor is None:
            raw = to_json(trace)
        else:
            raw = redactor.redact_known_document(to_json(_with_safe_errors(trace, redactor.redact_text)))
        name = digest(_TIMES.sub(b"", raw))
        path = self._path(name)
        if not _is_whole(path):
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                file.write(raw)
            if self._is_durable:
                self._unsynced.append(path)
        return name

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
        return _is_whole(self._path(name))

    def get(self, name: str) -> ExecutionTrace:
        """The trace of that digest."""
        try:
            return from_json(gzip.decompress(self._path(name).read_bytes()))
        except OSError as error:
            raise SetupError(f"the trace {name[:12]}… is not in {self.folder}: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}.json.gz"


def _with_safe_errors(trace: ExecutionTrace, redact: Callable[[str], str]) -> ExecutionTrace:
    """The trace with the errors of its steps and tool calls redacted: they are texts of users' code, and no data."""
    if not any(step.error or any(call.error for call in step.tool_calls) for step in trace.steps):
        return trace

    def safe(error: Failure | None) -> Failure | None:
        return error and replace(error, message=redact(error.message))

    def safe_step(step: Step) -> Step:
        calls = tuple(replace(call, error=safe(call.error)) for call in step.tool_calls)
        return replace(step, error=safe(step.error), tool_calls=calls)

    return replace(trace, steps=tuple(map(safe_step, trace.steps)))


def _is_whole(path: Path) -> bool:
    """Whether a trace is there; a loss of power may leave its name without the bytes."""
    return path.exists() and path.stat().st_size > 0
