"""Follow exports that a collector is still appending to: runs become traces as they end.

A run has ended when its root span has, and nothing of it has arrived for a while: the spans of a run come in any order,
and in several batches. Where a root never comes, it takes longer.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path

from traces.compression import is_packed
from traces.errors import Place, TraceError, UnknownConventionError, UnreadableTraceError
from traces.model import ExecutionTrace
from traces.otel.corrections import Corrector
from traces.otel.detect import is_json, read_spans
from traces.otel.frames import is_framed
from traces.otel.intake import MAX_ATTRIBUTE_MB, MAX_DOCUMENT_MB, Intake
from traces.otel.read import drop_duplicates
from traces.otel.recover.coverage import Coverage
from traces.otel.runs import build_traces, join_runs
from traces.otel.span_store import SpanStore
from traces.otel.spans import Log, Span
from traces.otel.user_edges import EdgeSource

logger = logging.getLogger(__name__)

QUIET_S = 10.0
"""How long nothing of a run must have arrived before it has ended: twice the time that exporters collect a batch."""
_WITHOUT_ROOT = 6  # how many times longer a run waits whose root span has not come
_PIECE = 1 << 24


class FollowedFile:
    """The messages that are appended to a file: whole lines of JSON, or whole messages after their lengths.

    If the file is replaced or emptied, as by a rotation of logs, it is read from the start again.
    """

    def __init__(self, path: str | os.PathLike[str], intake: Intake) -> None:
        self._path = Path(path)
        self._intake = intake
        self._place = Place(os.fspath(path))
        self._rest = b""
        self._is_framed: bool | None = None
        self._line = 0
        self._position = 0
        self._file: io.BufferedReader | None = self._open()

    def read_new(self) -> Iterator[tuple[Place, bytes]]:
        """Yield the messages that have arrived since the last call."""
        while self._file is not None and (data := self._file.read(_PIECE)):
            self._rest += data
            yield from self._split()
        if self._is_replaced():
            if self._rest:
                self._intake.warn("a half-written message at the end of a replaced file was left out", self._place)
            self.close()
            self._rest, self._line, self._position, self._is_framed = b"", 0, 0, None
            if self._path.exists():
                self._file = self._open()
                yield from self.read_new()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> None:
        """Count what is still half written, and close the file."""
        if self._rest.strip():
            self._intake.warn("a half-written last message was left out", self._place)
        self.close()

    def _open(self) -> io.BufferedReader:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise UnreadableTraceError(f"cannot be read: {error.strerror or error}", place=self._place) from error

    def _is_replaced(self) -> bool:
        try:
            now = self._path.stat()
        except OSError:
            return False  # moved away; the next look finds the new file
        if self._file is None:
            return True
        mine = os.fstat(self._file.fileno())
        return (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev) or now.st_size < self._file.tell()

    def _split(self) -> Iterator[tuple[Place, bytes]]:
        if self._is_framed is None and len(self._rest) >= 4:
            self._is_framed = self._find_encoding(self._rest)
        if len(self._rest) > MAX_DOCUMENT_MB << 20:
            raise UnreadableTraceError(
                f"has a message of more than {MAX_DOCUMENT_MB} MB; let the collector write smaller batches",
                place=self._place,
            )
        if self._is_framed:
            at = 0
            while (end := at + 4 + int.from_bytes(self._rest[at : at + 4], "big")) <= len(self._rest) and end > at + 4:
                yield Place(self._place.source, byte=self._position + at), self._rest[at:end]
                at = end
            self._rest = self._rest[at:]
            self._position += at
        elif b"\n" in self._rest:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._line += 1
                if line.strip():
                    yield Place(self._place.source, line=self._line), line + b"\n"

    def _find_encoding(self, start: bytes) -> bool:
        """Whether messages come after their lengths."""
        if is_json(start):
            return False
        if is_packed(start) or not is_framed(start):
            raise UnreadableTraceError(
                "cannot be followed: only JSON lines and messages after their lengths (a collector's `proto` format) "
                "can, not compressed; import it without --follow",
                place=self._place,
            )
        return True


class Follower:
    """The runs of files that are still written. `look` returns those that have ended since, `finish` the rest.

    A context manager, which closes the files.
    """

    def __init__(
        self,
        *paths: str | os.PathLike[str],
        coverage: Coverage | None = None,
        edges: EdgeSource | None = None,
        quiet_s: float = QUIET_S,
        max_attribute_mb: int = MAX_ATTRIBUTE_MB,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.coverage = coverage if coverage is not None else Coverage()
        self._intake = Intake(self.coverage, max_attribute_mb=max_attribute_mb)
        self._corrector = Corrector(edges, self.coverage)
        self._quiet_s = quiet_s
        self._clock = clock
        self._files = [FollowedFile(path, self._intake) for path in paths]
        self._store = SpanStore(inf)
        self._arrived: dict[str, float] = {}
        self._ended: set[str] = set()
        self._written: set[str] = set()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    @property
    def waiting(self) -> int:
        """How many OTLP traces have not ended."""
        return len(self._store.facts)

    def look(self) -> list[ExecutionTrace]:
        """Read what was appended, and return the runs that have ended."""
        self._read_new()
        return self._build(self._is_over)

    def finish(self) -> list[ExecutionTrace]:
        """Read what was appended, and return all runs that are left, ended or not."""
        self._read_new()
        for file in self._files:
            file.finish()
        return self._build(lambda _: True)

    def _read_new(self) -> None:
        for file in self._files:
            for place, raw in file.read_new():
                try:
                    for batch in read_spans(place.source, io.BufferedReader(io.BytesIO(raw)), self._intake):
                        self._add(batch)
                except UnreadableTraceError as error:
                    if not self.coverage.received:
                        raise UnreadableTraceError(error.message, place=place) from error
                    logger.warning("%s: %s", place, error.message)
                    self._intake.warn("a message that cannot be read was left out", place)

    def _add(self, batch: Iterable[Span | Log]) -> None:
        now = self._clock()
        for each in batch:
            trace_id = each.trace_id
            if trace_id in self._written:
                self.coverage.warnings["a span or log record came after its run had been written"] += 1
                continue
            self._store.add([each])
            if isinstance(each, Span):
                self._arrived[trace_id] = now
                if each.parent_id is None and each.end_ns is not None:
                    self._ended.add(trace_id)

    def _is_over(self, trace_id: str) -> bool:
        wait = self._quiet_s if trace_id in self._ended else self._quiet_s * _WITHOUT_ROOT
        return self._clock() - self._arrived[trace_id] >= wait

    def _build(self, is_over: Callable[[str], bool]) -> list[ExecutionTrace]:
        if not any(map(is_over, self._store.facts)):
            return []
        found: list[ExecutionTrace] = []
        for trace_ids in join_runs(self._store):
            if not all(map(is_over, trace_ids)):
                continue
            spans = [span for trace_id in trace_ids for span in self._store.take(trace_id)]
            for trace_id in trace_ids:
                del self._store.facts[trace_id], self._arrived[trace_id]
                self._ended.discard(trace_id)
            self._written.update(trace_ids)
            try:
                found += build_traces(drop_duplicates(spans), self.coverage)
            except UnknownConventionError:
                continue  # counted as a trace without steps
            except TraceError as error:
                logger.warning("%s", error)
                self.coverage.warnings["a run that cannot be read was left out"] += 1
        added = [self._corrector.add(trace) for trace in found]
        return [self._corrector.apply(trace) for trace in added]  # by the runs so far
