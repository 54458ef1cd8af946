"""The surfaces that spans show: system prompts, tool definitions, models and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from traces.model import Json, digest
from traces.otel.recover.concepts import MODEL, as_data, first, load_json
from traces.otel.recover.forest import SpanNode
from traces.otel.recover.messages import Conversation
from traces.otel.recover.parts import unflatten

_PARAMETERS = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
_PARAMETER_SETS = ("llm.invocation_parameters", "langfuse.observation.model.parameters")
_PARAMETER_KEYS = {f"gen_ai.request.{name}": name for name in _PARAMETERS}
_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parameters_json_schema")
_FLAT_KEYS = frozenset(
    ("llm.tools.0.tool.json_schema", "llm.request.functions.0.name", "gen_ai.tool.description", "tool.description")
)
"""These say that a definition of tools is spread over several attributes."""
_SURFACE_KEYS = _FLAT_KEYS.union(
    MODEL,
    _PARAMETER_KEYS,
    _PARAMETER_SETS,
    ("gen_ai.tool.definitions", "model_request_parameters", "gcp.vertex.agent.llm_request", "llm.tools"),
)
_MAX_KEYS = 100
_MAX_REMEMBERED = 20_000
"""Spans with more attributes, or more characters in those with surfaces, are not remembered: memory is bounded."""


class SeenSurface(NamedTuple):
    """A surface with the value that a step read: its id, the digest of its value, and its type and value as JSON.

    A surface of a tool also has `arguments`, its JSON schema.
    """

    id: str
    digest: str
    fields: Json


def list_surfaces(
    node_id: str, calls: Iterable[SpanNode], around: Iterable[SpanNode], system: str
) -> list[SeenSurface]:
    """The surfaces of a node that the spans of one of its steps show."""
    found: dict[str, SeenSurface] = {}
    if system:
        found["instruction"] = SeenSurface(f"{node_id}#instruction", *_describe("instruction", system))
    last: Sequence[Shown] = ()
    for node in (*calls, *around):
        shown = _read_surfaces(node.span.attributes)
        if shown is last:  # as remembered
            continue
        last = shown
        for part, value_digest, fields in shown:
            if part not in found:
                found[part] = SeenSurface(f"{node_id}#{part}", value_digest, fields)
    return list(found.values())


Shown: TypeAlias = tuple[str, str, Json]
"""A surface before it is known whose it is: the end of its id, then as in SeenSurface."""


def _read_surfaces(attributes: Mapping[str, Json]) -> Sequence[Shown]:
    """The surfaces that one span shows. They are the same in many spans, so those read last are remembered."""
    keys = _choose_keys(tuple(attributes)) if len(attributes) < _MAX_KEYS else tuple(_SURFACE_KEYS & attributes.keys())
    if not keys:
        return ()
    if _FLAT_KEYS.isdisjoint(keys):
        values = [attributes[key] for key in keys]
        if sum([len(value) for value in values if isinstance(value, str)]) < _MAX_REMEMBERED:
            try:
                return _remember_surfaces(keys, *values)
            except TypeError:  # a list or an object, which has no hash
                pass
    return list(_list_shown(attributes))


@lru_cache(maxsize=256)
def _choose_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if key in _SURFACE_KEYS)


@lru_cache(maxsize=256, typed=True)
def _remember_surfaces(keys: tuple[str, ...], *values: Json) -> Sequence[Shown]:
    return list(_list_shown(dict(zip(keys, values, strict=True))))


def _list_shown(attributes: Mapping[str, Json]) -> Iterator[Shown]:
    model = first(attributes, MODEL)
    if model is not None and str(model).lower() != "unknown":
        yield "model", *_describe("model", str(model))
    for name, value in _list_parameters(attributes):
        yield f"parameter.{name}", *_describe("parameter", value)
    for name, description, arguments in _list_tools(attributes):
        value_digest, fields = _describe("tool", description)
        if arguments:
            fields = {**fields, "arguments": as_data(arguments)}
        yield f"tool.{name}", value_digest, fields


@lru_cache(maxsize=256, typed=True)
def _describe(kind: str, value: str | float) -> tuple[str, Json]:
    """The digest of a value, and a surface with it as JSON. Prompts are the same in many steps and runs."""
    return digest(value), {"type": kind, "value": as_data(value)}


def find_system(conversations: Iterable[Conversation], around: Iterable[Conversation]) -> str:
    """The system prompt of the model calls, or else of the spans around them."""
    return next((each.system for each in (*conversations, *around) if each.system), "")


def read_personas(nodes: Iterable[SpanNode]) -> dict[str, str]:
    """The prompts that CrewAI makes of role, backstory and goal of its agents, by role, which spans of a run show."""
    found: dict[str, str] = {}
    for node in nodes:
        attributes = node.span.attributes
        if _PERSONA_KEYS.isdisjoint(attributes):
            continue
        crew = load_json(first(attributes, _CREWS))
        agents = [each for each in crew if isinstance(each, dict)] if isinstance(crew, list) else []
        for each in (*agents, {key: attributes.get(f"crewai.agent.{key}") for key in _PERSONA}):
            role, backstory, goal = (each.get(key) for key in _PERSONA)
            if role and backstory and goal:
                found[str(role).strip()] = f"You are {role}. {backstory}\nYour personal goal is: {goal}"
    return found


_PERSONA = ("role", "backstory", "goal")
_CREWS = ("crew_agents", "crewai.crew.agents")
_PERSONA_KEYS = frozenset((*_CREWS, "crewai.agent.role"))


def _list_parameters(attributes: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    for key, name in _PARAMETER_KEYS.items():
        if key in attributes and _is_number(value := attributes[key]):
            yield name, value
    parameters = load_json(first(attributes, _PARAMETER_SETS))
    if isinstance(parameters, dict):
        for name in _PARAMETERS:
            if _is_number(value := parameters.get(name)):
                yield name, value


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _list_gemini_tools(attributes: Mapping[str, Json]) -> list[Json]:
    request = load_json(attributes.get("gcp.vertex.agent.llm_request"))
    config = request.get("config") if isinstance(request, dict) else None
    tools = config.get("tools") if isinstance(config, dict) else None
    declared = (each.get("function_declarations") for each in tools or () if isinstance(each, dict))
    return [function for functions in declared if isinstance(functions, list) for function in functions]


def _list_tools(attributes: Mapping[str, Json]) -> Iterator[tuple[str, str, Mapping[str, Json] | None]]:
    listed = load_json(attributes.get("gen_ai.tool.definitions"))
    if not isinstance(listed, list):
        requested = load_json(attributes.get("model_request_parameters"))
        tools = requested.get("function_tools") if isinstance(requested, dict) else None
        listed = tools if isinstance(tools, list) else _list_gemini_tools(attributes)
    if "llm.tools.0.tool.json_schema" in attributes:
        listed = [load_json(each.get("tool", {}).get("json_schema")) for each in unflatten(attributes, "llm.tools.")]
    elif "llm.request.functions.0.name" in attributes:
        listed = unflatten(attributes, "llm.request.functions.")
    elif isinstance(tools := attributes.get("llm.tools"), list):
        listed = [load_json(each.get("tool.json_schema", each)) for each in tools if isinstance(each, dict)]
    for each in listed:
        if isinstance(each, dict):
            definition: Mapping[str, Any] = inner if isinstance(inner := each.get("function"), dict) else each
            name = definition.get("name")
            if isinstance(name, str):
                arguments = first(definition, _SCHEMAS)
                if isinstance(arguments, dict) and isinstance(arguments.get("json"), dict):
                    arguments = arguments["json"]
                arguments = load_json(arguments)
                yield name, str(definition.get("description") or ""), arguments if isinstance(arguments, dict) else None
    name = attributes.get("gen_ai.tool.name", attributes.get("tool.name"))
    description = attributes.get("gen_ai.tool.description", attributes.get("tool.description"))
    if isinstance(name, str) and isinstance(description, str):
        schema = load_json(attributes.get("gen_ai.tool.json_schema", attributes.get("tool.parameters")))
        yield name, description, schema if isinstance(schema, dict) else None
