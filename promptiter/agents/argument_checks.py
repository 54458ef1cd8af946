"""Checks of the arguments of nodes, edges and agents, when they are made: what is wrong, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, cast

from promptiter.concurrency import is_async
from promptiter.errors import SetupError
from promptiter.wording import shorten


def check_value(place: str, value: object, kind: type | UnionType, *, wanted: str) -> None:
    """Raise SetupError if a value is of another type."""
    if not isinstance(value, kind):
        raise SetupError(f"{place} is {shorten(value)}; give {wanted}")


def check_above_zero(place: str, value: object, kind: type | UnionType = int | float) -> None:
    """Raise SetupError if a value is not a number above 0; with `int`, a whole one."""
    if isinstance(value, bool) or not isinstance(value, kind) or not cast("float", value) > 0:
        wanted = "a whole number above 0" if kind is int else "above 0"
        raise SetupError(f"{place} must be {wanted}, got {value!r}")


def check_items(place: str, values: object, kind: type | UnionType, *, wanted: str) -> None:
    """Raise SetupError unless this is a list or tuple of values of that type."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SetupError(f"{place} is {shorten(values)}; give a list of {wanted}")
    for value in values:
        if not isinstance(value, kind):
            raise SetupError(f"{place} has {shorten(value)}; give a list of {wanted}")


def check_named(place: str, values: object, kind: type | UnionType, *, wanted: str) -> None:
    """Raise SetupError unless this is a mapping from names to values of that type."""
    if not isinstance(values, Mapping):
        raise SetupError(f"{place} is {shorten(values)}; give {wanted}")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, kind):
            raise SetupError(f"{place} has {shorten(name)}: {shorten(value)}; give {wanted}")


def check_function(place: str, value: object, *, wanted: str) -> None:
    """Raise SetupError if a value cannot be called."""
    if not callable(value):
        raise SetupError(f"{place} is {shorten(value)}; give {wanted}")


def check_context_function(place: str, value: Any, *, wanted: str) -> None:
    """Raise SetupError unless this is a synchronous function that can be called with a context."""
    check_function(place, value, wanted=wanted)
    if is_async(value):
        raise SetupError(f"{place} is async; give {wanted}, without awaiting anything")
    if not takes(value, "context"):
        raise SetupError(f"{place} takes {inspect.signature(value)}; give {wanted}")


def takes(function: Callable[..., Any], *arguments: str) -> bool:
    """Whether a function can be called with this many arguments. True if it is a builtin without a signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
