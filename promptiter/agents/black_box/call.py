"""CallAgent: an agent that is a Python function from the user's message to an answer.

    async def call_agent(query, prompts):
        return await my_bot(system=prompts["reply"], message=query)

    agent = CallAgent(call_agent, prompts={"reply": Path("prompts/reply.md")})

The function may be synchronous, a partial or an object with `__call__`. Besides the message it gets what its parameters
are named after: `prompts` (values by name), `history` (messages), `state`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from promptiter.agents.base import AgentRun, CaseInput, RunContext, check_async, copy_value, to_answer, to_text
from promptiter.agents.black_box.agent import BlackBoxAgent
from promptiter.agents.black_box.output import read_answer
from promptiter.agents.black_box.run import BlackBoxAnswer, BlackBoxInput, run_black_box
from promptiter.agents.in_place.source_use import call_with_sources
from promptiter.concurrency import is_async
from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.wording import shorten
from traces.model import Json

EXTRAS = ("prompts", "history", "state")
"""The parameters of a function besides the message."""


@dataclass(frozen=True)
class CallAgent(BlackBoxAgent):
    """Calls a function for each case. What it raises is the error of the case."""

    call_agent: Callable[..., Any]

    def __post_init__(self) -> None:
        place = f"agent {self.name!r}:"
        function: Any = self.call_agent
        if not callable(function) or inspect.isclass(function):
            raise SetupError(f"{place} call_agent is {shorten(function)}; give a function from message to answer")
        super().__post_init__()
        if "prompts" not in self._extras and not self.is_in_place:
            raise SetupError(
                f"{place} {shorten(self.call_agent)} has no parameter `prompts`, so it would not get new values; add "
                "one, or use the agent in place"
            )

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Call the function once. Its failure is returned in the AgentRun, not raised."""
        return await run_black_box(self._prompts.snapshot, self._call, case, profile, context or RunContext())

    async def _call(self, given: BlackBoxInput) -> BlackBoxAnswer:
        values = {name: copy_value(given.prompts[self._prompts.ids[name]]) for name in self.prompts}
        known: dict[str, Any] = {"prompts": values, "history": given.case.history, "state": dict(given.case.state)}
        extras = {name: known[name] for name in self._extras}
        if is_async(self.call_agent):
            found = await self.call_agent(given.case.text, **extras)
        else:
            found = await call_with_sources(self.call_agent, given.case.text, **extras)
            check_async(self.call_agent, found)
            found = await found if inspect.isawaitable(found) else found
        answer: Json = to_answer(found, name=self.name)
        if self.normalize is None:
            return BlackBoxAnswer(text=to_text(answer), data=None if isinstance(answer, str) else answer)
        text, data = await read_answer(to_text(answer), self.normalize)
        return BlackBoxAnswer(text=text, data=data)

    @cached_property
    def _extras(self) -> tuple[str, ...]:
        try:
            parameters = inspect.signature(self.call_agent).parameters
        except ValueError:  # a builtin without a signature
            return ()
        return tuple(name for name in EXTRAS if name in parameters)
