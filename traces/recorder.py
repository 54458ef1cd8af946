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
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from traces.errors import (
    AmbiguousStepError,
    BrokenTraceError,
    NoActiveRecordingError,
    TraceError,
    UnknownPredecessorError,
)
from traces.model import (
    EMPTY,
    STEP_KINDS,
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
)
from traces.snapshots import describe_value, take_snapshot, to_bounded_json, to_plain_json

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
) -> Recording:
    """Record a trace: a context manager, active in its body and in the tasks and threads started there."""
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


def read_surface(surface_id: str) -> Json:
    """Return the value of a surface, and record in the current step that it was read."""
    return current_step().read_surface(surface_id)


class Recording:
    """A trace while it is being recorded."""

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
        self._steps: dict[str, OpenStep] = {}
        self._followed: set[str] = set()
        self._last_visit: dict[str, tuple[int, OpenStep]] = {}
        self._lock = threading.RLock()
        self._outside: _Position | None = None
        self._misuse: TraceError | None = None

    @property
    def trace(self) -> ExecutionTrace:
        """The trace recorded so far. It is incomplete as long as a step is open."""
        with self._lock:
            steps = tuple(opened.freeze() for opened in self._steps.values())
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
        return bool(self._steps)

    def fail(self) -> None:
        """Mark the run as failed, for an error that was caught inside the recording."""
        self._status = "failed"

    def __enter__(self) -> Recording:
        self.is_active = True
        self._outside = _position.get()
        _position.set(_Position(_Scope(self, parent=None, tips=frozenset()), frozenset()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.is_active = False
        _position.set(self._outside)
        if error is not None:
            self._status = "incomplete" if _is_cancellation(error) else "failed"
        elif self._misuse is not None:
            self._status = "failed"
            raise self._misuse  # it was caught inside the recording, but steps are missing

    def _register(self, opened: OpenStep, path: str) -> None:
        """Give a step its id and its number in the order of starts."""
        try:
            self._assign_id(opened, path)
        except TraceError as error:
            self._misuse = self._misuse or error
            raise

    def _assign_id(self, opened: OpenStep, path: str) -> None:
        with self._lock:
            for source in opened.predecessors:
                if source not in self._steps:
                    raise UnknownPredecessorError(path, source, known=self._steps)
            visit, previous = self._last_visit.get(path, (0, None))
            if previous is not None and not self._comes_before(previous, opened):
                raise AmbiguousStepError(path)
            while True:
                visit += 1
                # A node whose name already ends in ~2 gets ~1 for its first visit, so that the two are not confused.
                opened.id = path if visit == 1 and not _LOOKS_LIKE_A_VISIT.search(path) else f"{path}~{visit}"
                if opened.id not in self._steps:
                    break
            opened.number = len(self._steps)
            self._last_visit[path] = (visit, opened)
            self._steps[opened.id] = opened
            self._followed |= opened.predecessors

    def _comes_before(self, previous: OpenStep, opened: OpenStep) -> bool:
        """Whether a step always runs after the previous visit of its node, not just by chance this time."""
        if previous.scope is opened.scope:
            return True
        seen = set(opened.predecessors)
        waiting = list(seen)
        while waiting:
            ancestor = self._steps[waiting.pop()]
            if ancestor is previous:
                return True
            if ancestor.number > previous.number:  # a step that started before the previous visit does not follow it
                further = ancestor.predecessors - seen
                seen |= further
                waiting.extend(further)
        return False


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
    scope: _Scope = field(init=False, repr=False)
    _inner: _Scope = field(init=False, repr=False)
    _input: Snapshot = field(default=EMPTY, init=False)
    _output: Snapshot = field(default=EMPTY, init=False)
    _error: Failure | None = field(default=None, init=False)
    _surface_reads: dict[str, str] = field(default_factory=dict, init=False)
    _start_ns: int | None = field(default=None, init=False)
    _end_ns: int | None = field(default=None, init=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "usage" and not isinstance(value, Usage | None):
            raise TypeError(f"usage must be a traces.Usage, got {value!r:.60}")
        object.__setattr__(self, name, value)

    @property
    def has_ended(self) -> bool:
        return self._end_ns is not None

    def __enter__(self) -> OpenStep:
        self.scope = scope = _enter_scope()
        if self.after is None:
            self.predecessors = scope.join()
        else:
            self.predecessors = frozenset(source if isinstance(source, str) else source.id for source in self.after)
        scope.recording._register(self, scope.build_path(self))
        self._inner = _Scope(scope.recording, parent=self, tips=self.predecessors)
        self._start_ns = scope.recording.clock()
        _position.set(_Position(self._inner, self._inner.tips))
        if self.input is not None:
            self._input = take_snapshot(self.input, scope.recording.blobs)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        recording = self.scope.recording
        self._error = None if error is None else _to_failure(error)
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
        if self._input is EMPTY:
            self._input = take_snapshot(self.input, recording.blobs)  # set inside the step
        self._output = take_snapshot(self.output, recording.blobs)

    def read_surface(self, surface_id: str) -> Json:
        """Return the value of a surface, and record its digest in this step, even if the value is empty."""
        resolve = self.scope.recording.resolve
        if resolve is None:
            raise NoActiveRecordingError(
                f"surface {surface_id!r} cannot be read: the recording has no resolver; pass record(..., resolve=...)"
            )
        value = resolve(surface_id)
        self._surface_reads[surface_id] = digest(value)
        return value

    def call_tool(self, name: str, arguments: Any = None, *, call_id: str | None = None) -> OpenToolCall:
        """Record a tool call of this step: a context manager; set its `result`."""
        return OpenToolCall(self, name, arguments, call_id)

    def freeze(self) -> Step:
        return Step(
            id=self.id,
            node_id=self.node_id,
            kind=self.kind,
            predecessors=tuple(self.predecessors),
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


class OpenToolCall:
    """A tool call while it is running: set `result`."""

    def __init__(self, caller: OpenStep, name: str, arguments: Any, call_id: str | None) -> None:
        self.caller = caller
        self.name = name
        self.call_id = call_id
        self.result: Any = None
        self._arguments = to_bounded_json(arguments, caller.scope.recording.blobs)
        self._result: Json = None
        self._error: Failure | None = None
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    def __enter__(self) -> OpenToolCall:
        self._start_ns = self.caller.scope.recording.clock()
        self.caller.tool_calls.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        recording = self.caller.scope.recording
        self._error = None if error is None else _to_failure(error)
        self._end_ns = recording.clock()
        self._result = to_bounded_json(self.result, recording.blobs)

    def freeze(self) -> ToolCall:
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
    """Where in the recording code is running: its scope, and the last steps. A new task inherits a copy."""

    scope: _Scope
    tips: frozenset[str]


class _Scope:
    """A line of control inside a recording or a step; its next step follows the `tips`."""

    def __init__(self, recording: Recording, *, parent: OpenStep | None, tips: frozenset[str]) -> None:
        self.recording = recording
        self.parent = parent
        self.start = tips
        self.tips = tips
        self.has_moved = False
        self.branches: list[_Scope] = []
        self.owner = weakref.ref(_current_line_of_control())
        self.loop_inside: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def branch(self, tips: frozenset[str]) -> _Scope:
        if self.owner() is threading.current_thread():
            tips = self._enter_loop()
        child = _Scope(self.recording, parent=self.parent, tips=tips)
        with self.recording._lock:
            self.find_open_scope().branches.append(
                child
            )  # a task may start running after the step that created it has ended
        return child

    def _enter_loop(self) -> frozenset[str]:
        """Continue a thread's line of control in the event loop that the thread runs; only one task of it can."""
        loop = asyncio.get_running_loop()
        if self.loop_inside is not None and self.loop_inside() is loop:
            error = AmbiguousStepError("", why=_OUTSIDE_THE_LOOP)
            self.recording._misuse = self.recording._misuse or error
            raise error
        self.loop_inside = weakref.ref(loop)
        return self.join()

    def build_path(self, opened: OpenStep) -> str:
        name = opened.node_id if opened.index is None else f"{opened.node_id}[{opened.index}]"
        if self.parent is None:
            return name
        return f"{self.parent.id}/{name.removeprefix(self.parent.node_id + '/')}"

    def move_to(self, step_id: str) -> None:
        self.tips = frozenset((step_id,))
        self.has_moved = True

    def join(self) -> frozenset[str]:
        """Return the last steps of this line, and of its branches that have ended since they were last joined."""
        with self.recording._lock:
            joined = set(self.tips)
            waiting = list(self.branches)
            for branch in waiting:  # grows during the loop: a branch may have branches
                if branch.has_moved and not branch.is_running():
                    joined |= branch.tips
                    branch.has_moved = False
                waiting.extend(branch.branches)
            self.branches = [branch for branch in self.branches if branch.is_running() or branch.branches]
            return frozenset(joined - self.recording._followed) or frozenset(joined)

    def take_over(self, inner: _Scope) -> None:
        """Keep the branches that outlive a nested step, so that they are joined later."""
        with self.recording._lock:
            self.branches += inner.branches

    def is_running(self) -> bool:
        """Whether this line may open more steps. For a pool's thread that is unknown, so it counts as ended."""
        owner = self.owner()
        return isinstance(owner, asyncio.Task) and not owner.done()

    def find_open_scope(self) -> _Scope:
        """Return this scope, or the nearest one around it whose step has not ended."""
        scope = self
        while scope.parent is not None and scope.parent.has_ended:
            scope = scope.parent.scope
        return scope


_OUTSIDE_THE_LOOP = (
    "several tasks of an event loop opened steps before the code that started them did, so it is unclear which step "
    "joins them: start the recording inside the loop, `async def main(): with record(...)`, or open a step first"
)
_LOOKS_LIKE_A_VISIT = re.compile(r"~\d+$")


def _enter_scope() -> _Scope:
    position = _position.get()
    if position is None:
        raise NoActiveRecordingError(
            "no recording is active here: wrap the run in `with record(...)`; "
            "a new thread needs a copy of the context, as made by asyncio.to_thread"
        )
    scope, tips = position
    if not scope.recording.is_active:
        raise NoActiveRecordingError(f"the recording {scope.recording.trace_id!r} has ended; await all tasks inside it")
    if scope.owner() is not _current_line_of_control():
        scope = scope.branch(tips)
        _position.set(_Position(scope, tips))
    return scope


def _current_line_of_control() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop in this thread
        return threading.current_thread()


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | TimeoutError)


def _to_failure(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError):
        return Failure("cancelled", describe_value(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(name, describe_value(error))
