"""Record a trace in-process, under asyncio and threads.

    with record("case-7", resolve=profile.value) as recording:
        with step("planner", input=question) as planner:
            planner.output = plan(read_surface("planner#instruction"), question)
    trace = recording.trace

A step follows what ran before it in the same line of control. A task or thread that is started (with a copy of the
context, as asyncio and `asyncio.to_thread` make one) is a branch; the next step of the line that started it joins all
branches that ran steps. `after=` says otherwise. A step opened inside another is nested: the outer one follows its last
inner steps, for it used their results. Ids are paths that do not depend on timing: `planner`, `planner~2` for the
second visit, `research[3]` for an indexed branch, `outer/inner` for a nested step.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import orjson

from traces.errors import AmbiguousStepError, NoActiveRecordingError
from traces.model import (
    EMPTY,
    Blob,
    ExecutionTrace,
    Failure,
    Json,
    Snapshot,
    Step,
    StepKind,
    ToolCall,
    TraceStatus,
    Usage,
    digest,
    holds_non_finite,
)

INLINE_LIMIT = 256 * 1024
"""Characters of a snapshot that stay in the trace; what is longer goes whole into the blobs."""

Resolver: TypeAlias = Callable[[str], Json]
"""Gives the current value of a surface."""

_position: ContextVar[_Position | None] = ContextVar("traces_position", default=None)


def record(
    trace_id: str,
    *,
    resolve: Resolver | None = None,
    conversation_id: str | None = None,
    attributes: Mapping[str, Json] | None = None,
    blobs: MutableMapping[str, bytes] | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Recording:
    """Start a recording: a context manager, active in the code below it and in tasks and threads started there."""
    return Recording(
        trace_id,
        resolve=resolve,
        conversation_id=conversation_id,
        attributes=dict(attributes or {}),
        blobs={} if blobs is None else blobs,
        clock=clock,
    )


def step(
    node_id: str,
    *,
    kind: StepKind = "function",
    input: Any = None,  # noqa: A002 - the word of the model
    index: int | str | None = None,
    after: Iterable[OpenStep | str] | None = None,
    attributes: Mapping[str, Json] | None = None,
) -> OpenStep:
    """Open a step of the active recording: a context manager. `index` tells parallel executions of a node apart."""
    return OpenStep(node_id, kind=kind, input=input, index=index, after=after, attributes=dict(attributes or {}))


def current_step() -> OpenStep:
    """The innermost open step."""
    opened = _here().parent
    if opened is None:
        raise NoActiveRecordingError("no step is open: surfaces are read and tools called inside `with step(...)`")
    return opened


def read_surface(surface_id: str) -> Json:
    """The value of a surface under the active recording; reading it is what records it in the current step."""
    return current_step().read_surface(surface_id)


class Recording:
    """A trace in the making."""

    def __init__(
        self,
        trace_id: str,
        *,
        resolve: Resolver | None,
        conversation_id: str | None,
        attributes: dict[str, Json],
        blobs: MutableMapping[str, bytes],
        clock: Callable[[], int],
    ) -> None:
        self.trace_id = trace_id
        self.resolve = resolve
        self.conversation_id = conversation_id
        self.attributes = attributes
        self.blobs = blobs
        self.clock = clock
        self.is_active = False
        self._status: TraceStatus = "completed"
        self.followed: set[str] = set()
        self._steps: dict[str, OpenStep] = {}
        self._last_visit: dict[str, tuple[int, OpenStep]] = {}
        self._lock = threading.Lock()
        self._token: Token[_Position | None] | None = None

    @property
    def trace(self) -> ExecutionTrace:
        """What has been recorded so far; a step that is still open has no end, and makes the trace incomplete."""
        with self._lock:
            steps = tuple(opened.frozen() for opened in self._steps.values())
        unfinished = any(recorded.end_ns is None for recorded in steps)
        return ExecutionTrace(
            id=self.trace_id,
            steps=steps,
            status="incomplete" if unfinished and self._status == "completed" else self._status,
            conversation_id=self.conversation_id,
            attributes=self.attributes,
        )

    def __enter__(self) -> Recording:
        self.is_active = True
        self._token = _position.set(_Position(_Scope(self, parent=None, tips=frozenset()), frozenset()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.is_active = False
        if self._token is not None:
            _position.reset(self._token)
        if error is not None:
            self._status = "incomplete" if _is_cancellation(error) else "failed"

    def fail(self) -> None:
        """Mark the run as failed although its error was caught inside the recording."""
        self._status = "failed"

    def snapshot(self, value: Any) -> Snapshot:
        """The value as it is now, in a form that later changes cannot reach."""
        return _snapshot(value, self.blobs)

    def register(self, opened: OpenStep, path: str) -> str:
        with self._lock:
            visit, previous = self._last_visit.get(path, (0, None))
            if previous is not None and not self._comes_before(previous, opened):
                raise AmbiguousStepError(path)
            while True:
                visit += 1
                step_id = path if visit == 1 else f"{path}~{visit}"
                if step_id not in self._steps:
                    break
            self._last_visit[path] = (visit, opened)
            self._steps[step_id] = opened
            self.followed |= opened.predecessors
            return step_id

    def _comes_before(self, previous: OpenStep, opened: OpenStep) -> bool:
        """Whether a step surely runs after the previous visit of its node, and not merely happened to this time."""
        if previous.scope is opened.scope:
            return True
        seen = set(opened.predecessors)
        waiting = list(seen)
        while waiting:
            step_id = waiting.pop()
            if step_id == previous.id:
                return True
            ancestor = self._steps.get(step_id)
            further = () if ancestor is None else [source for source in ancestor.predecessors if source not in seen]
            seen.update(further)
            waiting.extend(further)
        return False


@dataclass
class OpenStep:
    """A step while it runs: set `output` and `usage`, read surfaces, call tools."""

    node_id: str
    kind: StepKind
    input: Any
    index: int | str | None
    after: Iterable[OpenStep | str] | None
    attributes: dict[str, Json]
    output: Any = None
    usage: Usage | None = None
    id: str = field(default="", init=False)
    predecessors: frozenset[str] = field(default=frozenset(), init=False)
    scope: _Scope = field(init=False, repr=False)
    _input: Snapshot = field(default=EMPTY, init=False)
    _output: Snapshot = field(default=EMPTY, init=False)
    _error: Failure | None = field(default=None, init=False)
    _surface_reads: dict[str, str] = field(default_factory=dict, init=False)
    tool_calls: list[OpenToolCall] = field(default_factory=list, init=False)
    _start_ns: int | None = field(default=None, init=False)
    _end_ns: int | None = field(default=None, init=False)
    _token: Token[_Position | None] | None = field(default=None, init=False)

    def __enter__(self) -> OpenStep:
        self.scope = scope = _here()
        if self.after is None:
            self.predecessors = scope.join()
        else:
            self.predecessors = frozenset(source if isinstance(source, str) else source.id for source in self.after)
        self.id = scope.recording.register(self, scope.path_to(self))
        self._input = scope.recording.snapshot(self.input)
        inner = _Scope(scope.recording, parent=self, tips=self.predecessors)
        self._token = _position.set(_Position(inner, inner.tips))
        self._start_ns = scope.recording.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        recording = self.scope.recording
        inner = _position.get()
        if inner is not None and self._token is not None:
            self.predecessors |= inner.scope.join()
            _position.reset(self._token)
        self._output = recording.snapshot(self.output)
        self._error = None if error is None else _failure(error)
        self._end_ns = recording.clock()
        self.scope.move_to(self.id)
        _position.set(_Position(self.scope, self.scope.tips))

    def read_surface(self, surface_id: str) -> Json:
        """The value of a surface; that it was read, and its digest, go into the step, also when it is empty."""
        resolve = self.scope.recording.resolve
        if resolve is None:
            raise NoActiveRecordingError(
                f"surface {surface_id!r} cannot be read: the recording has no resolver; pass record(..., resolve=...)"
            )
        value = resolve(surface_id)
        self._surface_reads[surface_id] = digest(value)
        return value

    def call_tool(self, name: str, arguments: Any = None, *, call_id: str | None = None) -> OpenToolCall:
        """Record a tool call of this step: a context manager with a `result` to set."""
        return OpenToolCall(self, name, arguments, call_id)

    def frozen(self) -> Step:
        return Step(
            id=self.id,
            node_id=self.node_id,
            kind=self.kind,
            predecessors=tuple(self.predecessors),
            surface_reads=dict(self._surface_reads),
            input=self._input,
            output=self._output,
            tool_calls=tuple(call.frozen() for call in self.tool_calls),
            error=self._error,
            usage=self.usage,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            attributes=dict(self.attributes),
        )


class OpenToolCall:
    """A tool call while it runs: set `result`."""

    def __init__(self, caller: OpenStep, name: str, arguments: Any, call_id: str | None) -> None:
        self.caller = caller
        self.name = name
        self.call_id = call_id
        self.result: Any = None
        self._arguments = _plain(arguments)
        self._result: Json = None
        self._error: Failure | None = None
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    def __enter__(self) -> OpenToolCall:
        self._start_ns = self.caller.scope.recording.clock()
        self.caller.tool_calls.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._result = _plain(self.result)
        self._error = None if error is None else _failure(error)
        self._end_ns = self.caller.scope.recording.clock()

    def frozen(self) -> ToolCall:
        return ToolCall(
            name=self.name,
            id=self.call_id,
            arguments=self._arguments,
            result=self._result,
            error=self._error,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
        )


class _Position(NamedTuple):
    """Where code stands: in which line of control, after which steps. A task started here takes a copy along."""

    scope: _Scope
    tips: frozenset[str]


class _Scope:
    """A line of control inside a recording or a step: `tips` are what its next step follows."""

    def __init__(self, recording: Recording, *, parent: OpenStep | None, tips: frozenset[str]) -> None:
        self.recording = recording
        self.parent = parent
        self.tips = tips
        self.moved = False
        self.branches: list[_Scope] = []
        self.owner = weakref.ref(_line_of_control())

    def branch(self, tips: frozenset[str]) -> _Scope:
        child = _Scope(self.recording, parent=self.parent, tips=tips)
        self.branches.append(child)
        return child

    def path_to(self, opened: OpenStep) -> str:
        name = opened.node_id if opened.index is None else f"{opened.node_id}[{opened.index}]"
        if self.parent is None:
            return name
        return f"{self.parent.id}/{name.removeprefix(self.parent.node_id + '/')}"

    def move_to(self, step_id: str) -> None:
        self.tips = frozenset((step_id,))
        self.moved = True

    def join(self) -> frozenset[str]:
        """The ends of this line and of all its branches that ran steps since they were last joined."""
        joined = set(self.tips)
        waiting = list(self.branches)
        for branch in waiting:  # grows while it is walked: a branch may have branches
            if branch.moved:
                joined |= branch.tips
                branch.moved = False
            waiting.extend(branch.branches)
        self.branches = [branch for branch in self.branches if branch.owner() is not None or branch.branches]
        return frozenset(joined - self.recording.followed) or frozenset(joined)


def _here() -> _Scope:
    position = _position.get()
    if position is None:
        raise NoActiveRecordingError(
            "no recording is active here: wrap the run in `with record(...)`; "
            "a thread needs a copy of the context, as asyncio.to_thread makes one"
        )
    scope, tips = position
    if not scope.recording.is_active:
        raise NoActiveRecordingError(f"the recording {scope.recording.trace_id!r} has ended; await all tasks inside it")
    if scope.owner() is not _line_of_control():
        scope = scope.branch(tips)
        _position.set(_Position(scope, tips))
    return scope


def _line_of_control() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop in this thread
        return threading.current_thread()


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | TimeoutError)


def _failure(error: BaseException) -> Failure:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(name, _text(str(error)))


def _snapshot(value: Any, blobs: MutableMapping[str, bytes]) -> Snapshot:
    if value is None or isinstance(value, Snapshot):
        return value or EMPTY
    if isinstance(value, bytes):
        return Snapshot(blobs=(_kept(value, "application/octet-stream", blobs),))
    if isinstance(value, str):
        text = _text(value)
        if len(text) <= INLINE_LIMIT:
            return Snapshot(text)
        return Snapshot(text[:INLINE_LIMIT], blobs=(_kept(text.encode(), "text/plain", blobs),))
    inner: list[Blob] = []

    def keep(raw: bytes) -> Blob:
        inner.append(_kept(raw, "application/octet-stream", blobs))
        return inner[-1]

    plain = _plain(value, keep)
    if isinstance(plain, str):
        return _snapshot(plain, blobs)
    raw = orjson.dumps(plain)
    if len(raw) <= INLINE_LIMIT:
        return Snapshot(data=plain, blobs=tuple(inner))
    whole = _kept(raw, "application/json", blobs)
    return Snapshot(raw[:INLINE_LIMIT].decode(errors="ignore"), blobs=(whole, *inner))


def _kept(raw: bytes, media_type: str, blobs: MutableMapping[str, bytes]) -> Blob:
    blob = Blob(digest(raw), len(raw), media_type)
    blobs.setdefault(blob.digest, raw)
    return blob


def _plain(value: Any, keep: Callable[[bytes], Blob] | None = None) -> Json:
    """A JSON copy of any value; what JSON cannot hold becomes readable text."""

    def other(odd: Any) -> Json:
        if isinstance(odd, bytes | bytearray):
            return keep(bytes(odd)) if keep else {"digest": digest(bytes(odd)), "size": len(odd)}
        if hasattr(odd, "model_dump"):  # pydantic
            return odd.model_dump(mode="json")
        if isinstance(odd, set | frozenset):
            return sorted(odd, key=repr)
        if isinstance(odd, Mapping):
            return dict(odd)
        return _text(repr(odd))

    if isinstance(value, str):
        return _text(value)
    try:
        raw = orjson.dumps(value, default=other, option=orjson.OPT_NON_STR_KEYS)
        if b"null" in raw and holds_non_finite(value):
            from pydantic_core import to_json

            raw = to_json(value, inf_nan_mode="strings", bytes_mode="base64", fallback=other)
    except (TypeError, ValueError):  # cycles, integers beyond 64 bits, broken strings
        return _text(repr(value))
    return orjson.loads(raw)


def _text(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
