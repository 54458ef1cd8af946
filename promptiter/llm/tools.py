"""Tools: functions of the user that nodes call, or that a model asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.concurrency import call_any
from traces.model import Json

ToolFunction: TypeAlias = Callable[..., Json | Awaitable[Json]]


async def execute_tool(function: ToolFunction, arguments: Json) -> Json:
    """Call the function of a tool, in a thread if it is synchronous."""
    keywords = arguments if isinstance(arguments, dict) else {"argument": arguments}
    return await call_any(function, **keywords)
