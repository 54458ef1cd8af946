"""What can go wrong with a trace.

TraceError                     every error of this package; `place` says where in which file, if it came from one
├── BrokenTraceError           the steps do not form a DAG; `step_id` names the step
│   ├── EmptyTraceError
│   ├── DuplicateStepError
│   ├── UnknownPredecessorError
│   └── CycleError             `step_ids` is the cycle
├── UnknownStepError           a question about a step the trace does not have
├── UnreadableTraceError       bytes that are no trace: truncated, of the wrong type, of an unknown version
│   └── UnknownConventionError spans that no known convention recognises
├── UnwritableTraceError       a value that the format cannot hold
├── NoActiveRecordingError     a step or surface was asked for outside a recording
└── AmbiguousStepError         two parallel executions of a node would get ids that depend on timing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands: a line of text or a byte of a binary file."""

    source: str
    line: int | None = None
    byte: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}, line {self.line}"
        if self.byte is not None:
            return f"{self.source}, byte {self.byte}"
        return self.source


class TraceError(Exception):
    """Something is wrong with a trace; the message says what, and what to do."""

    def __init__(self, message: str, *, place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class BrokenTraceError(TraceError):
    """The steps do not form a DAG."""

    step_id: str | None = None


class EmptyTraceError(BrokenTraceError):
    def __init__(self, trace_id: str) -> None:
        super().__init__(f"trace {trace_id!r} has no steps; record or export at least one")
        self.trace_id = trace_id


class DuplicateStepError(BrokenTraceError):
    def __init__(self, step_id: str) -> None:
        super().__init__(f"step {step_id!r} occurs twice; give every execution of a node its own step id")
        self.step_id = step_id


class UnknownPredecessorError(BrokenTraceError):
    def __init__(self, step_id: str, predecessor: str, *, known: Iterable[str] = ()) -> None:
        nearest = _suggest(predecessor, known)
        super().__init__(
            f"step {step_id!r} follows step {predecessor!r}, which is not in the trace{nearest}; "
            "add that step or remove it from the predecessors"
        )
        self.step_id = step_id
        self.predecessor = predecessor


class CycleError(BrokenTraceError):
    def __init__(self, step_ids: Sequence[str]) -> None:
        shown = [*step_ids[:6], "…"] if len(step_ids) > 6 else [*step_ids, step_ids[0]]
        super().__init__(
            f"step {step_ids[0]!r} depends on itself: {' → '.join(shown)}; "
            "give each visit of a loop its own step id (planner, planner~2, …)"
        )
        self.step_id = step_ids[0]
        self.step_ids = tuple(step_ids)


class UnknownStepError(TraceError):
    def __init__(self, step_id: str, *, known: Iterable[str] = ()) -> None:
        super().__init__(f"the trace has no step {step_id!r}{_suggest(step_id, known)}")
        self.step_id = step_id


class UnreadableTraceError(TraceError):
    """Bytes that are no trace."""


class UnknownConventionError(UnreadableTraceError):
    """Spans that no known convention recognises."""


class UnwritableTraceError(TraceError):
    """A value that the format cannot hold."""


class NoActiveRecordingError(TraceError):
    """A step or a surface was asked for outside a recording."""


class AmbiguousStepError(TraceError):
    def __init__(self, step_id: str, *, why: str = "") -> None:
        super().__init__(
            why
            or f"step {step_id!r} runs again in another task or thread, so its ids would depend on timing: tell "
            "parallel executions apart with step(..., index=i); if they run one after the other, open a step between "
            "them or say what each follows with step(..., after=[previous])"
        )
        self.step_id = step_id


def _suggest(wanted: str, known: Iterable[str]) -> str:
    # difflib is quadratic in the length of the words, so a huge trace is only sampled.
    candidates = [name for _, name in zip(range(2_000), known, strict=False)]
    found = get_close_matches(wanted, candidates, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
