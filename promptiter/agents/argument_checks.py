"""Checks of the arguments of nodes, edges and agents, when they are made: what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType

from promptiter.errors import SetupError
from promptiter.wording import shorten


def check_value(place: str, value: object, kind: type | UnionType, *, wanted: str) -> None:
    """Raise SetupError if a value is of another type."""
    if not isinstance(value, kind):
        raise SetupError(f"{place} is {shorten(value)}; give {wanted}")


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
