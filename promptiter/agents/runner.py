"""Runners: what answers messages beside the agent that is optimized, such as teachers and judges.

A runner is an agent, which runs with its own baseline; a function from message to answer; or an object whose method
`run` is such a function, for example the client of a deployed agent. The answers of the latter two are kept in the
cache like those of a tool, so that a resumed run does not ask again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, cast

from promptiter.agents.argument_checks import takes
from promptiter.agents.base import Agent, CaseInput, RunContext, check_agent, is_agent, run_agent, to_text
from promptiter.concurrency import call_any
from promptiter.errors import FATAL_ERRORS, PromptiterError, RunnerError, SetupError, ToolFailedError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite
from promptiter.outages import is_outage, is_outage_name
from promptiter.profile import Profile
from promptiter.references import call_factory, find_factory, find_reference, load_reference
from promptiter.wording import shorten
from traces.model import Json

AnswerFunction: TypeAlias = Callable[[str], Json | Awaitable[Json]]
"""A function, synchronous or not, from a message to the answer: a text, or data that is read as JSON."""


class MessageRunner(Protocol):
    """An object that answers messages. Called many times concurrently; a synchronous `run` is run in a thread."""

    def run(self, message: str, /) -> Json | Awaitable[Json]:
        """The answer to a message: a text, or data that is read as JSON."""


Runner: TypeAlias = Agent | MessageRunner | AnswerFunction


def is_runner(item: object) -> bool:
    """Whether an object is an agent, a function, or has a method `run`."""
    return not isinstance(item, type) and (callable(item) or callable(getattr(item, "run", None)))


def load_runner(reference: str, *, what: str = "runner") -> Runner:
    """Import the agent or function that `module:attr` names. A function without parameters makes one of both."""
    found: Any = load_reference(reference, what=what)
    if not is_agent(found) and callable(found) and not takes(found, "message") and takes(found):
        found = call_factory(found, what=f"the {what} {reference!r}")
    return check_runner(found, what=f"{what} {reference!r}")


def check_runner(value: Any, *, what: str) -> Runner:
    """The value if it is a runner. Raises SetupError otherwise."""
    if not is_runner(value):
        raise SetupError(f"the {what} is {shorten(value)}; give an agent, or a function from message to answer")
    function: Any = value if callable(value) else value.run
    if is_agent(value):
        check_agent(value)
    elif not takes(function, "message"):
        raise SetupError(f"the {what} takes {inspect.signature(function)}; give a function of one message: (message)")
    return cast("Runner", value)


def name_runner(runner: Runner) -> str:
    """The name of a runner in messages and records: that of its module and attribute, of the function or the class."""
    known = find_factory(runner) or find_reference(runner)
    return known or str(getattr(runner, "__name__", "") or type(runner).__name__)


async def ask_runner(runner: Runner, message: CaseInput, context: RunContext, gateway: Gateway) -> str:
    """The answer of a runner. Raises RunnerError if it fails, and what ends a run: a spent budget, a wrong setup."""
    with gateway.find_active().active():
        if is_agent(runner):
            return await _run_agent(runner, message, context)
        function: Any = runner if callable(runner) else runner.run
        return await _call_function(function, name_runner(runner), message, context, gateway)


async def _run_agent(agent: Agent, message: CaseInput, context: RunContext) -> str:
    try:
        run = await run_agent(agent, message, Profile.baseline(agent.describe()), context)
    except FATAL_ERRORS:
        raise
    except Exception as error:
        raise RunnerError(f"{type(error).__name__}: {error}", is_outage=is_outage(error)) from error
    if run.error is not None:
        raise RunnerError(str(run.error), is_outage=run.error.is_outage or is_outage_name(run.error.type))
    return run.output


async def _call_function(
    function: AnswerFunction, name: str, message: CaseInput, context: RunContext, gateway: Gateway
) -> str:
    async def answer(message: str) -> Json:
        """Failures are raised as RunnerError, which the cache does not keep: a resumed run asks again."""
        try:
            found = await call_any(function, message)
        except PromptiterError:
            raise
        except Exception as error:
            problem = gateway.redactor.redact_text(f"{type(error).__name__}: {error}")
            raise RunnerError(problem, is_outage=is_outage(error)) from error
        if found is None:
            raise RunnerError(f"{name} returned None; return the answer as text")
        return found

    earlier = [f"{each.role}: {each.content}" for each in message.history]
    text = "\n\n".join([*earlier, f"user: {message.text}"]) if earlier else message.text
    site = CallSite(role=context.role, case_id=context.case_id, repeat=context.repeat)
    try:
        found = await gateway.call_tool(name, {"message": text}, answer, site, node_id=context.role)
    except ToolFailedError as error:
        raise RunnerError(str(error)) from error
    return to_text(found)
