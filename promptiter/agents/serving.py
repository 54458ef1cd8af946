"""Agents called as functions, in production or from other agents: `await triage("hi")`.

Nothing is recorded and nothing is answered from the cache. If no gateway is active, models are called through one that
all calls of the process share. Inside the run of another agent, calls of models belong to the step that is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from promptiter.agents.base import RunContext
from promptiter.agents.step_calls import StepCalls, current_calls
from promptiter.agents.surface_scope import open_scope
from promptiter.llm.gateway import Gateway, find_active_gateway
from traces import record, step
from traces.model import Json
from traces.recorder import current_recording


@contextmanager
def serve_function(node_id: str, surface_ids: tuple[str, ...], read: Callable[[str], Json]) -> Iterator[None]:
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
