"""The calls of a step: requests to models and tools, through the gateway, each under its own cache key."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, cast

from promptiter.agents.base import RunContext, active_agent_run, to_text
from promptiter.concurrency import get_background_loop
from promptiter.errors import ModelUnavailableError, PromptiterError, ToolFailedError
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.outages import is_outage
from traces import NoActiveRecordingError, OpenStep, Usage, current_step
from traces.model import Json, sum_usage
from traces.recorder import find_open_step
from traces.snapshots import to_plain_json

REQUESTS = "promptiter.requests"
"""The step attribute with the digests of its requests: it shows that a request changed, whatever the answer."""


class StepCalls:
    """The calls of one step. Equal calls are numbered, so that each has its own key whatever the timing.

    The calls of a live step are never answered from the cache. If the step is part of an agent that a function called,
    `outer` has the calls of that function's step, which the usage is added to as well.
    """

    def __init__(
        self, step: OpenStep, context: RunContext, *, is_live: bool = False, outer: StepCalls | None = None
    ) -> None:
        self.step = step
        self.context = context
        self.is_live = is_live
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            self.loop = get_background_loop()
        self.outer = outer
        self._seen: dict[str, int] = {}

    async def ask(self, request: ModelRequest, *, is_live: bool = False) -> ModelReply:
        """Ask a model through the gateway and add its usage to the step."""
        digest = request.digest
        site = self._site(digest)
        self.step.attributes["gen_ai.request.model"] = request.model
        self.step.attributes.setdefault(REQUESTS, []).append(digest[:16])
        reply = await current_gateway().ask(request, site, node_id=self.step.node_id, is_live=is_live or self.is_live)
        self._add_usage(reply.usage)
        return reply

    async def call_tool(
        self, name: str, function: Callable[..., Any], arguments: Json, *, is_live: bool = False
    ) -> Json:
        """Call a tool through the gateway. If it raises, the model gets the error as its result."""
        site = self._site(f"{name}{to_text(arguments)}")
        try:
            return await current_gateway().call_tool(
                name, arguments, function, site, node_id=self.step.node_id, is_live=is_live or self.is_live
            )
        except ToolFailedError as error:
            return {"error": str(error)}

    async def get_or_execute(self, name: str, key: Json, execute: Callable[[], Awaitable[Json]]) -> Json:
        """Return the cached value of a key, or execute and cache it. An error is cached and raised as ToolFailedError.

        An outage is not cached: it is raised as ModelUnavailableError.
        """

        async def run(**_: Json) -> Json:
            try:
                value = await execute()
            except PromptiterError:
                raise
            except Exception as error:
                if is_outage(error):
                    raise ModelUnavailableError(f"{name} failed: {type(error).__name__}: {error}") from error
                raise
            return {"value": to_plain_json(value), "usage": asdict(self.step.usage) if self.step.usage else None}

        site = self._site(f"{name}{to_text(key)}")
        stored = await current_gateway().call_tool(
            name, key, run, site, node_id=self.step.node_id, is_live=self.is_live
        )
        if stored["usage"]:
            self.step.usage = Usage(**stored["usage"])
        return stored["value"]

    def _add_usage(self, usage: Usage) -> None:
        self.step.usage = sum_usage((self.step.usage, usage))
        if self.outer is not None:
            self.outer._add_usage(usage)

    def _build_step_id(self) -> str:
        return self.step.id if self.outer is None else f"{self.outer._build_step_id()} calls {self.step.id}"

    def _site(self, what: str) -> CallSite:
        number = self._seen[what] = self._seen.get(what, -1) + 1
        step_id = self._build_step_id()
        return CallSite(
            role=self.context.role,
            case_id=self.context.case_id,
            repeat=self.context.repeat,
            step_id=f"{step_id} in turn {self.context.turn}" if self.context.turn else step_id,
            number=number,
        )


current_calls: contextvars.ContextVar[StepCalls] = contextvars.ContextVar("promptiter_current_calls")
"""The calls of the running step, for functions that ask models themselves."""


def find_calls() -> StepCalls | None:
    """The calls of the running node; in an agent that is written by hand, those of its open step; None elsewhere."""
    calls = current_calls.get(None)
    if calls is not None:
        return calls
    try:
        step = current_step()
    except NoActiveRecordingError:
        return None
    run = active_agent_run.get()
    if run is None:  # the agent was called directly
        return StepCalls(step, RunContext(), is_live=True)
    return cast("StepCalls", run.calls.setdefault(step, StepCalls(step, run.context)))


def find_own_step() -> OpenStep | None:
    """The innermost step that the code of the user opened. That of a node records what the node got and returned."""
    step = find_open_step()
    calls = current_calls.get(None)
    return None if calls is not None and calls.step is step else step
