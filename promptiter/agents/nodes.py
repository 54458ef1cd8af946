"""The nodes of a graph agent: functions, and model calls with tools.

A node declares its surfaces and runs once inside an open step. It reads their values through the recording, so that the
profile of the run applies; the node objects never change.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from promptiter.agents.argument_checks import check_function, check_items, check_named, check_value
from promptiter.agents.base import check_async, copy_value, to_text
from promptiter.agents.declarations import ENABLED, Declared, Parameter, Tool
from promptiter.agents.node_context import NO_ITEM, NodeContext, unwrap_only
from promptiter.agents.output_schema import (
    OutputSchema,
    build_validator,
    list_descriptions,
    load_schema,
    set_descriptions,
)
from promptiter.agents.parameters import bind_arguments, list_parameters, split_arguments
from promptiter.agents.step_calls import StepCalls
from promptiter.agents.surface_scope import open_scope
from promptiter.concurrency import call_in_thread, is_async
from promptiter.errors import AgentError, SetupError, nearest
from promptiter.llm.messages import Message, ModelReply, ModelRequest, ToolSpec
from promptiter.llm.options import check_options
from promptiter.registry import DEFAULT_MODEL
from promptiter.structure import NO_LIMITS, Limits, NodeKind, Surface, SurfaceType, surface_id
from traces import OpenStep
from traces.model import Json
from traces.snapshots import to_plain_json

MAX_TOOL_ROUNDS = 8

_FIELD = re.compile(r"\{([\w/~ -]+)\}")
"""A field of a prompt, such as `{planner}`."""


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
class FunctionNode:
    """A Python function. Its parameters are named after what they receive: a node, `input`, `item`, `node_context`.

    A single parameter of another name receives the node's input. Declared surfaces are read with `surface(name)`. A
    mapping declares several of a type: `{"instruction": {"plan": "...", "write": "..."}}` has the surfaces
    `instruction.plan` and `instruction.write`.
    With a `version`, the result is cached as long as version, arguments and declared surfaces stay the same; without
    one, the function always runs. Change the version when the code changes: changes of the code are not detected.
    """

    name: str
    function: Callable[..., Any]
    declared: Mapping[SurfaceType, Declared] = field(default_factory=dict)
    kind: NodeKind = "function"
    limits: Limits = NO_LIMITS
    version: str | None = None

    def __post_init__(self) -> None:
        check_function(f"node {self.name!r}: function", self.function, wanted="a function")
        check_value(f"node {self.name!r}: limits", self.limits, Limits, wanted="Limits, such as Limits(max_chars=900)")
        wanted = "surfaces by type, such as {'instruction': '...'}"
        check_named(f"node {self.name!r}: declared", self.declared, object, wanted=wanted)

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        return tuple(
            Surface(node_id=node_id, type=kind, part=part, value=value.value, limits=value.limits)
            if isinstance(value, Parameter)
            else Surface(node_id=node_id, type=kind, part=part, value=value, limits=self.limits)
            for kind, declared in self.declared.items()
            for part, value in (declared.items() if isinstance(declared, Mapping) else (("", declared),))
        )

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        has_context = "node_context" in list_parameters(self.function)
        tracked, outputs = context.track_reads() if has_context else (context, None)
        arguments = bind_arguments(
            self.name,
            self.function,
            known={"node_context": tracked, **context.values},
            names=context.node_names,
            incoming=context.incoming,
        )
        received = {name: value for name, value in arguments.items() if name != "node_context"}
        if not has_context:
            calls.step.input = unwrap_only(received)
            calls.step.read_from(context.find_sources(received))
        elif self.version is not None:  # it may not be executed
            calls.step.input = unwrap_only(received) if received else context.incoming
        arguments.update({name: copy_value(value) for name, value in received.items()})
        node_id = calls.step.node_id
        surface_ids = self._list_surface_ids(node_id)
        with open_scope(node_id, surface_ids):
            if self.version is not None:
                read = {each.removeprefix(f"{node_id}#"): calls.step.read_surface(each) for each in surface_ids}
                key = {"version": self.version, "surfaces": read, "arguments": to_plain_json(arguments)}
                return await calls.get_or_execute(f"node:{self.name}", key, lambda: self._execute(arguments))
            try:
                return await self._execute(arguments)
            finally:
                if outputs is not None:  # only now it is known what the function read
                    calls.step.input = context.describe_input(received, outputs.names_read)
                    received_input = () if context.predecessors and context.item is NO_ITEM else ("item",)
                    calls.step.read_from(context.find_sources((*received, *outputs.names_read, *received_input)))

    def _list_surface_ids(self, node_id: str) -> tuple[str, ...]:
        return tuple(
            surface_id(node_id, kind, part)
            for kind, declared in self.declared.items()
            for part in (declared if isinstance(declared, Mapping) else ("",))
        )

    async def _execute(self, arguments: Mapping[str, Json]) -> Json:
        positional, named = split_arguments(self.function, arguments)
        try:
            if is_async(self.function):
                return await self.function(*positional, **named)
            value = await call_in_thread(self.function, *positional, **named)
            check_async(self.function, value)
            return await value if inspect.isawaitable(value) else value
        except SystemExit as error:  # asyncio would end the whole program
            raise AgentError(f"node {self.name!r} called sys.exit({error.code!r})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNode:
    """A model call: instruction, few-shot examples, tools.

    `prompt` is the template of the user's message; it may contain outputs: `{input}`, `{planner}`. A node that has not
    run gives an empty text. With a `schema`, the output is JSON of that schema, and the descriptions of its fields are
    surfaces. `global_instruction` comes before the instruction, `skills` are documents after it, by name.
    """

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
    global_instruction: str | None = None
    skills: Mapping[str, str] = field(default_factory=dict)
    schema: OutputSchema | None = None
    is_prompt_editable: bool = False

    def __post_init__(self) -> None:
        place = f"node {self.name!r}:"
        check_value(f"{place} prompt", self.prompt, str | None, wanted="a text, such as '{input}'")
        check_value(f"{place} limits", self.limits, Limits, wanted="Limits, such as Limits(max_chars=900)")
        check_items(f"{place} tools", self.tools, Tool, wanted="Tool(name=..., description=..., function=...)")
        check_items(f"{place} examples", self.examples, Message, wanted="Message('user', '...') of promptiter.llm")
        check_items(f"{place} models", self.models, str, wanted="names of models")
        check_named(f"{place} options", self.options, object, wanted="options by name, such as {'temperature': 0.2}")
        check_options(self.options, place=f"{place} its options")
        check_named(f"{place} skills", self.skills, str, wanted="texts by name, such as {'refunds': '...'}")
        wanted = "parameters by name, such as {'temperature': Parameter(value=0.2)}; what is not tuned is in options"
        check_named(f"{place} parameters", self.parameters, Parameter, wanted=wanted)
        check_options({name: each.value for name, each in self.parameters.items()}, place=f"{place} its parameters")
        if self.is_prompt_editable and self.prompt is None:
            raise SetupError(f"node {self.name!r} has no prompt to edit; give one, such as prompt='{{input}}'")
        if self.schema is not None:
            object.__setattr__(self, "schema", load_schema(self.schema, node_name=self.name))

    def check_prompt(self, names: Iterable[str]) -> None:
        """Raise SetupError if the prompt contains what is probably a misspelled name of a node."""
        known = {*names, "input", "item"}
        for name in _FIELD.findall(self.prompt or ""):
            if name not in known and (hint := nearest(name, known)):
                raise SetupError(f"the prompt of node {self.name!r} has {{{name}}}, which is not a node{hint}")

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        examples = [{"role": message.role, "content": message.content} for message in self.examples]
        surfaces = [
            Surface(node_id=node_id, type="instruction", value=self.instruction, limits=self.limits),
            Surface(node_id=node_id, type="model", value=self.model, limits=Limits(choices=self.models)),
            Surface(node_id=node_id, type="examples", value=examples),
        ]
        surfaces += [
            Surface(
                node_id=node_id,
                type="tool",
                part=tool.name,
                value=tool.description,
                description=tool.docstring,
                arguments=tool.parameters,
            )
            for tool in self.tools
        ]
        declared = [*self.parameters.items(), *(each for tool in self.tools for each in tool.declared.items())]
        surfaces += [
            Surface(node_id=node_id, type="parameter", part=name, value=parameter.value, limits=parameter.limits)
            for name, parameter in declared
        ]
        if self.global_instruction is not None:
            surfaces.append(Surface(node_id=node_id, type="global_instruction", value=self.global_instruction))
        surfaces += [
            Surface(node_id=node_id, type="skill", part=name, value=text) for name, text in self.skills.items()
        ]
        if self.is_prompt_editable:
            limits = Limits(placeholders=tuple(dict.fromkeys(_FIELD.findall(self.prompt or ""))))
            surfaces.append(Surface(node_id=node_id, type="prompt", value=self.prompt, limits=limits))
        surfaces += [
            Surface(node_id=node_id, type="field", part=path, value=text)
            for path, text in list_descriptions(self._schema or {}).items()
        ]
        return tuple(surfaces)

    @property
    def _schema(self) -> Mapping[str, Json] | None:
        return cast("Mapping[str, Json] | None", self.schema)  # a mapping since __post_init__

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        request = self._build_request(context, calls.step)
        calls.step.input = request.messages[-1].content
        schema = request.schema
        if schema is None:
            return (await self._ask(request, calls)).text
        from promptiter.llm.structured import Attempt, ask_until_usable  # it needs pydantic, and plain text does not

        async def ask(attempt: Attempt) -> ModelReply:
            return await self._ask(replace(request, messages=attempt.messages), calls)

        return await ask_until_usable(build_validator(schema), request.messages, ask, name=repr(request.model))

    async def _ask(self, request: ModelRequest, calls: StepCalls) -> ModelReply:
        """Ask the model, and call the tools that it wants, until it answers."""
        for _ in range(MAX_TOOL_ROUNDS):
            reply = await calls.ask(request, is_live=self.is_live)
            if not reply.tool_requests:
                return reply
            request = await self._call_tools(request, reply, calls)
        raise AgentError(f"node {self.name!r} called tools {MAX_TOOL_ROUNDS} times in a row without an answer")

    def _build_request(self, context: NodeContext, step: OpenStep) -> ModelRequest:
        node_id = step.node_id
        system = self._build_system_messages(step)
        examples = step.read_surface(f"{node_id}#examples")
        options = dict(self.options) | {
            name: step.read_surface(f"{node_id}#parameter.{name}") for name in self.parameters
        }
        history = context.case.history if not context.predecessors else ()
        return ModelRequest(
            model=step.read_surface(f"{node_id}#model"),
            messages=(
                *system,
                *(Message(each["role"], each["content"]) for each in examples),
                *history,
                Message("user", self._build_prompt(context, step)),
            ),
            tools=tuple(
                ToolSpec(tool.name, step.read_surface(f"{node_id}#tool.{tool.name}"), tool.parameters)
                for tool in self.tools
                if not tool.is_optional or step.read_surface(f"{node_id}#parameter.{tool.name_part(ENABLED)}")
            ),
            options=options,
            schema=self._read_schema(step),
        )

    def _build_system_messages(self, step: OpenStep) -> tuple[Message, ...]:
        node_id = step.node_id
        texts = [] if self.global_instruction is None else [step.read_surface(f"{node_id}#global_instruction")]
        texts.append(step.read_surface(f"{node_id}#instruction"))
        texts += [f"# {name}\n{step.read_surface(f'{node_id}#skill.{name}')}" for name in self.skills]
        return (Message("system", text),) if (text := "\n\n".join(filter(None, texts))) else ()

    def _read_schema(self, step: OpenStep) -> Mapping[str, Json] | None:
        if self._schema is None:
            return None
        paths = list_descriptions(self._schema)
        return set_descriptions(
            self._schema, {path: step.read_surface(f"{step.node_id}#field.{path}") for path in paths}
        )

    def _build_prompt(self, context: NodeContext, step: OpenStep) -> str:
        if self.prompt is not None:
            template = step.read_surface(f"{step.node_id}#prompt") if self.is_prompt_editable else self.prompt
            known = {**dict.fromkeys(context.node_names, ""), **context.values}
            step.read_from(context.find_sources(context.outputs.keys() & {*_FIELD.findall(template)}))
            return _FIELD.sub(lambda match: to_text(known.get(match[1], match[0])), template)
        incoming = context.incoming
        if context.item is NO_ITEM and len(context.predecessors) > 1:
            return "\n\n".join(f"{name}: {to_text(value)}" for name, value in incoming.items())
        return to_text(incoming)

    async def _call_tools(self, request: ModelRequest, reply: ModelReply, calls: StepCalls) -> ModelRequest:
        offered = {tool.name for tool in request.tools}
        by_name = {tool.name: tool for tool in self.tools if tool.name in offered}
        answers = []
        for wanted in reply.tool_requests:
            with calls.step.call_tool(wanted.name, wanted.arguments, call_id=wanted.id or None) as call:
                if wanted.name in by_name:
                    tool = by_name[wanted.name]
                    arguments = _add_settings(wanted.arguments, tool, calls.step)
                    call.result = await calls.call_tool(tool.name, tool.function, arguments, is_live=tool.is_live)
                else:
                    call.result = {"error": f"there is no tool {wanted.name!r}; known are {', '.join(sorted(by_name))}"}
            answers.append(Message("tool", to_text(call.result), tool_request_id=wanted.id))
        turn = Message("assistant", reply.text, tool_requests=reply.tool_requests)
        return replace(request, messages=(*request.messages, turn, *answers))


def _add_settings(arguments: Json, tool: Tool, step: OpenStep) -> Json:
    """The arguments of a call with the settings of the tool, which a run reads only if it calls the tool."""
    if not tool.settings or not isinstance(arguments, Mapping):
        return arguments
    parts = {name: f"{step.node_id}#parameter.{tool.name_part(name)}" for name in tool.settings}
    return {**arguments, **{name: step.read_surface(part) for name, part in parts.items()}}
