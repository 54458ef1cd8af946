"""The spans of an export while it is read: in memory up to a limit, beyond that in a temporary file.

Exports have no order: a trace is complete only when the last file has been read. Until then everything is kept, trace
by trace, and what moved to the file leaves only a few facts in memory, which say which traces are one run.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import inf
from types import TracebackType
from typing import IO

from traces.model import Json
from traces.otel.intake import measure
from traces.otel.recover.concepts import CONVERSATION, first
from traces.otel.spans import Event, Log, Span

DEFAULT_LIMIT_BYTES = 256_000_000

_SPAN_BYTES = 1_200
"""About what a span takes in memory besides its texts."""
_CONVERSATION_KEYS = frozenset(CONVERSATION)


class TraceFacts:
    """What says which run an OTLP trace belongs to: its start, its conversation, and the traces that it links to."""

    __slots__ = ("conversation", "linked", "start_ns")

    def __init__(self) -> None:
        self.start_ns: int | None = None
        self.conversation: str | None = None
        self.linked: tuple[str, ...] = ()


class SpanStore:
    """Spans and log records by trace, each in the order in which they were added.

    Use it as a context manager: the temporary file is removed at the end, also after an error.
    """

    def __init__(self, limit_bytes: float = DEFAULT_LIMIT_BYTES) -> None:
        self.facts: dict[str, TraceFacts] = {}
        """Of each trace, in the order of their first spans."""
        self._limit_bytes = limit_bytes
        self._held: dict[str, list[Span | Log]] = {}
        self._held_bytes = 0
        self._opened = ExitStack()
        self._file: IO[bytes] | None = None
        self._records: dict[str, list[tuple[int, int]]] = {}

    def __enter__(self) -> SpanStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.clear()
        self._opened.close()

    def add(self, batch: Sequence[Span | Log]) -> None:
        """Add the next spans and log records of an export."""
        for each in batch:
            self._held.setdefault(each.trace_id, []).append(each)
            if isinstance(each, Span):
                self._add_facts(each)
        if self._limit_bytes != inf:
            self._held_bytes += sum(map(_estimate_bytes, batch))
            if self._held_bytes > self._limit_bytes:
                self._spill()

    def load(self, trace_id: str) -> list[Span]:
        """The spans of a trace, each with the log records that belong to it as events."""
        found: list[Span | Log] = []
        for offset, size in self._records.get(trace_id, ()):
            assert self._file is not None
            self._file.seek(offset)
            found += pickle.loads(self._file.read(size))
        found += self._held.get(trace_id, ())
        spans = [each for each in found if isinstance(each, Span)]
        if len(spans) == len(found):
            return spans
        logs: dict[str, list[Event]] = {}
        for each in found:
            if isinstance(each, Log):
                logs.setdefault(each.span_id, []).append(each.event)
        return [span._replace(events=(*span.events, *logs.get(span.span_id, ()))) for span in spans]

    def take(self, trace_id: str) -> list[Span]:
        """The same, for the last time: the store forgets them."""
        spans = self.load(trace_id)
        self._held.pop(trace_id, None)
        self._records.pop(trace_id, None)
        return spans

    def _add_facts(self, span: Span) -> None:
        facts = self.facts.get(span.trace_id)
        if facts is None:
            facts = self.facts[span.trace_id] = TraceFacts()
        start_ns = span.start_ns or 0
        if facts.start_ns is None or start_ns < facts.start_ns:
            facts.start_ns = start_ns
        if facts.conversation is None and not _CONVERSATION_KEYS.isdisjoint(span.attributes):
            value = first(span.attributes, CONVERSATION)
            facts.conversation = None if value is None else str(value)
        for link in span.links:
            if link.trace_id != span.trace_id and link.trace_id not in facts.linked:
                facts.linked = (*facts.linked, link.trace_id)

    def _spill(self) -> None:
        """Move all that is held to the end of the temporary file."""
        if self._file is None:
            self._file = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        offset = self._file.seek(0, 2)
        for trace_id, held in self._held.items():
            size = self._file.write(pickle.dumps(held, pickle.HIGHEST_PROTOCOL))
            self._records.setdefault(trace_id, []).append((offset, size))
            offset += size
        self._held.clear()
        self._held_bytes = 0


def _estimate_bytes(each: Span | Log) -> int:
    """About how much memory a span or log record takes."""
    if isinstance(each, Log):
        return _SPAN_BYTES + _count_characters(each.event.attributes)
    return (
        _SPAN_BYTES
        + _count_characters(each.attributes)
        + sum(_count_characters(event.attributes) for event in each.events)
    )


def _count_characters(attributes: Mapping[str, Json]) -> int:
    return sum([len(each) if type(each) is str else measure(each) for each in attributes.values()])
