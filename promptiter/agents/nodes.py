"""The nodes of a graph agent: functions, model calls with tools, and agents inside agents.

A node says which surfaces it has and runs once inside an open step. All it reads of itself, it reads through the
recording, so that the profile of the run decides; the node objects never change.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Protocol

import orjson

from promptiter.agents.base import CaseInput, RunContext
from promptiter.errors import AgentError, SetupError, ToolFailedError
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest, ToolSpec
from promptiter.registry import DEFAULT_MODEL
from promptiter.structure import NO_LIMITS, Limits, NodeKind, Surface, SurfaceType
from traces import OpenStep, Usage, current_step
from traces.model import Json, sum_usage
from traces.snapshots import to_plain_json

MAX_TOOL_ROUNDS = 8
REQUESTS = "promptiter.requests"
"""The attribute of a step with the digests of what it asked: a request that changed shows, whatever was answered."""

NO_ITEM = object()
"""Stands where there is no item: None may be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a node sees: the case, and the outputs of the nodes that ran before it on its way, by name.

    `item` is its share of a fan-out (`NO_ITEM` outside one); `followed` names the nodes it follows directly.
    """

    case: CaseInput
    outputs: Mapping[str, Json] = field(default_factory=dict)
    followed: tuple[str, ...] = ()
    item: Json = NO_ITEM

    @property
    def input(self) -> str:
        """The user's words."""
        return self.case.text

    @property
    def incoming(self) -> Json:
        """What the node was handed: its item, the one output it follows, several by name, or the user's words."""
        if self.item is not NO_ITEM:
            return self.item
        if not self.followed:
            return self.case.text
        if len(self.followed) == 1:
            return self.outputs[self.followed[0]]
        return {name: self.outputs[name] for name in self.followed}


class GraphNode(Protocol):
    """A node of a graph agent."""

    @property
    def name(self) -> str:
        """Unique among its siblings."""

    @property
    def kind(self) -> NodeKind:
        """What it is, for the structure and the trace."""

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        """What may be edited about it."""

    async def run(self, view: View, calls: Calls) -> Json:
        """Execute once inside an open step, `calls.step`; the value is its output."""


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
    """A function that a model may call. A live one (it looks at the world) is never answered from the cache."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    is_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionNode:
    """A Python function. Its parameters are named after what they get: a node, `input`, `item` or `view`.

    A single parameter of another name gets what the node was handed. Declared surfaces are read with `surface(name)`.
    With a `version`, an expensive node is answered by the cache while version, arguments and declared surfaces are the
    same; without one it always runs. Change the version when the code changes: nobody looks at the code.
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

    async def run(self, view: View, calls: Calls) -> Json:
        arguments = _arguments(self, view)
        calls.step.input = view.incoming
        if self.version is None:
            return await self._execute(arguments)
        read = {kind: calls.step.read_surface(f"{calls.step.node_id}#{kind}") for kind in self.declared}
        key = {"version": self.version, "surfaces": read, "arguments": to_plain_json(arguments)}
        return await calls.known_or(f"node:{self.name}", key, lambda: self._execute(arguments))

    async def _execute(self, arguments: Mapping[str, Json]) -> Json:
        try:
            if inspect.iscoroutinefunction(self.function):
                return await self.function(**arguments)
            here = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(_threads(), lambda: here.run(self.function, **arguments))
            return await value if inspect.isawaitable(value) else value
        except SystemExit as left:  # asyncio would end the whole program
            raise AgentError(f"node {self.name!r} left by sys.exit({left.code!r})") from left


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNode:
    """A model call: instruction, few-shot examples, tools. `prompt` places node outputs: `{input}`, `{planner}`."""

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
        found = [
            Surface(node_id=node_id, type="instruction", value=self.instruction, limits=self.limits),
            Surface(node_id=node_id, type="model", value=self.model, limits=Limits(choices=self.models)),
            Surface(node_id=node_id, type="examples", value=examples),
        ]
        found += [Surface(node_id=node_id, type="tool", part=tool.name, value=tool.description) for tool in self.tools]
        found += [
            Surface(node_id=node_id, type="parameter", part=name, value=parameter.value, limits=parameter.limits)
            for name, parameter in self.parameters.items()
        ]
        return tuple(found)

    async def run(self, view: View, calls: Calls) -> Json:
        request = self._request(view, calls.step)
        calls.step.input = request.messages[-1].content
        for _ in range(MAX_TOOL_ROUNDS):
            reply = await calls.ask(request, is_live=self.is_live)
            if not reply.tool_requests:
                return reply.text
            request = await self._with_tool_results(request, reply, calls)
        raise AgentError(f"node {self.name!r} called tools {MAX_TOOL_ROUNDS} times in a row without an answer")

    def _request(self, view: View, step: OpenStep) -> ModelRequest:
        node_id = step.node_id
        instruction = step.read_surface(f"{node_id}#instruction")
        examples = step.read_surface(f"{node_id}#examples")
        options = dict(self.options) | {
            name: step.read_surface(f"{node_id}#parameter.{name}") for name in self.parameters
        }
        history = view.case.history if not view.followed else ()
        return ModelRequest(
            model=step.read_surface(f"{node_id}#model"),
            messages=(
                *((Message("system", instruction),) if instruction else ()),
                *(Message(each["role"], each["content"]) for each in examples),
                *history,
                Message("user", self._prompt(view)),
            ),
            tools=tuple(
                ToolSpec(tool.name, step.read_surface(f"{node_id}#tool.{tool.name}"), tool.parameters)
                for tool in self.tools
            ),
            options=options,
        )

    def _prompt(self, view: View) -> str:
        if self.prompt is not None:
            known = {"input": view.input, "item": None if view.item is NO_ITEM else view.item, **view.outputs}
            return re.sub(r"\{([\w/~ -]+)\}", lambda found: as_text(known.get(found[1], found[0])), self.prompt)
        incoming = view.incoming
        if view.item is NO_ITEM and len(view.followed) > 1:
            return "\n\n".join(f"{name}: {as_text(value)}" for name, value in incoming.items())
        return as_text(incoming)

    async def _with_tool_results(self, request: ModelRequest, reply: ModelReply, calls: Calls) -> ModelRequest:
        by_name = {tool.name: tool for tool in self.tools}
        answers = []
        for wish in reply.tool_requests:
            with calls.step.call_tool(wish.name, wish.arguments, call_id=wish.id or None) as call:
                if wish.name in by_name:
                    call.result = await calls.call_tool(by_name[wish.name], wish.arguments)
                else:
                    call.result = {"error": f"there is no tool {wish.name!r}; known are {', '.join(sorted(by_name))}"}
            answers.append(Message("tool", as_text(call.result), tool_request_id=wish.id))
        asked = Message("assistant", reply.text, tool_requests=reply.tool_requests)
        return ModelRequest(
            model=request.model,
            messages=(*request.messages, asked, *answers),
            tools=request.tools,
            options=request.options,
        )


class Calls:
    """The calls of one step: numbers those that are equal, so that each has a key of its own whatever the timing."""

    def __init__(self, step: OpenStep, context: RunContext) -> None:
        self.step = step
        self.context = context
        self.loop = asyncio.get_running_loop()
        self._seen: dict[str, int] = {}

    async def ask(self, request: ModelRequest, *, is_live: bool = False) -> ModelReply:
        """Ask a model through the gateway; its usage is the step's."""
        asked = request.digest
        site = self._site(asked)
        self.step.attributes["gen_ai.request.model"] = request.model
        self.step.attributes.setdefault(REQUESTS, []).append(asked[:16])
        reply = await current_gateway().ask(request, site, node_id=self.step.node_id, is_live=is_live)
        self.step.usage = sum_usage((self.step.usage, reply.usage))
        return reply

    async def call_tool(self, tool: Tool, arguments: Json) -> Json:
        """Call a tool through the gateway; what it raises is told to the model as its result."""
        site = self._site(f"{tool.name}{as_text(arguments)}")
        try:
            return await current_gateway().call_tool(
                tool.name, arguments, tool.function, site, node_id=self.step.node_id, is_live=tool.is_live
            )
        except ToolFailedError as error:
            return {"error": str(error)}

    async def known_or(self, name: str, key: Json, execute: Callable[[], Awaitable[Json]]) -> Json:
        """What was kept under a key, or what `execute` gives; its error is raised as a ToolFailedError."""

        async def run(**_: Json) -> Json:
            value = await execute()
            return {"value": to_plain_json(value), "usage": asdict(self.step.usage) if self.step.usage else None}

        site = self._site(f"{name}{as_text(key)}")
        kept = await current_gateway().call_tool(name, key, run, site, node_id=self.step.node_id)
        if kept["usage"]:
            self.step.usage = Usage(**kept["usage"])
        return kept["value"]

    def _site(self, what: str) -> CallSite:
        number = self._seen[what] = self._seen.get(what, -1) + 1
        return CallSite(
            role=self.context.role,
            case_id=self.context.case_id,
            repeat=self.context.repeat,
            step_id=f"{self.step.id} in turn {self.context.turn}" if self.context.turn else self.step.id,
            number=number,
        )


running: contextvars.ContextVar[Calls] = contextvars.ContextVar("promptiter_running")
"""The calls of the step that is running, for functions that ask models themselves."""


def as_text(value: Json) -> str:
    """A value as a prompt shows it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()


def copied(value: Json) -> Json:
    """A value that a run may change without changing anybody else's."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def surface(name: str) -> Json:
    """The value of a surface of the node that is running: `surface("instruction")`, `surface("parameter.top_k")`."""
    return current_step().read_surface(f"{current_step().node_id}#{name}")


def check_parameters(node: FunctionNode, names: set[str]) -> None:
    """Raise where a function asks for something that will never be there."""
    known = names | _GIVEN
    asked = [name for name in _parameters(node.function) if name not in known]
    if len(asked) > 1 or (asked and len(_parameters(node.function)) > 1):
        raise SetupError(
            f"node {node.name!r} takes {', '.join(asked)}, which are no nodes; name parameters after nodes, or "
            f"{', '.join(sorted(_GIVEN))}"
        )


_GIVEN = {"input", "item", "view"}


def _arguments(node: FunctionNode, view: View) -> dict[str, Json]:
    parameters = _parameters(node.function)
    known: dict[str, Any] = {
        "input": view.input,
        "item": None if view.item is NO_ITEM else view.item,
        "view": view,
        **view.outputs,
    }
    arguments: dict[str, Json] = {}
    for name, parameter in parameters.items():
        if name in known:
            arguments[name] = known[name]
        elif parameter.default is inspect.Parameter.empty:
            if len(parameters) > 1:
                raise AgentError(f"node {node.name!r} takes {name!r}, but no node of that name ran before it")
            arguments[name] = view.incoming
    return arguments


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


@cache
def _threads() -> ThreadPoolExecutor:
    """Synchronous nodes run here, not in asyncio's own pool, which is small and shared with name look-ups."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="promptiter-node")
