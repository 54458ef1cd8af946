"""The errors of this package.

TraceError                     base class; `place` is the position in the file, for traces that came from one
├── BrokenTraceError           the steps do not form a DAG; `step_id` names the step
│   ├── EmptyTraceError
│   ├── DuplicateStepError
│   ├── UnknownPredecessorError
│   └── CycleError             `step_ids` is the cycle
├── UnknownStepError           the trace has no step with this id
├── UnreadableTraceError       the bytes are not a trace: truncated, wrong types, unknown version
│   └── UnknownConventionError no dialect recognises the spans
├── UnwritableTraceError       the format cannot represent a value
├── NoActiveRecordingError     a step was opened or a surface read outside a recording
└── AmbiguousStepError         the ids of two parallel executions of a node would depend on timing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file: a line of a text file, or a byte of a binary one."""

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
    """Something is wrong with a trace. The message says what, and how to fix it."""

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
        nearest = suggest(predecessor, known)
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
        super().__init__(f"the trace has no step {step_id!r}{suggest(step_id, known)}")
        self.step_id = step_id


class UnreadableTraceError(TraceError):
    """The bytes are not a trace."""


class UnknownConventionError(UnreadableTraceError):
    """No dialect recognises the spans."""


class UnwritableTraceError(TraceError):
    """The format cannot represent a value."""


class NoActiveRecordingError(TraceError):
    """A step was opened or a surface read outside a recording."""


class AmbiguousStepError(TraceError):
    def __init__(self, step_id: str, *, why: str = "") -> None:
        super().__init__(
            why
            or f"step {step_id!r} runs again in another task or thread, so its ids would depend on timing: give "
            "parallel executions an index with step(..., index=i); if they run one after the other, open a step "
            "between them or name the predecessors with step(..., after=[previous])"
        )
        self.step_id = step_id


def suggest(wanted: str, known: Iterable[str]) -> str:
    # difflib is quadratic in the length of the words, so a huge trace is only sampled.
    candidates = [name for _, name in zip(range(2_000), known, strict=False)]
    found = get_close_matches(wanted, candidates, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
