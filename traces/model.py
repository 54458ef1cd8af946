"""What happened in one run of an agent: the ExecutionTrace and its Steps.

A step is one execution of one node. Its predecessors are the steps whose results it used or that triggered it. A node
that runs in a loop gives several steps, so a trace is always a DAG. Building an ExecutionTrace checks that and puts the
steps in canonical order: the same steps always make the same trace, whatever order they arrived in.

Everything here is frozen, plain data. Do not change a mapping or JSON value after passing it in.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import orjson

from traces.canonical_order import sort_canonically
from traces.errors import BrokenTraceError, EmptyTraceError, UnknownPredecessorError, UnwritableTraceError
from traces.notebook import MAX_TEXT, html_block, html_heading, html_table

SCHEMA_VERSION = 2

Json: TypeAlias = Any
"""None, bool, int, float, str, list or dict of these: what a JSON document can hold."""

StepKind: TypeAlias = Literal["agent", "llm", "function", "tool"]
STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
TraceStatus: TypeAlias = Literal["completed", "incomplete", "failed"]
EdgeKind: TypeAlias = Literal["control", "data"]
GUESSED = frozenset({"text", "time", "consensus", "superstep", "nesting"})
"""The evidence of edges that nothing states."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A reference to a large or binary value that is stored elsewhere, under its digest."""

    digest: str
    size: int
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What went into or came out of a step: as text, as structured data, or both."""

    text: str | None = None
    data: Json = None
    blobs: tuple[Blob, ...] = ()


EMPTY = Snapshot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost of a step. None means unknown, never 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def tokens(self) -> int:
        """Input plus output tokens, as far as they are known."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)


_NOTHING_KNOWN = Usage()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step or tool call failed. `where` is the file and line in the user's code, if known.

    It `is_outage` if a service that the code called was down, refused the call, or did not answer in time.
    """

    type: str
    message: str = ""
    where: str = field(default="", compare=False)
    is_outage: bool = field(default=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("type", "message", "where"):  # the code of a user may raise any text
            object.__setattr__(self, name, escape_surrogates(getattr(self, name)))

    @property
    def is_cancellation(self) -> bool:
        """Whether the step was stopped from outside, usually because something else had failed."""
        return self.type == "cancelled"

    @property
    def text(self) -> str:
        """Type and message, which are the same wherever the code is."""
        return ": ".join(part for part in (self.type, self.message) if part)

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool by a step."""

    name: str
    id: str | None = None
    arguments: Json = None
    result: Json = None
    error: Failure | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    def __post_init__(self) -> None:
        if self.start_ns == 0:
            object.__setattr__(self, "start_ns", None)
        if self.end_ns == 0:
            object.__setattr__(self, "end_ns", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """How we know that a step followed another. A predecessor without an edge was recorded as it happened."""

    source: str
    kind: EdgeKind = "control"
    evidence: str = "recorded"
    confidence: float = 1.0

    @property
    def is_guessed(self) -> bool:
        """Whether texts and times suggest this edge. Others were recorded, or stated by spans or users."""
        return self.evidence in GUESSED


def _edge_sort_key(edge: Edge) -> tuple[str, str, str, float]:
    return edge.source, edge.kind, edge.evidence, edge.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One execution of one node.

    `id` is a path that does not depend on timing (`planner`, `planner~2`, `research[3]/search`). `edges` say which
    predecessors were read (data) and which only triggered the step (control), if these differ. `surface_reads` maps
    the id of each surface that was read to the digest of its value; None means unknown, so the step may have read any
    surface. Times are nanoseconds since 1970; 0 means unknown, as in OpenTelemetry.
    """

    id: str
    node_id: str
    kind: StepKind = "function"
    predecessors: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    surface_reads: Mapping[str, str] | None = None
    input: Snapshot = EMPTY
    output: Snapshot = EMPTY
    tool_calls: tuple[ToolCall, ...] = ()
    error: Failure | None = None
    usage: Usage | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    attributes: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.predecessors) > 1:
            object.__setattr__(self, "predecessors", tuple(sorted(set(self.predecessors))))
        if len(self.edges) > 1:
            object.__setattr__(self, "edges", tuple(sorted(self.edges, key=_edge_sort_key)))
        if self.usage is not None and self.usage.input_tokens is None and self.usage == _NOTHING_KNOWN:
            object.__setattr__(self, "usage", None)
        if self.start_ns == 0:
            object.__setattr__(self, "start_ns", None)
        if self.end_ns == 0:
            object.__setattr__(self, "end_ns", None)
        if self.kind not in STEP_KINDS:
            raise BrokenTraceError(f"step {self.id!r}: kind must be one of {', '.join(STEP_KINDS)}, got {self.kind!r}")
        for edge in self.edges:
            if edge.source not in self.predecessors:
                raise UnknownPredecessorError(self.id, edge.source, known=self.predecessors)

    @property
    def unread(self) -> tuple[str, ...]:
        """The predecessors that only triggered this step: it did not read their outputs, as its edges say."""
        read = {edge.source for edge in self.edges if edge.kind == "data"}
        triggers = (edge.source for edge in self.edges if edge.kind == "control" and edge.evidence == "recorded")
        return tuple(source for source in triggers if source not in read)

    @property
    def followed(self) -> tuple[str, ...]:
        """The predecessors without those that it only read, as its edges say."""
        triggers = {edge.source for edge in self.edges if edge.kind == "control"}
        read = {edge.source for edge in self.edges if edge.kind == "data"}
        return tuple(source for source in self.predecessors if source not in read or source in triggers)

    @property
    def sources(self) -> tuple[str, ...]:
        """The predecessors whose outputs this step read: all that are not `unread`."""
        if not self.edges:
            return self.predecessors
        unread = self.unread
        return tuple(source for source in self.predecessors if source not in unread)

    @property
    def duration_ns(self) -> int | None:
        if self.start_ns is None or self.end_ns is None:
            return None
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTrace:
    """One run of an agent: the DAG of its steps, in canonical order, predecessors first."""

    id: str
    steps: tuple[Step, ...]
    status: TraceStatus = "completed"
    conversation_id: str | None = None
    attributes: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps:
            raise EmptyTraceError(self.id)
        object.__setattr__(self, "steps", sort_canonically(self.steps))

    @property
    def usage(self) -> Usage:
        """The known usage of all steps, added up."""
        return sum_usage(step.usage for step in self.steps)

    @property
    def terminals(self) -> tuple[Step, ...]:
        """The steps without successors: what the run ended with."""
        followed = {source for step in self.steps for source in step.predecessors}
        return tuple(step for step in self.steps if step.id not in followed)

    @property
    def start_ns(self) -> int | None:
        return min((step.start_ns for step in self.steps if step.start_ns is not None), default=None)

    @property
    def end_ns(self) -> int | None:
        return max((step.end_ns for step in self.steps if step.end_ns is not None), default=None)

    @property
    def duration_ns(self) -> int | None:
        if (start := self.start_ns) is None or (end := self.end_ns) is None:
            return None
        return end - start

    def _repr_html_(self) -> str:
        duration = "" if self.duration_ns is None else f", {self.duration_ns / 1e9:.2f} s"
        details = f"{self.status}, {len(self.steps):,} steps, {self.usage.tokens:,} tokens{duration}"
        rows = (
            (step.id, ", ".join(step.predecessors), _preview(step.input), _preview(step.output), str(step.error or ""))
            for step in self.steps
        )
        table = html_table(("step", "after", "input", "output", "error"), rows, count=len(self.steps))
        return html_block(html_heading(f"Trace {self.id}", details), table)


def _preview(snapshot: Snapshot) -> str:
    """The beginning of a snapshot, as text or JSON."""
    if snapshot.text is not None or snapshot.data is None:
        return (snapshot.text or "")[: 2 * MAX_TEXT]
    try:
        return orjson.dumps(snapshot.data, default=str)[: 2 * MAX_TEXT].decode(errors="ignore")
    except TypeError:  # orjson.JSONEncodeError: nested too deep
        return "…"


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def digest(value: Json | bytes) -> str:
    """Hash a value by its content: bytes as they are, anything else as canonical JSON."""
    return hashlib.sha256(value if isinstance(value, bytes) else write_canonically(value)).hexdigest()


def write_canonically(value: Json) -> bytes:
    """The canonical JSON of a value: equal values have equal bytes."""
    try:
        raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:  # orjson.JSONEncodeError
        raise UnwritableTraceError(f"{value!r:.60} has no digest: {error}; use plain JSON values") from error
    if b"null" in raw and holds_non_finite(value):
        raise UnwritableTraceError(f"{value!r:.60} has no digest: it contains a NaN or infinite number")
    return raw


def holds_non_finite(value: Json) -> bool:
    """Whether a value contains NaN or an infinity, which JSON cannot represent."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return True
        if isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return False


def sum_usage(usages: Iterable[Usage | None]) -> Usage:
    """Add up usage. A figure that is unknown in every part stays None."""
    parts = [usage for usage in usages if usage is not None]
    if len(parts) < 2:
        return parts[0] if parts else _NOTHING_KNOWN
    figures: dict[str, list[float]] = {name: [] for name in Usage.__slots__}
    for usage in parts:
        for name, known in figures.items():
            value = getattr(usage, name)
            if value is not None:
                known.append(value)
    return Usage(**{name: sum(known) for name, known in figures.items() if known})  # type: ignore[arg-type]
