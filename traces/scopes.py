"""Scopes: lines of control inside a recording. They know which steps the next one follows.

A task or thread that copied the context of another is a branch of it. A line joins the branches that have ended.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Generic, Protocol, TypeVar

from traces.errors import AmbiguousStepError, TraceError


class ScopedRecording(Protocol):
    """What a scope needs of its recording."""

    lock: threading.RLock

    @property
    def followed(self) -> set[str]:
        """The ids of steps that another step follows."""

    def note_misuse(self, error: TraceError) -> None:
        """Remember an error that the recorded code may catch."""


class ScopedStep(Protocol):
    """What a scope needs of the step that it is inside."""

    id: str
    node_id: str

    @property
    def has_ended(self) -> bool: ...


R = TypeVar("R", bound=ScopedRecording)
S = TypeVar("S", bound=ScopedStep)


class ControlScope(Generic[R, S]):
    """A line of control inside a recording or a step; its next step follows the `tips`.

    Its `owner` is the task or thread that runs it: by default the current one.
    """

    __slots__ = ("branches", "has_moved", "loop_inside", "outer", "owner", "parent", "recording", "start", "tips")

    def __init__(
        self,
        recording: R,
        *,
        parent: S | None,
        outer: ControlScope[R, S] | None = None,
        tips: frozenset[str],
        owner: weakref.ref[object] | None = None,
    ) -> None:
        self.recording = recording
        self.parent = parent
        self.outer = outer
        self.start = tips
        self.tips = tips
        self.has_moved = False
        self.branches: list[ControlScope[R, S]] = []
        self.owner = weakref.ref(current_line_of_control()) if owner is None else owner
        self.loop_inside: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def branch(self, tips: frozenset[str]) -> ControlScope[R, S]:
        if self.owner() is threading.current_thread():
            tips = self._enter_loop()
        child = ControlScope(self.recording, parent=self.parent, outer=self.outer, tips=tips)
        with self.recording.lock:
            self.find_open_scope().branches.append(
                child
            )  # a task may start running after the step that created it has ended
        return child

    def _enter_loop(self) -> frozenset[str]:
        """Continue a thread's line of control in the event loop that the thread runs; only one task of it can."""
        loop = asyncio.get_running_loop()
        if self.loop_inside is not None and self.loop_inside() is loop:
            error = AmbiguousStepError("", why=_OUTSIDE_THE_LOOP)
            self.recording.note_misuse(error)
            raise error
        self.loop_inside = weakref.ref(loop)
        return self.join()

    def build_path(self, node_id: str, index: int | str | None) -> str:
        """The path of a step that is opened in this scope."""
        name = node_id if index is None else f"{node_id}[{index}]"
        if self.parent is None:
            return name
        return f"{self.parent.id}/{name.removeprefix(self.parent.node_id + '/')}"

    def move_to(self, step_id: str) -> None:
        self.tips = frozenset((step_id,))
        self.has_moved = True

    def join(self) -> frozenset[str]:
        """Return the last steps of this line, and of its branches that have ended since they were last joined."""
        if not self.branches:
            return (self.tips - self.recording.followed) or self.tips
        with self.recording.lock:
            joined = set(self.tips)
            waiting = list(self.branches)
            for branch in waiting:  # grows during the loop: a branch may have branches
                if branch.has_moved and not branch.is_running():
                    joined |= branch.tips
                    branch.has_moved = False
                waiting.extend(branch.branches)
            self.branches = [branch for branch in self.branches if branch.is_running() or branch.branches]
            return frozenset(joined - self.recording.followed) or frozenset(joined)

    def take_over(self, inner: ControlScope[R, S]) -> None:
        """Keep the branches that outlive a nested step, so that they are joined later."""
        if inner.branches:
            with self.recording.lock:
                self.branches += inner.branches

    def is_running(self) -> bool:
        """Whether this line may open more steps. For a pool's thread that is unknown, so it counts as ended."""
        owner = self.owner()
        return isinstance(owner, asyncio.Task) and not owner.done()

    def find_open_scope(self) -> ControlScope[R, S]:
        """Return this scope, or the nearest one around it whose step has not ended."""
        scope = self
        while scope.outer is not None and scope.parent is not None and scope.parent.has_ended:
            scope = scope.outer
        return scope


_OUTSIDE_THE_LOOP = (
    "several tasks of an event loop opened steps before the code that started them did, so it is unclear which step "
    "joins them: start the recording inside the loop, `async def main(): with record(...)`, or open a step first"
)


def current_line_of_control() -> object:
    """The running task, or the thread if none is running."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop in this thread
        return threading.current_thread()
