"""The parameters of a function node: which of them receive the output of which node, and which the node's input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from promptiter.errors import AgentError, SetupError
from traces.model import Json

PROVIDED = frozenset(("input", "item", "node_context"))
"""Names that parameters may have besides those of nodes."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def find_input_parameter(node_name: str, function: Callable[..., Any], names: Collection[str]) -> str | None:
    """The parameter that receives the node's input: the only one that must be given and is not named after a node.

    If all have other names and defaults, it is the first. Raises SetupError if a parameter cannot be provided.
    """
    parameters = list_parameters(function)
    others = [each for each in parameters.values() if each.name not in PROVIDED and each.name not in names]
    required = [each.name for each in others if each.default is inspect.Parameter.empty]
    has_named = len(others) < len(parameters)
    if len(required) > 1 or (required and has_named):
        raise SetupError(
            f"node {node_name!r} takes {', '.join(required)}, which are not nodes; name parameters after nodes, or "
            f"{', '.join(sorted(PROVIDED))}"
        )
    if required or not others or has_named:
        return required[0] if required else None
    return others[0].name


def bind_arguments(
    node_name: str, function: Callable[..., Any], *, known: Mapping[str, Json], names: Collection[str], incoming: Json
) -> dict[str, Json]:
    """The arguments of a call. `known` has the values by name, `names` are the nodes, `incoming` is its input."""
    find = _find_input_once if isinstance(function, FunctionType) else find_input_parameter
    input_parameter = find(node_name, function, tuple(names))
    arguments: dict[str, Json] = {}
    for name, parameter in list_parameters(function).items():
        if name in known:
            arguments[name] = known[name]
        elif name == input_parameter:
            arguments[name] = incoming
        elif parameter.default is inspect.Parameter.empty:
            raise AgentError(f"node {node_name!r} takes {name!r}, but no node of that name ran before it")
    return arguments


def split_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Json]
) -> tuple[tuple[Json, ...], dict[str, Json]]:
    """The arguments to pass by position, as far as possible, and the others to pass by name.

    A wrapper may have other names for its parameters, and those of many builtins cannot be used.
    """
    positional: list[str] = []
    for name, parameter in list_parameters(function).items():
        if name not in arguments or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            break
        positional.append(name)
    named = {name: value for name, value in arguments.items() if name not in positional}
    return tuple(arguments[name] for name in positional), named


def list_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name. A wrapper of `*args`, and a builtin without a signature, have one."""
    return _inspect_once(function) if isinstance(function, FunctionType) else _inspect(function)


def _inspect(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return {"value": inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)}
    named = {name: each for name, each in parameters.items() if each.kind not in _VARIADIC}
    return named or {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.VAR_POSITIONAL}


_inspect_once = lru_cache(maxsize=256)(_inspect)
"""A function is called in every step, and inspecting it takes long enough to matter."""

_find_input_once = lru_cache(maxsize=256)(find_input_parameter)
