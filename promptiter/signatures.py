"""Signatures: whether a function takes the arguments that it will be called with, and what its docstring says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def find_misfit(function: Callable[..., Any], *arguments: object, **options: object) -> str | None:
    """What is wrong if a function is called with these arguments; None if it fits, or has no readable signature.

    A wrapper is judged by its own signature: it may add arguments to those of the function that it wraps.
    """
    try:
        inspect.signature(function, follow_wrapped=False).bind(*arguments, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin without a signature
        return None
    return None


def read_docstring(function: Callable[..., Any]) -> str:
    """The docstring of a function, also of one with some arguments filled in; empty if it has none."""
    while isinstance(function, partial):
        function = function.func
    return inspect.getdoc(function) or ""
