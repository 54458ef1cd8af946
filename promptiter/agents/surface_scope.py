"""Surfaces of the running function, by name: `surface("instruction")`.

A function that runs as a node reads them through the current step, which records the read. A function that is called
directly reads them from its profile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from promptiter.context import ContextValue
from promptiter.errors import SetupError, UnknownSurfaceError
from traces import current_step
from traces.model import Json
from traces.recorder import current_recording
from traces.recording import Recording


class SurfaceScope(NamedTuple):
    """The surfaces of a function while it runs: their ids, and how a value is read by its id."""

    node_id: str
    surface_ids: tuple[str, ...]
    read: Callable[[str], Json]
    recording: Recording | None

    def find(self, name: str) -> str:
        """Return the id of a surface of this function, or raise an error that lists the known ones."""
        surface_id = f"{self.node_id}#{name}"
        if not self.surface_ids:
            raise SetupError(f"{self.node_id!r} has no surfaces; declare them, such as @agent(instruction=...)")
        if surface_id not in self.surface_ids:
            raise UnknownSurfaceError(surface_id, known=self.surface_ids)
        return surface_id


_current: ContextVar[SurfaceScope | None] = ContextVar("promptiter_surface_scope", default=None)


def surface(name: str) -> Json:
    """Return the value of a surface of the running function: `surface("instruction")`, `surface("parameter.top_k")`.

    Works inside nested steps (`with traces.step(...)`), tasks, and threads with a copy of the context, too. The
    innermost step records that it read the surface.
    """
    scope, recording = _current.get(), current_recording()
    if scope is not None and recording is scope.recording:
        return scope.read(scope.find(name))
    if recording is None:
        raise SetupError(
            f"surface({name!r}) was read outside of a run; read it inside a function that is decorated with @agent or "
            "@node; a new thread needs a copy of the context, as made by asyncio.to_thread"
        )
    step = current_step()  # of an agent that records its steps itself
    return step.read_surface(f"{step.node_id}#{name}")


def open_scope(
    node_id: str, surface_ids: tuple[str, ...], *, read: Callable[[str], Json] | None = None
) -> ContextValue[SurfaceScope]:
    """Let `surface` find these surfaces in this block. By default the current step reads and records them."""
    scope = SurfaceScope(node_id, surface_ids, read or _read_in_current_step, current_recording())
    return ContextValue(_current, scope)


def _read_in_current_step(surface_id: str) -> Json:
    return current_step().read_surface(surface_id)
