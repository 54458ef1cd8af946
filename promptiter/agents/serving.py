"""Agents called as functions, in production or from other agents: `await triage("hi")`.

Nothing is recorded and nothing is answered from the cache. If no gateway is active, models are called through one that
all calls of the process share. Inside the run of another agent, calls of models belong to the step that is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from promptiter.agents.base import RunContext
from promptiter.agents.step_calls import StepCalls, current_calls
from promptiter.agents.surface_scope import open_scope
from promptiter.context import ContextValue
from promptiter.llm.gateway import Gateway, find_active_gateway
from promptiter.profile import Profile, list_active_profiles
from traces import record, step
from traces.model import Json
from traces.recorder import current_recording
from traces.recording import Recording

ReadSurface: TypeAlias = Callable[[str], Json]
"""Returns the value of a surface by its id."""


class _Running(NamedTuple):
    """How an agent that is running reads its surfaces, and the profiles that were active when it was started."""

    read: ReadSurface
    active: tuple[Profile, ...]


_running: ContextVar[Mapping[int, _Running]] = ContextVar("promptiter_running", default=MappingProxyType({}))
"""The agents that are running here, one called by the other, by the id of their nodes."""


def mark_running(nodes: object, read: ReadSurface) -> ContextValue[Mapping[int, _Running]]:
    """Let an agent that calls itself, directly or through others, read what it reads now. `nodes` are its identity."""
    return ContextValue(_running, {**_running.get(), id(nodes): _Running(read, list_active_profiles())})


def find_reader(nodes: object, structure_id: str) -> ReadSurface | None:
    """How an agent reads its surfaces, if it is running here already and has activated no profile for itself since."""
    running = _running.get().get(id(nodes))
    if running is None:
        return None
    active = list_active_profiles()
    since = active[: len(active) - len(running.active)]
    return None if any(profile.structure_id == structure_id for profile in since) else running.read


def read_in_run(recording: Recording, surface_id: str) -> Json:
    """Read a surface in the step of this recording that is running, which records the read."""
    calls = current_calls.get()
    while calls.outer is not None and calls.step.scope.recording is not recording:
        calls = calls.outer
    return calls.step.read_surface(surface_id)


@contextmanager
def serve_function(node_id: str, surface_ids: tuple[str, ...], read: ReadSurface) -> Iterator[None]:
    """Let a function run in this block as if it were a node: `surface`, `ask` and `traces.step` work."""
    with ExitStack() as stack:
        opened = step(node_id)
        if current_recording() is None:
            stack.enter_context(record(node_id, resolve=read, keep_steps=False))
            stack.enter_context(opened)
        if current_calls.get(None) is None:
            stack.enter_context(serve_calls())
            token = current_calls.set(StepCalls(opened, RunContext(), is_live=True))
            stack.callback(current_calls.reset, token)
        stack.enter_context(open_scope(node_id, surface_ids, read=read))
        yield


@contextmanager
def serve_calls() -> Iterator[None]:
    """Make calls through the active gateway, or through the one of the process."""
    if find_active_gateway() is not None:
        yield
    else:
        with _get_process_gateway().active():
            yield


@cache
def _get_process_gateway() -> Gateway:
    return Gateway()
