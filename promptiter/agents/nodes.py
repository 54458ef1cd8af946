"""The nodes of a graph agent: functions, and model calls with tools.

A node declares its surfaces and runs once inside an open step. It reads their values through the recording, so that the
profile of the run applies; the node objects never change.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from types import FunctionType
from typing import Any, Protocol

from promptiter.agents.base import CaseInput, to_text
from promptiter.agents.step_calls import StepCalls
from promptiter.errors import AgentError, SetupError
from promptiter.llm.messages import Message, ModelReply, ModelRequest, ToolSpec
from promptiter.registry import DEFAULT_MODEL
from promptiter.structure import NO_LIMITS, Limits, NodeKind, Surface, SurfaceType
from traces import OpenStep, current_step
from traces.model import Json
from traces.snapshots import to_plain_json

MAX_TOOL_ROUNDS = 8

NO_ITEM = object()
"""Marks the absence of an item, since an item may be None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node sees: the case, and by name the outputs of the nodes that ran before it on its path.

    `item` is its item of a fan-out (`NO_ITEM` outside one); `predecessors` names the nodes directly before it.
    """

    case: CaseInput
    outputs: Mapping[str, Json] = field(default_factory=dict)
    predecessors: tuple[str, ...] = ()
    item: Json = NO_ITEM

    @property
    def input(self) -> str:
        """The user's message."""
        return self.case.text

    @property
    def incoming(self) -> Json:
        """The node's input: its item, the output of its predecessor (of several, by name), or the user's message."""
        if self.item is not NO_ITEM:
            return self.item
        if not self.predecessors:
            return self.case.text
        if len(self.predecessors) == 1:
            return self.outputs[self.predecessors[0]]
        return {name: self.outputs[name] for name in self.predecessors}

    @property
    def values(self) -> dict[str, Json]:
        """What prompts and parameters refer to by name: `input`, `item`, and the outputs of nodes."""
        return {"input": self.input, "item": None if self.item is NO_ITEM else self.item, **self.outputs}


class GraphNode(Protocol):
    """A node of a graph agent."""

    @property
    def name(self) -> str:
        """Unique among its siblings."""

    @property
    def kind(self) -> NodeKind:
        """The kind of node, for the structure and the trace."""

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        """Its editable surfaces."""

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        """Execute once inside the open step `calls.step`, and return the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number or choice that may be tuned, with its bounds."""

    value: Json
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Json, ...] = ()

    @property
    def limits(self) -> Limits:
        if self.choices:
            return Limits(kind="choice", choices=self.choices)
        kind = "integer" if isinstance(self.value, int) and not isinstance(self.value, bool) else "number"
        return Limits(kind=kind, minimum=self.minimum, maximum=self.maximum)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. A live tool reads changing data and is never answered from the cache."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    is_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionNode:
    """A Python function. Its parameters are named after what they receive: a node, `input`, `item`, `node_context`.

    A single parameter of another name receives the node's input. Declared surfaces are read with `surface(name)`.
    With a `version`, the result is cached as long as version, arguments and declared surfaces stay the same; without
    one, the function always runs. Change the version when the code changes: changes of the code are not detected.
    """

    name: str
    function: Callable[..., Any]
    declared: Mapping[SurfaceType, Json | Parameter] = field(default_factory=dict)
    kind: NodeKind = "function"
    limits: Limits = NO_LIMITS
    version: str | None = None

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        return tuple(
            Surface(node_id=node_id, type=kind, value=value.value, limits=value.limits)
            if isinstance(value, Parameter)
            else Surface(node_id=node_id, type=kind, value=value, limits=self.limits)
            for kind, value in self.declared.items()
        )

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        arguments = _bind_arguments(self, context)
        calls.step.input = context.incoming
        if self.version is None:
            return await self._execute(arguments)
        read = {kind: calls.step.read_surface(f"{calls.step.node_id}#{kind}") for kind in self.declared}
        key = {"version": self.version, "surfaces": read, "arguments": to_plain_json(arguments)}
        return await calls.get_or_execute(f"node:{self.name}", key, lambda: self._execute(arguments))

    async def _execute(self, arguments: Mapping[str, Json]) -> Json:
        try:
            if inspect.iscoroutinefunction(self.function):
                return await self.function(**arguments)
            here = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(_threads(), lambda: here.run(self.function, **arguments))
            return await value if inspect.isawaitable(value) else value
        except SystemExit as error:  # asyncio would end the whole program
            raise AgentError(f"node {self.name!r} called sys.exit({error.code!r})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNode:
    """A model call: instruction, few-shot examples, tools. `prompt` may contain outputs: `{input}`, `{planner}`."""

    name: str
    instruction: str
    model: str = DEFAULT_MODEL
    prompt: str | None = None
    tools: tuple[Tool, ...] = ()
    examples: tuple[Message, ...] = ()
    options: Mapping[str, Json] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    models: tuple[str, ...] = ()
    is_live: bool = False
    kind: NodeKind = "llm"

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        examples = [{"role": message.role, "content": message.content} for message in self.examples]
        surfaces = [
            Surface(node_id=node_id, type="instruction", value=self.instruction, limits=self.limits),
            Surface(node_id=node_id, type="model", value=self.model, limits=Limits(choices=self.models)),
            Surface(node_id=node_id, type="examples", value=examples),
        ]
        surfaces += [
            Surface(node_id=node_id, type="tool", part=tool.name, value=tool.description) for tool in self.tools
        ]
        surfaces += [
            Surface(node_id=node_id, type="parameter", part=name, value=parameter.value, limits=parameter.limits)
            for name, parameter in self.parameters.items()
        ]
        return tuple(surfaces)

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        request = self._build_request(context, calls.step)
        calls.step.input = request.messages[-1].content
        for _ in range(MAX_TOOL_ROUNDS):
            reply = await calls.ask(request, is_live=self.is_live)
            if not reply.tool_requests:
                return reply.text
            request = await self._call_tools(request, reply, calls)
        raise AgentError(f"node {self.name!r} called tools {MAX_TOOL_ROUNDS} times in a row without an answer")

    def _build_request(self, context: NodeContext, step: OpenStep) -> ModelRequest:
        node_id = step.node_id
        instruction = step.read_surface(f"{node_id}#instruction")
        examples = step.read_surface(f"{node_id}#examples")
        options = dict(self.options) | {
            name: step.read_surface(f"{node_id}#parameter.{name}") for name in self.parameters
        }
        history = context.case.history if not context.predecessors else ()
        return ModelRequest(
            model=step.read_surface(f"{node_id}#model"),
            messages=(
                *((Message("system", instruction),) if instruction else ()),
                *(Message(each["role"], each["content"]) for each in examples),
                *history,
                Message("user", self._build_prompt(context)),
            ),
            tools=tuple(
                ToolSpec(tool.name, step.read_surface(f"{node_id}#tool.{tool.name}"), tool.parameters)
                for tool in self.tools
            ),
            options=options,
        )

    def _build_prompt(self, context: NodeContext) -> str:
        if self.prompt is not None:
            known = context.values
            return re.sub(r"\{([\w/~ -]+)\}", lambda match: to_text(known.get(match[1], match[0])), self.prompt)
        incoming = context.incoming
        if context.item is NO_ITEM and len(context.predecessors) > 1:
            return "\n\n".join(f"{name}: {to_text(value)}" for name, value in incoming.items())
        return to_text(incoming)

    async def _call_tools(self, request: ModelRequest, reply: ModelReply, calls: StepCalls) -> ModelRequest:
        by_name = {tool.name: tool for tool in self.tools}
        answers = []
        for wanted in reply.tool_requests:
            with calls.step.call_tool(wanted.name, wanted.arguments, call_id=wanted.id or None) as call:
                if wanted.name in by_name:
                    tool = by_name[wanted.name]
                    call.result = await calls.call_tool(
                        tool.name, tool.function, wanted.arguments, is_live=tool.is_live
                    )
                else:
                    call.result = {"error": f"there is no tool {wanted.name!r}; known are {', '.join(sorted(by_name))}"}
            answers.append(Message("tool", to_text(call.result), tool_request_id=wanted.id))
        turn = Message("assistant", reply.text, tool_requests=reply.tool_requests)
        return replace(request, messages=(*request.messages, turn, *answers))


def surface(name: str) -> Json:
    """The value of a surface of the running node: `surface("instruction")`, `surface("parameter.top_k")`."""
    return current_step().read_surface(f"{current_step().node_id}#{name}")


def check_parameters(node: FunctionNode, names: set[str]) -> None:
    """Raise SetupError if a function has a parameter that nothing provides."""
    known = names | _PROVIDED
    asked = [name for name in _parameters(node.function) if name not in known]
    if len(asked) > 1 or (asked and len(_parameters(node.function)) > 1):
        raise SetupError(
            f"node {node.name!r} takes {', '.join(asked)}, which are not nodes; name parameters after nodes, or "
            f"{', '.join(sorted(_PROVIDED))}"
        )


_PROVIDED = {"input", "item", "node_context"}


def _bind_arguments(node: FunctionNode, context: NodeContext) -> dict[str, Json]:
    parameters = _parameters(node.function)
    known = {"node_context": context, **context.values}
    arguments: dict[str, Json] = {}
    for name, parameter in parameters.items():
        if name in known:
            arguments[name] = known[name]
        elif parameter.default is inspect.Parameter.empty:
            if len(parameters) > 1:
                raise AgentError(f"node {node.name!r} takes {name!r}, but no node of that name ran before it")
            arguments[name] = context.incoming
    return arguments


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return _inspect(function) if isinstance(function, FunctionType) else inspect.signature(function).parameters


@lru_cache(maxsize=256)
def _inspect(function: FunctionType) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, which takes long enough to inspect to matter in every step."""
    return inspect.signature(function).parameters


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of synchronous nodes: asyncio's own pool is small and shared with DNS lookups."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="promptiter-node")
