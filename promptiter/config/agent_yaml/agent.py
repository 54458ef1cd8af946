"""Builds the agent of an agent.yaml: one node with its model, instructions and tools."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from promptiter.agents.archive_search import ArchiveSearch
from promptiter.agents.base import Agent
from promptiter.agents.declarations import ENABLED, Parameter, Tool
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.config.agent_yaml.axes import resolve_axes
from promptiter.config.agent_yaml.rebuild import Rebuild, with_rebuilds
from promptiter.config.agent_yaml.sections import AgentFile, Axes, ModelBlock, ToolBlock
from promptiter.errors import RequestError, SetupError
from promptiter.profile import Profile
from promptiter.references import is_reference, load_reference
from promptiter.registry import MODELS
from traces import digest
from traces.model import Json

OWN_MODEL = "python"
"""The provider of a model of your own, whose name is `module:attr`."""

DEFAULT_OPTIONS: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0}
"""What most services use if a request does not say it: the baseline of an axis without a value."""

_PROVIDERS = {"azure_openai": "azure", "google": "gemini", "vertex": "vertex_ai"}
"""Providers that litellm calls something else."""


def build_yaml_agent(given: AgentFile, axes: Axes, *, instructions: str, folder: Path) -> GraphAgent:
    """Build the agent of a file with these instructions. Other paths are relative to `folder`. SetupError if it fails.

    What the axes name gets a value, if the file has none: the default of a function, or of most services.
    """
    tuned = [axis.path.removeprefix("model.") for axis in axes.numeric if axis.path.startswith("model.")]
    set_options = {name: value for name in DEFAULT_OPTIONS if (value := getattr(given.model, name)) is not None}
    defaults = {name: value for name, value in DEFAULT_OPTIONS.items() if name in tuned}
    choices = next((axis.choices for axis in axes.numeric if axis.path == "model.name"), [])
    name = name_model(given.model)
    node = ModelNode(
        name=given.name,
        instruction=instructions,
        model=name,
        models=tuple(dict.fromkeys((name, *map(str, choices)))) if choices else (),
        tools=_build_tools(given.tools, axes, folder=folder),
        options={} if given.model.max_tokens is None else {"max_tokens": given.model.max_tokens},
        parameters={key: Parameter(value=value) for key, value in {**defaults, **set_options}.items()},
    )
    agent = GraphAgent(name=given.name, nodes=(node,))
    off = {f"{given.name}#parameter.{each.name}.{ENABLED}": False for each in given.tools if not each.enabled}
    known = agent.describe()
    off = {name: value for name, value in off.items() if name in known.surface_ids}
    return agent.with_profile(Profile.of(known, off)) if off else agent


def limit_agent(agent: Agent, axes: Axes) -> Agent:
    """The agent with the limits of these axes, except for those that are wrong."""
    _, limits, _ = resolve_axes((*axes.numeric, *axes.textual), agent.describe())
    changed = {name: each for name, each in limits.items() if agent.describe().surface(name).limits != each}
    if changed and not isinstance(agent, GraphAgent):
        raise SetupError(
            f"the agent declares its own limits, and those of {min(changed)!r} differ from the axis; declare them there"
        )
    return agent.with_limits(limits) if isinstance(agent, GraphAgent) else agent


def name_model(model: ModelBlock) -> str:
    """The name of a model here: `anthropic/claude-sonnet-4-6`; registered models and your own have no provider."""
    if model.name in MODELS or model.provider in ("", OWN_MODEL):
        return model.name
    provider = _PROVIDERS.get(model.provider, model.provider)
    return model.name if model.name.startswith(f"{provider}/") else f"{provider}/{model.name}"


def _build_tools(given: Iterable[ToolBlock], axes: Axes, *, folder: Path) -> tuple[Tool, ...]:
    built, problems = [], []
    for each in given:
        if each.enabled or each.optional:
            try:
                built.append(_build_tool(each, axes, folder=folder))
            except SetupError as error:
                problems.append(f"tools[name={each.name}]: {error}")
    if problems:
        raise RequestError(problems)
    return tuple(built)


def _build_tool(given: ToolBlock, axes: Axes, *, folder: Path) -> Tool:
    function = _load_function(given, folder)
    taken = _list_arguments(function)
    settings = {**_find_defaults(given, axes, taken), **{k: v for k, v in given.others.items() if k in taken}}
    choices = {name: axis.choices for axis in axes.numeric if (name := find_setting(axis.path, given.name)) is not None}
    tuned = {name: Parameter(value=value) for name, value in settings.items() if isinstance(value, int | float)}
    tuned |= {
        name: Parameter(value=value, choices=tuple(dict.fromkeys((value, *choices[name]))))
        for name, value in settings.items()
        if isinstance(value, str) and name in choices
    }
    fixed = {name: value for name, value in settings.items() if name not in tuned}
    rebuilds = {
        setting: Rebuild(axis.rebuild, folder)
        for axis in axes.numeric
        if axis.rebuild is not None and (setting := find_setting(axis.path, given.name)) is not None
    }
    if fixed:
        function = partial(function, **fixed)
    return Tool(
        name=given.name,
        description=given.description,
        function=with_rebuilds(function, rebuilds) if rebuilds else function,
        parameters=given.parameters or _describe_arguments(taken, hidden=settings),
        settings=tuned,
        is_optional=given.optional,
    )


def _load_function(given: ToolBlock, folder: Path) -> Callable[..., Any]:
    if given.function is None:
        if given.source is None:
            raise SetupError(
                f"is of type {given.type!r} and has no function; name one as module:attr, or its file and name, or "
                "documents as source"
            )
        return ArchiveSearch.read(folder / given.source)
    if given.file is not None:
        function = getattr(_load_file(folder / given.file), given.function, None)
    elif is_reference(given.function):
        function = load_reference(given.function)
    else:
        raise SetupError(f"the function {given.function!r} has no file; give its file, or write it as module:attr")
    if not callable(function):
        raise SetupError(f"{given.function!r} is not a function" + (f" of {given.file}" if given.file else ""))
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> object:
    """The module of a Python file, imported once."""
    name = f"{path.stem}_{digest(str(path.absolute()))[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SetupError(f"the file {str(path)!r} does not exist; paths are relative to agent.yaml")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SetupError(f"{str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _list_arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds}


def _find_defaults(given: ToolBlock, axes: Axes, taken: Mapping[str, inspect.Parameter]) -> dict[str, Json]:
    """The defaults of the function for settings that are searched and have no value in the file."""
    names = (find_setting(axis.path, given.name) for axis in axes.numeric)
    found = ((name, taken[name].default) for name in names if name is not None and name in taken)
    return {name: value for name, value in found if isinstance(value, int | float | str)}


def find_setting(path: str, tool: str) -> str | None:
    """The setting of a tool that a path, or the id of a surface, names; None if it names something else."""
    wanted = path.partition("#")[2] or path
    for prefix in (f"tools[name={tool}].", f"tools[{tool}].", f"parameter.{tool}."):
        if wanted.startswith(prefix):
            return wanted.removeprefix(prefix)
    return None


def _describe_arguments(taken: Mapping[str, inspect.Parameter], *, hidden: Iterable[str]) -> dict[str, Json]:
    """The JSON schema of the arguments that the model gives."""
    shown = {name: each for name, each in taken.items() if name not in {*hidden}}
    shown = {name: each for name, each in shown.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY}
    return {
        "type": "object",
        "properties": {name: _describe_type(each.annotation) for name, each in shown.items()},
        "required": [name for name, each in shown.items() if each.default is inspect.Parameter.empty],
    }


def _describe_type(annotation: Any) -> dict[str, Json]:
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    if annotation is inspect.Parameter.empty:
        return {"type": "string"}
    if isinstance(annotation, str):  # of a module with postponed annotations
        annotation = get_type_hints(type("Holder", (), {"__annotations__": {"it": annotation}})).get("it", str)
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticSchemaGenerationError:
        return {"type": "string"}
