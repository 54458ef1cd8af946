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

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, cast

from traces.errors import BrokenTraceError, NoActiveRecordingError
from traces.model import STEP_KINDS, Json, StepKind
from traces.open_step import OpenStep
from traces.recording import Recording, Resolver, current_position, enter_scope


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
    opened = enter_scope().parent
    if opened is None:
        raise NoActiveRecordingError("no step is open: read surfaces and call tools inside `with step(...)`")
    return cast("OpenStep", opened)


def find_open_step() -> OpenStep | None:
    """Return the innermost open step, or None if there is none."""
    position = current_position.get()
    return None if position is None else cast("OpenStep | None", position.scope.find_open_scope().parent)


def current_recording() -> Recording | None:
    """Return the active recording, or None outside of recordings."""
    position = current_position.get()
    return None if position is None else position.scope.recording


def read_surface(surface_id: str) -> Json:
    """Return the value of a surface, and record in the current step that it was read."""
    return current_step().read_surface(surface_id)
