"""Tools: functions of the user that nodes call, or that a model asks for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.concurrency import call_any
from promptiter.errors import PromptiterError
from promptiter.llm.cache.answers import Answers, Call, PaidAnswer
from promptiter.llm.cache.keys import FREE, ToolAnswer
from promptiter.llm.ledger import Spending
from promptiter.llm.redaction import Redactor
from traces.model import Json

ToolFunction: TypeAlias = Callable[..., Json | Awaitable[Json]]


async def execute_tool(function: ToolFunction, arguments: Json) -> Json:
    """Call the function of a tool, in a thread if it is synchronous."""
    keywords = arguments if isinstance(arguments, dict) else {"argument": arguments}
    return await call_any(function, **keywords)


async def call_tool(
    function: ToolFunction, arguments: Json, call: Call, *, answers: Answers, redactor: Redactor
) -> PaidAnswer:
    """Call a tool, and return its value or its error. Tools are free."""
    started = time.perf_counter()
    async with answers.cache.asking(call.key, lost=call.entry(Spending.of_lost_call())):
        answer = await _execute_safely(function, arguments, redactor)
    return answer, Spending.of_call(FREE, seconds=time.perf_counter() - started)


async def _execute_safely(function: ToolFunction, arguments: Json, redactor: Redactor) -> ToolAnswer:
    try:
        return ToolAnswer(value=await execute_tool(function, arguments), error=None)
    except PromptiterError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent gets to see any error
        return ToolAnswer(value=None, error=redactor.redact_text(f"{type(error).__name__}: {error}"))
