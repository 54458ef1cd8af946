"""Failures: what a user's code raised, with the file and line in that code."""

from __future__ import annotations

import asyncio
import sysconfig
import traceback
from pathlib import Path

import traces
from promptiter.errors import PromptiterError
from promptiter.outages import is_outage
from promptiter.wording import path_from_here
from traces import Failure

CANCELLED = "the agent awaited a task that was cancelled"
_OURS = (Path(__file__).parents[1], Path(traces.__file__).parent)
_PYTHON = (Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("platstdlib")))
_PACKAGES = {"site-packages", "dist-packages"}


def describe_error(error: BaseException) -> Failure:
    """An exception as the error of a case run. Errors of promptiter say themselves what to do and have no line."""
    where = "" if isinstance(error, PromptiterError) else find_line(error)
    message = CANCELLED if isinstance(error, asyncio.CancelledError) and not error.args else str(error)
    return Failure(type(error).__name__, message, where=where, is_outage=is_outage(error))


def find_line(error: BaseException) -> str:
    """`agent.py:12`: where the user's own code raised, or called the code that did; empty if it took no part."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_code.co_filename
        if _is_users(name):
            return f"{name if name.startswith('<') else path_from_here(Path(name))}:{line}"
    return ""


def _is_users(name: str) -> bool:
    """Whether a file is neither of promptiter nor of Python nor of an installed package; `<stdin>` is the user's."""
    path = Path(name)
    is_installed = any(path.is_relative_to(folder) for folder in (*_OURS, *_PYTHON)) or _PACKAGES & set(path.parts)
    return not is_installed and not name.startswith("<frozen ")
