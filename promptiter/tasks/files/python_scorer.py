"""Runs a Python function as a scorer, as a command in the private copy: `python -m ... module:attr`.

The function gets the folder of the workspace and, if it takes a second argument, what the runner printed. It returns a
number, or a mapping as a scorer command prints it. What it prints itself goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from promptiter.errors import SetupError


def build_command(function: str) -> tuple[str, ...]:
    """The command that calls a function, from the folder of the workspace."""
    return (sys.executable, "-m", __name__, function)


def call_scorer(function: Callable[..., Any], folder: Path, output: str) -> dict[str, Any]:
    """Call a scorer, and return what it found as a mapping."""
    arguments = (folder, output)[: len(inspect.signature(function).parameters)]
    found = function(*arguments)
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, bool | int | float):
        return {"score": float(found)}
    raise SetupError(f"the scorer returned {found!r}; return a number, or a mapping with score and metrics")


def main(reference: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    output = sys.stdin.read()
    module, _, name = reference.partition(":")
    with contextlib.redirect_stdout(sys.stderr):
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            sys.exit(f"cannot import {reference!r}: {error}")
        try:
            found = call_scorer(function, Path.cwd(), output)
        except SetupError as error:
            sys.exit(str(error))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
