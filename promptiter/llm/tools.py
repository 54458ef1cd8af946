"""Tools: functions of the user that nodes call, or that a model asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from traces.model import Json

ToolFunction: TypeAlias = Callable[..., Json | Awaitable[Json]]


async def execute_tool(function: ToolFunction, arguments: Json) -> Json:
    """Call the function of a tool, in a thread if it is synchronous."""
    keywords = arguments if isinstance(arguments, dict) else {"argument": arguments}
    if inspect.iscoroutinefunction(function):
        return await function(**keywords)
    return await asyncio.to_thread(function, **keywords)
