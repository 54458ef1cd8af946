"""Record a trace in-process, with asyncio and threads.

    with record("case-7", resolve=profile.value) as recording:
        with step("planner", input=question) as planner:
            planner.output = plan(read_surface("planner#instruction"), question)
    trace = recording.trace

A step follows whatever ran before it in the same line of control. A new task or thread with a copy of the context (as
asyncio and `asyncio.to_thread` make one) is a branch; the next step of the line that started it joins all branches
that have ended. Pass `after=` to override this. A step opened inside another is nested: the outer step follows its
last inner steps, because it used their results.

Ids are paths that do not depend on timing: `planner`, `planner~2` for the second visit, `research[3]` for an indexed
branch, `outer/inner` for a nested step. Only a task that is never awaited can make an edge depend on timing: it may or
may not have ended when the next step begins.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from traces.errors import BrokenTraceError, NoActiveRecordingError, TraceError
from traces.model import (
    EMPTY,
    STEP_KINDS,
    Edge,
    ExecutionTrace,
    Failure,
    Json,
    Snapshot,
    Step,
    StepKind,
    TraceStatus,
    Usage,
    digest,
)
from traces.open_tool_call import OpenToolCall, to_failure
from traces.scopes import ControlScope, current_line_of_control
from traces.snapshots import take_snapshot, to_plain_json
from traces.step_index import StepIndex

Resolver: TypeAlias = Callable[[str], Json]
"""Returns the current value of a surface."""

_position: ContextVar[_Position | None] = ContextVar("traces_position", default=None)


def record(
    trace_id: str,
    *,
    resolve: Resolver | None = None,
    conversation_id: str | None = None,
    attributes: Mapping[str, Json] | None = None,
    blobs: MutableMapping[str, bytes] | None = None,
    clock: Callable[[], int] = time.time_ns,
    keep_steps: bool = True,
) -> Recording:
    """Record a trace: a context manager, active in its body and in the tasks and threads started there.

    With `keep_steps=False` steps can be opened and surfaces read as usual, but nothing is recorded. This is how an
    agent runs in production, at next to no cost.
    """
    return Recording(
        trace_id,
        resolve=resolve,
        conversation_id=conversation_id,
        attributes=dict(attributes or {}),
        blobs={} if blobs is None else blobs,
        clock=clock,
        keeps_steps=keep_steps,
    )


def step(
    node_id: str,
    *,
    kind: StepKind = "function",
    input: Any = None,  # noqa: A002 - the name of the field of Step
    index: int | str | None = None,
    after: Iterable[OpenStep | str] | None = None,
    attributes: Mapping[str, Json] | None = None,
) -> OpenStep:
    """Open a step of the active recording: a context manager. Parallel executions of a node need an `index`."""
    if kind not in STEP_KINDS:
        raise BrokenTraceError(f"step {node_id!r}: kind must be one of {', '.join(STEP_KINDS)}, got {kind!r}")
    if isinstance(after, str | OpenStep):
        after = [after]
    return OpenStep(node_id, kind=kind, input=input, index=index, after=after, attributes=dict(attributes or {}))


def current_step() -> OpenStep:
    """Return the innermost open step."""
    opened = _enter_scope().parent
    if opened is None:
        raise NoActiveRecordingError("no step is open: read surfaces and call tools inside `with step(...)`")
    return opened


def find_open_step() -> OpenStep | None:
    """Return the innermost open step, or None if there is none."""
    position = _position.get()
    return None if position is None else position.scope.find_open_scope().parent


def current_recording() -> Recording | None:
    """Return the active recording, or None outside of recordings."""
    position = _position.get()
    return None if position is None else position.scope.recording


def read_surface(surface_id: str) -> Json:
    """Return the value of a surface, and record in the current step that it was read."""
    return current_step().read_surface(surface_id)


@dataclass(eq=False, slots=True)
class Recording:
    """A trace while it is being recorded."""

    trace_id: str
    resolve: Resolver | None
    conversation_id: str | None
    attributes: dict[str, Json]
    blobs: MutableMapping[str, bytes]
    clock: Callable[[], int]
    keeps_steps: bool = True
    is_active: bool = field(default=False, init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _status: TraceStatus = field(default="completed", init=False)
    _steps: StepIndex[OpenStep] = field(default_factory=StepIndex, init=False, repr=False)
    _outside: _Position | None = field(default=None, init=False, repr=False)
    _misuse: TraceError | None = field(default=None, init=False)

    @property
    def trace(self) -> ExecutionTrace:
        """The trace recorded so far. It is incomplete as long as a step is open."""
        with self.lock:
            steps = tuple(opened.freeze() for opened in self._steps)
        unfinished = any(recorded.end_ns is None for recorded in steps)
        return ExecutionTrace(
            id=self.trace_id,
            steps=steps,
            status="incomplete" if unfinished and self._status == "completed" else self._status,
            conversation_id=self.conversation_id,
            attributes=to_plain_json(self.attributes),
        )

    @property
    def has_steps(self) -> bool:
        """Whether any step was recorded: without one there is no trace."""
        return len(self._steps) > 0

    @property
    def followed(self) -> set[str]:
        """The ids of steps that another step follows."""
        return self._steps.followed

    def fail(self) -> None:
        """Mark the run as failed, for an error that was caught inside the recording."""
        self._status = "failed"

    def __enter__(self) -> Recording:
        self.is_active = True
        self._outside = _position.get()
        _position.set(_Position(ControlScope(self, parent=None, tips=frozenset()), frozenset()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.is_active = False
        _position.set(self._outside)
        if error is not None:
            self._status = "incomplete" if _is_cancellation(error) else "failed"
        elif self._misuse is not None:
            self._status = "failed"
            raise self._misuse  # it was caught inside the recording, but steps are missing

    def register(self, opened: OpenStep, path: str) -> None:
        """Give a step its id and its number in the order of starts."""
        try:
            with self.lock:
                self._steps.add(opened, path)
        except TraceError as error:
            self.note_misuse(error)
            raise

    def note_misuse(self, error: TraceError) -> None:
        """Remember an error of the code that records. The recording raises it at its end, even if it was caught."""
        self._misuse = self._misuse or error


@dataclass(eq=False, slots=True)
class OpenStep:
    """A step while it is running: set `output` and `usage`, read surfaces, call tools."""

    node_id: str
    kind: StepKind
    input: Any
    index: int | str | None
    after: Iterable[OpenStep | str] | None
    attributes: dict[str, Json]
    output: Any = None
    usage: Usage | None = None
    id: str = field(default="", init=False)
    number: int = field(default=0, init=False)
    predecessors: frozenset[str] = field(default=frozenset(), init=False)
    tool_calls: list[OpenToolCall] = field(default_factory=list, init=False)
    scope: ControlScope[Recording, OpenStep] = field(init=False, repr=False)
    _inner: ControlScope[Recording, OpenStep] = field(init=False, repr=False)
    _input: Snapshot = field(default=EMPTY, init=False)
    _output: Snapshot = field(default=EMPTY, init=False)
    _error: Failure | None = field(default=None, init=False)
    _surface_reads: dict[str, str] = field(default_factory=dict, init=False)
    _read: frozenset[str] | None = field(default=None, init=False)
    _questions: int = field(default=0, init=False)
    _answer: tuple[int, Any] = field(default=(0, None), init=False)
    _start_ns: int | None = field(default=None, init=False)
    _end_ns: int | None = field(default=None, init=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "usage" and not isinstance(value, Usage | None):
            raise TypeError(f"usage must be a traces.Usage, got {value!r:.60}")
        object.__setattr__(self, name, value)
        if name == "input" and hasattr(self, "scope") and self.scope.recording.keeps_steps:
            self._input = take_snapshot(value, self.scope.recording.blobs)  # now: the step may change the value

    @property
    def has_ended(self) -> bool:
        return self._end_ns is not None

    def __enter__(self) -> OpenStep:
        self.scope = scope = _enter_scope()
        if not scope.recording.keeps_steps:
            self.id = self.node_id
            self._inner = ControlScope(scope.recording, parent=self, outer=scope, tips=self.predecessors)
            _position.set(_Position(self._inner, self.predecessors))
            return self
        if self.after is None:
            self.predecessors = scope.join()
        else:
            self.predecessors = frozenset(source if isinstance(source, str) else source.id for source in self.after)
        scope.recording.register(self, scope.build_path(self.node_id, self.index))
        self._inner = ControlScope(scope.recording, parent=self, outer=scope, tips=self.predecessors)
        self._start_ns = scope.recording.clock()
        _position.set(_Position(self._inner, self._inner.tips))
        if self.input is not None:
            self._input = take_snapshot(self.input, scope.recording.blobs)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        recording = self.scope.recording
        if not recording.keeps_steps:
            _position.set(_Position(self.scope, self.predecessors))
            return
        self._error = None if error is None else to_failure(error)
        self._end_ns = recording.clock()
        ends = self._inner.join()
        if ends != self._inner.start:
            self.predecessors = ends  # the outer step follows its last inner steps
        self.scope.take_over(self._inner)
        self.scope.move_to(self.id)
        position = _position.get()
        if position is not None and position.scope is self._inner:  # otherwise a generator was closed out of order
            outer = self.scope.find_open_scope()
            _position.set(_Position(outer, outer.tips))
        self._output = take_snapshot(self._answer[1] if self.output is None else self.output, recording.blobs)

    def read_surface(self, surface_id: str) -> Json:
        """Return the value of a surface, and record its digest in this step, even if the value is empty."""
        recording = self.scope.recording
        resolve = recording.resolve
        if resolve is None:
            raise NoActiveRecordingError(
                f"surface {surface_id!r} cannot be read: the recording has no resolver; pass record(..., resolve=...)"
            )
        value = resolve(surface_id)
        if recording.keeps_steps:
            self._surface_reads[surface_id] = digest(value)
        return value

    def note_question(self, question: Any) -> Callable[[Any], None]:
        """Record a question to a model, and return a function that records its answer.

        The first question is the input of a step without one, the answer to the last question its output.
        """
        self._questions += 1
        number = self._questions
        if self.input is None:
            self.input = question

        def note_answer(answer: Any) -> None:
            if number > self._answer[0]:
                self._answer = (number, answer)

        return note_answer

    def read_from(self, sources: Iterable[OpenStep | str]) -> None:
        """Record whose outputs this step read, if these are not just the steps that it follows.

        They become its predecessors, with an edge of kind `data`. Steps that it follows but did not read only triggered
        it: their edges are of kind `control`.
        """
        self._read = frozenset(source if isinstance(source, str) else source.id for source in sources)

    def call_tool(self, name: str, arguments: Any = None, *, call_id: str | None = None) -> OpenToolCall:
        """Record a tool call of this step: a context manager; set its `result`."""
        recording = self.scope.recording
        return OpenToolCall(
            name,
            arguments,
            call_id,
            calls=self.tool_calls,
            clock=recording.clock,
            blobs=recording.blobs if recording.keeps_steps else None,
        )

    def freeze(self) -> Step:
        edges = self._build_edges()
        return Step(
            id=self.id,
            node_id=self.node_id,
            kind=self.kind,
            predecessors=tuple(self.predecessors | {edge.source for edge in edges}),
            edges=edges,
            surface_reads=dict(self._surface_reads),
            input=self._input,
            output=self._output,
            tool_calls=tuple(call.freeze() for call in self.tool_calls),
            error=self._error,
            usage=self.usage,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            attributes=to_plain_json(self.attributes),
        )

    def _build_edges(self) -> tuple[Edge, ...]:
        """Which predecessors were read, and which only triggered the step; nothing if these are the same."""
        triggers = self._inner.start
        if self._read is None or self._read == triggers:
            return ()
        read = self._read | (self.predecessors - triggers)  # and its last inner steps
        return tuple(
            Edge(source=source, kind="data" if source in read else "control")
            for source in sorted(read | self.predecessors)
        )


class _Position(NamedTuple):
    """Where in the recording code is running: its scope, and the last steps. A new task inherits a copy."""

    scope: ControlScope[Recording, OpenStep]
    tips: frozenset[str]


def _enter_scope() -> ControlScope[Recording, OpenStep]:
    position = _position.get()
    if position is None:
        raise NoActiveRecordingError(
            "no recording is active here: wrap the run in `with record(...)`; "
            "a new thread needs a copy of the context, as made by asyncio.to_thread"
        )
    scope, tips = position
    if not scope.recording.keeps_steps:
        return scope
    if not scope.recording.is_active:
        raise NoActiveRecordingError(f"the recording {scope.recording.trace_id!r} has ended; await all tasks inside it")
    if scope.owner() is not current_line_of_control():
        scope = scope.branch(tips)
        _position.set(_Position(scope, tips))
    return scope


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | TimeoutError)
