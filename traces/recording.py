"""Recording: a trace while it is being recorded, and where in it the running code is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias

from traces.errors import NoActiveRecordingError, TraceError
from traces.model import ExecutionTrace, Json, Step, TraceStatus
from traces.scopes import ControlScope, ScopedStep, current_line_of_control
from traces.snapshots import to_plain_json
from traces.step_index import IndexedStep, StepIndex

Resolver: TypeAlias = Callable[[str], Json]
"""Returns the current value of a surface."""


class RecordedStep(IndexedStep, ScopedStep, Protocol):
    """What a recording needs of a step that was opened."""

    def freeze(self) -> Step:
        """The step as far as it is recorded."""


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
    _steps: StepIndex[RecordedStep] = field(default_factory=StepIndex, init=False, repr=False)
    _outside: Position | None = field(default=None, init=False, repr=False)
    _misuse: TraceError | None = field(default=None, init=False)

    @property
    def trace(self) -> ExecutionTrace:
        """The trace recorded so far. It is incomplete as long as a step is open."""
        with self.lock:
            steps = tuple([opened.freeze() for opened in self._steps])
        unfinished = any(recorded.end_ns is None for recorded in steps)
        return ExecutionTrace(
            id=self.trace_id,
            steps=steps,
            status="incomplete" if unfinished and self._status == "completed" else self._status,
            conversation_id=self.conversation_id,
            attributes=to_plain_json(self.attributes) if self.attributes else {},
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
        self._outside = current_position.get()
        current_position.set(Position(ControlScope(self, parent=None, tips=frozenset()), frozenset()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.is_active = False
        current_position.set(self._outside)
        if error is not None:
            self._status = "incomplete" if _is_cancellation(error) else "failed"
        elif self._misuse is not None:
            self._status = "failed"
            raise self._misuse  # it was caught inside the recording, but steps are missing

    def register(self, opened: RecordedStep, path: str) -> None:
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


class Position(NamedTuple):
    """Where in the recording code is running: its scope, and the last steps. A new task inherits a copy."""

    scope: ControlScope[Recording, RecordedStep]
    tips: frozenset[str]


current_position: ContextVar[Position | None] = ContextVar("traces_position", default=None)


def enter_scope() -> ControlScope[Recording, RecordedStep]:
    """Return the scope of the running code: a new one if it is a task or thread that has not opened a step yet."""
    position = current_position.get()
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
        current_position.set(Position(scope, tips))
    return scope


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancellation(inner) for inner in error.exceptions)
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | TimeoutError)
