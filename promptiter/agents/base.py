"""Agent: anything that can be described and run under a profile."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol, TypeGuard, runtime_checkable
from uuid import UUID

import orjson

from promptiter.concurrency import call_any
from promptiter.errors import AnswerError, SetupError
from promptiter.llm.messages import Message, Role
from promptiter.profile import Profile
from promptiter.signatures import find_misfit
from promptiter.structure import StructureSnapshot
from promptiter.wording import shorten
from traces import ExecutionTrace, Failure, OpenStep, ToolCall, Usage
from traces.model import Json, sum_usage
from traces.snapshots import to_plain_json

logger = logging.getLogger(__name__)

_MAX_DEPTH = 100
"""Data that is nested deeper is probably a circle."""

_PLAIN = (str, int, float, Enum, UUID, Decimal)
"""Values without parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInput:
    """The input of a run: the user's message, the conversation so far, and the session state."""

    text: str
    history: tuple[Message, ...] = ()
    state: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """An output that replaces the execution of a step. `step_id` is the id of the step in the trace."""

    step_id: str
    output: Json
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What an agent run belongs to: plain data that can be sent to other processes.

    `deadline_s` counts from its start. `substitutes` are for agents that can replay: see SubstitutingAgent.
    """

    case_id: str = ""
    repeat: int = 0
    turn: int = 0
    seed: int = 0
    role: Role = "agent"
    deadline_s: float | None = None
    substitutes: tuple[Substitute, ...] = ()

    def substitute_for(self, step_id: str) -> Substitute | None:
        """The substitute for a step of this turn; None if the step is executed."""
        if not self.substitutes:
            return None
        mine = (each for each in self.substitutes if (each.step_id, each.turn) == (step_id, self.turn))
        return next(mine, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """The result of one run: an output or an error, the trace if there is one, and the usage.

    A conversation of several turns has each in `turns`; its own fields hold the last output and the total usage.
    """

    output: str = ""
    data: Json = None
    trace: ExecutionTrace | None = None
    usage: Usage = field(default_factory=Usage)
    error: Failure | None = None
    duration_s: float = 0.0
    turns: tuple[AgentRun, ...] = ()

    @staticmethod
    def of_turns(runs: Sequence[AgentRun], error: Failure | None = None) -> AgentRun:
        """Combine the runs of a conversation's turns; the error is the given one, or that of the failed turn."""
        if len(runs) == 1 and error is None:
            return runs[0]
        last = runs[-1] if runs else AgentRun()
        return AgentRun(
            output=last.output,
            data=last.data,
            trace=last.trace,
            usage=sum_usage(run.usage for run in runs),
            error=error or next((run.error for run in runs if run.error), None),
            duration_s=math.fsum(run.duration_s for run in runs),
            turns=tuple(runs),
        )

    @property
    def by_turn(self) -> tuple[AgentRun, ...]:
        """The run of each turn; for a single question, this run itself."""
        return self.turns or (self,)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All tool calls of the run, in the order of the trace."""
        return tuple(call for step in self.trace.steps for call in step.tool_calls) if self.trace else ()


class Agent(Protocol):
    """Called by the evaluator, many times concurrently; a run must not change the agent."""

    def describe(self) -> StructureSnapshot:
        """The static graph and its editable surfaces; the same at every call."""

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        """Run once under a profile. An error of the agent is returned in the AgentRun, not raised."""


@runtime_checkable
class RestoringAgent(Agent, Protocol):
    """An agent that writes candidates to an external place while it runs, and must restore the baseline."""

    async def aclose(self) -> object:
        """Restore the baseline. Called by the engine at the end of each optimization, however it ended."""


@runtime_checkable
class ExternalAgent(Agent, Protocol):
    """An agent that depends on something outside of this process, such as a service."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how its cases are run. The engine reports it once in each run."""

    async def check_health(self) -> None:
        """Called by the engine before anything is spent. Raises SetupError if the agent cannot be run.

        Once it has passed, it need not check again.
        """


@runtime_checkable
class NeedsProgram(Protocol):
    """An agent or a stage that starts a program."""

    def find_setup_problem(self) -> str | None:
        """Why the program cannot be started, and what to do; None if it can. Called before anything is spent."""


async def check_agent_health(agent: Agent) -> None:
    """Check that an agent can be run, before anything is spent. Raises SetupError if it cannot."""
    if isinstance(agent, ExternalAgent):
        await agent.check_health()


async def restore_agent(agent: Agent) -> None:
    """Restore the files of an agent that runs candidates in place. A failure is logged: the run is over by now."""
    if not isinstance(agent, RestoringAgent):
        return
    try:
        await agent.aclose()
    except asyncio.CancelledError:
        pass  # it restores first
    except Exception as error:  # noqa: BLE001 - the result must not be lost
        logger.warning("the baseline could not be restored: %s; run `promptiter restore`", error)


SUBSTITUTED = "promptiter.substituted"
"""The attribute of a step that was not executed because it has a substitute."""


@runtime_checkable
class SubstitutingAgent(Agent, Protocol):
    """An agent that can be replayed with other outputs for some steps, so that blame can be checked.

    A step with a substitute in the RunContext returns that output: it calls no model or tool, reads no surface, and has
    the attribute SUBSTITUTED. Steps before it run as usual, and steps after it use the substituted output.
    """

    def can_substitute(self, node_id: str) -> bool:
        """Whether steps of a node can have substitutes. Called before a replay; must not block."""


@dataclass(slots=True, eq=False)
class ActiveAgentRun:
    """A run of an agent in progress, for model calls from inside of it. `calls` has those of each open step."""

    context: RunContext
    calls: dict[OpenStep, Any] = field(default_factory=dict)


active_agent_run: ContextVar[ActiveAgentRun | None] = ContextVar("promptiter_active_agent_run", default=None)


async def run_agent(agent: Agent, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
    """Run an agent once, in a thread if its `run` is synchronous. AnswerError if it returns something else."""
    before = active_agent_run.set(ActiveAgentRun(context))
    try:
        run = await call_any(agent.run, case, profile, context)
    finally:
        active_agent_run.reset(before)
    name = type(agent).__name__
    if not isinstance(run, AgentRun):
        raise AnswerError(f"{name}.run() returned {shorten(run)}; return an AgentRun, such as AgentRun(output='...')")
    if not isinstance(run.output, str):
        raise AnswerError(
            f"{name}.run() returned an AgentRun with the output {shorten(run.output)}; give a text as the output, and "
            "other data as `data`"
        )
    return run


def is_agent(value: object) -> TypeGuard[Agent]:
    """Whether an object has what an agent needs."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("describe", "run"))


def check_agent(value: object) -> None:
    """Raise SetupError if a value is not an agent, or its methods take other arguments than those of one."""
    if is_agent(value):
        _check_methods(value)
        return
    name = getattr(value, "__name__", None) or shorten(value)
    if isinstance(value, type):
        raise SetupError(f"{name} is a class, not an agent; create an object of it: {name}(...)")
    if inspect.isroutine(value):
        raise SetupError(
            f"{name} is a plain function, not an agent; decorate it with @agent(instruction=...) from promptiter.agents"
        )
    if callable(getattr(value, "surfaces", None)) and callable(getattr(value, "run", None)):
        name = getattr(value, "name", name)
        raise SetupError(f"{name} is a node, not an agent; decorate it with @agent, or make one: chain('bot', {name})")
    raise SetupError(
        f"{name} is not an agent: it needs the methods describe and run; see GraphAgent and the decorator @agent in "
        "promptiter.agents"
    )


def _check_methods(agent: Agent) -> None:
    name = type(agent).__name__
    if problem := find_misfit(agent.describe):
        raise SetupError(f"{name}.describe does not fit: {problem}; define it as `def describe(self)`")
    if problem := find_misfit(agent.run, "case", "profile", "context"):
        wanted = "async def run(self, case, profile, context)"
        raise SetupError(f"{name}.run does not fit: {problem}; define it as `{wanted}`")


def to_answer(value: Any, *, name: str) -> Json:
    """The answer of an agent as plain data. AnswerError if it is None, or an object that is not data."""
    if value is None:
        raise AnswerError(f"{name!r} returned None; return the answer, as a text or as data")
    check_data(value, name=name)
    return to_plain_json(value)


def check_data(value: Any, *, name: str, allows_bytes: bool = False) -> None:
    """Raise AnswerError if what an agent or a node returned is not data, so that a trace would hold its repr."""
    if inspect.iscoroutine(value):
        value.close()
        raise AnswerError(f"{name!r} returned a coroutine; await it, such as `return await ask(...)`")
    if not _is_data(value, allows_bytes=allows_bytes):
        raise AnswerError(f"{name!r} returned {shorten(value)}, which is not data; return a text, a dict or a list")


def check_async(function: Callable[..., Any], result: object) -> None:
    """Raise AnswerError if a function that is written with `def` returned a coroutine. A lambda or a wrapper may."""
    if not inspect.iscoroutine(result) or not inspect.isfunction(function) or function.__name__ == "<lambda>":
        return
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        result.close()
        name = function.__name__
        raise AnswerError(f"{name!r} returned a coroutine; write `async def {name}` and `return await ask(...)`")


def _is_data(value: Any, *, allows_bytes: bool, depth: int = 0) -> bool:
    """Whether to_plain_json keeps all of a value."""
    if value is None or isinstance(value, _PLAIN) or hasattr(type(value), "isoformat"):
        return True
    if isinstance(value, bytes | bytearray):
        return allows_bytes
    if isinstance(value, type) or depth == _MAX_DEPTH:
        return False
    if isinstance(value, Mapping):
        inner: Iterable[Any] = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif is_dataclass(value):
        inner = (getattr(value, each.name, None) for each in fields(value))
    elif hasattr(type(value), "model_dump"):  # pydantic
        inner = (value.model_dump(),)
    else:
        return False
    return all(_is_data(each, allows_bytes=allows_bytes, depth=depth + 1) for each in inner)


def copy_value(value: Json) -> Json:
    """A copy that a run, or a function of the user, may modify."""
    return copy.deepcopy(value) if isinstance(value, (list, dict)) else value


def to_text(value: Json) -> str:
    """A value as prompts show it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()
