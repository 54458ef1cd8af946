"""What a host and its workers send each other: how to build the runner of a job, and calls with their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from promptiter.agents.base import RestoringAgent
from promptiter.errors import PromptiterError, SetupError
from promptiter.evaluation.case_runner import CaseRunner
from promptiter.evaluation.workers.wire_format import Handles, pack, pack_agent, unpack_plain
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, ModelRequest
from traces.model import Json

ExecuteTool: TypeAlias = Callable[[], Awaitable[bytes]]
"""Executes the tool in the worker that called it. Returns a packed ForwardedAnswer, or raises WorkerLostError."""


class WorkerLostError(PromptiterError):
    """A worker ended before it returned a result."""


class OverdueError(WorkerLostError):
    """A worker ended itself because the agent blocked it beyond the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A request to a model that a worker makes, and which of the host's gateways answers it."""

    gateway: Gateway
    request: ModelRequest
    site: CallSite
    node_id: str
    is_live: bool
    doublings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedToolCall:
    """A call of a declared tool that a worker makes."""

    gateway: Gateway
    name: str
    arguments: Json
    site: CallSite
    node_id: str
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedAnswer:
    """The answer to a call, or its error, and how many calls that took."""

    value: Any = None
    error: BaseException | None = None
    paid: int = 0
    cached: int = 0


def pack_runner(runner: CaseRunner, handles: Handles) -> bytes:
    """How another process builds the runner: the agent and the metrics by name, or as plain data."""
    if isinstance(runner.agent, RestoringAgent):
        raise SetupError(
            f"the agent is a {type(runner.agent).__name__}, which writes candidates to one place, so it cannot run in "
            "several processes; use LocalExecutor"
        )
    metrics = [pack(metric, handles, place=f"the metric {metric.name!r}") for metric in runner.metrics]
    return orjson.dumps(
        {
            "agent": orjson.Fragment(pack_agent(runner.agent, handles, place="the agent")),
            "baseline_id": runner.agent.describe().baseline_id,
            "metrics": [orjson.Fragment(metric) for metric in metrics],
            "context": orjson.Fragment(pack(runner.context, handles)),
            "user_simulator": orjson.Fragment(pack(runner.user_simulator, handles, place="the user simulator")),
            "active_profiles": orjson.Fragment(pack(runner.active_profiles, handles)),
        }
    )


def unpack_runner(plain: Json, handles: Handles) -> CaseRunner:
    """Build the runner in another process. Raises SetupError if its agent differs from that of the host."""
    parts = unpack_plain(plain, handles)
    agent = parts["agent"]
    if agent.describe().baseline_id != parts["baseline_id"]:
        raise SetupError(
            f"{name_agent(plain)} has other nodes or values in a worker process than in this one; build the same agent "
            "whenever its module is imported, or use LocalExecutor or ThreadExecutor"
        )
    return CaseRunner(
        agent=agent,
        metrics=tuple(parts["metrics"]),
        context=parts["context"],
        user_simulator=parts["user_simulator"],
        active_profiles=parts["active_profiles"],
    )


def name_agent(plain: Json) -> str:
    """The agent of a packed runner, for error messages."""
    agent = plain["agent"]
    reference = agent.get("$ref") or agent.get("$made")
    return "the agent" if reference is None else f"the agent {reference!r}"
