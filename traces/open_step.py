"""OpenStep: a step while it is running."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from traces.errors import NoActiveRecordingError
from traces.model import EMPTY, Edge, Failure, Json, Step, StepKind, Usage, digest
from traces.open_tool_call import OpenToolCall, to_failure
from traces.recording import Position, RecordedStep, Recording, current_position, enter_scope
from traces.scopes import ControlScope
from traces.snapshots import take_snapshot, to_plain_json


class OpenStep:
    """A step while it is running: set `output` and `usage`, read surfaces, call tools."""

    __slots__ = (
        "_answer",
        "_end_ns",
        "_error",
        "_given_input",
        "_inner",
        "_input",
        "_known_usage",
        "_output",
        "_questions",
        "_read",
        "_start_ns",
        "_surface_reads",
        "after",
        "attributes",
        "id",
        "index",
        "kind",
        "node_id",
        "number",
        "output",
        "predecessors",
        "scope",
        "tool_calls",
    )
    scope: ControlScope[Recording, RecordedStep]
    _inner: ControlScope[Recording, RecordedStep]

    def __init__(
        self,
        node_id: str,
        *,
        kind: StepKind,
        input: Any,  # noqa: A002 - the name of the field of Step
        index: int | str | None,
        after: Iterable[OpenStep | str] | None,
        attributes: dict[str, Json],
    ) -> None:
        self.node_id = node_id
        self.kind = kind
        self.index = index
        self.after = after
        self.attributes = attributes
        self.output: Any = None
        self.id = ""
        self.number = 0
        self.predecessors: frozenset[str] = frozenset()
        self.tool_calls: list[OpenToolCall] = []
        self._given_input = input
        self._known_usage: Usage | None = None
        self._input = self._output = EMPTY
        self._error: Failure | None = None
        self._surface_reads: dict[str, str] = {}
        self._read: frozenset[str] | None = None
        self._questions = 0
        self._answer: tuple[int, Any] = (0, None)
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    @property
    def input(self) -> Any:
        return self._given_input

    @input.setter  # noqa: A003 - the name of the field of Step
    def input(self, value: Any) -> None:
        self._given_input = value
        if self._start_ns is not None:  # it is recorded
            self._input = take_snapshot(value, self.scope.recording.blobs)  # now: the step may change the value

    @property
    def usage(self) -> Usage | None:
        return self._known_usage

    @usage.setter
    def usage(self, value: Usage | None) -> None:
        if value is not None and not isinstance(value, Usage):
            raise TypeError(f"usage must be a traces.Usage, got {value!r:.60}")
        self._known_usage = value

    @property
    def has_ended(self) -> bool:
        return self._end_ns is not None

    def __enter__(self) -> OpenStep:
        self.scope = scope = enter_scope()
        if not scope.recording.keeps_steps:
            self.id = self.node_id
            self._inner = ControlScope(scope.recording, parent=self, outer=scope, tips=self.predecessors)
            current_position.set(Position(self._inner, self.predecessors))
            return self
        if self.after is None:
            self.predecessors = scope.join()
        else:
            self.predecessors = frozenset(source if isinstance(source, str) else source.id for source in self.after)
        scope.recording.register(self, scope.build_path(self.node_id, self.index))
        self._inner = ControlScope(scope.recording, parent=self, outer=scope, tips=self.predecessors, owner=scope.owner)
        self._start_ns = scope.recording.clock()
        current_position.set(Position(self._inner, self._inner.tips))
        if self._given_input is not None:
            self._input = take_snapshot(self._given_input, scope.recording.blobs)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        recording = self.scope.recording
        if not recording.keeps_steps:
            current_position.set(Position(self.scope, self.predecessors))
            return
        self._error = None if error is None else to_failure(error)
        self._end_ns = recording.clock()
        ends = self._inner.join()
        if ends != self._inner.start:
            self.predecessors = ends  # the outer step follows its last inner steps
        self.scope.take_over(self._inner)
        self.scope.move_to(self.id)
        position = current_position.get()
        if position is not None and position.scope is self._inner:  # otherwise a generator was closed out of order
            outer = self.scope.find_open_scope()
            current_position.set(Position(outer, outer.tips))
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
        """The step as far as it is recorded."""
        edges = self._build_edges()
        return Step(
            id=self.id,
            node_id=self.node_id,
            kind=self.kind,
            predecessors=tuple(self.predecessors.union(edge.source for edge in edges) if edges else self.predecessors),
            edges=edges,
            surface_reads=dict(self._surface_reads),
            input=self._input,
            output=self._output,
            tool_calls=tuple([call.freeze() for call in self.tool_calls]),
            error=self._error,
            usage=self._known_usage,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            attributes=to_plain_json(self.attributes) if self.attributes else {},
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
