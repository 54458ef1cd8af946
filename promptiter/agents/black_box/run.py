"""One run of a black-box agent: it is called, and what happened becomes a trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.prompts import PromptSet
from promptiter.agents.black_box.templates import Placeholder
from promptiter.agents.failures import describe_error
from promptiter.errors import FATAL_ERRORS
from promptiter.profile import Profile
from traces import ExecutionTrace, Failure, Step, digest
from traces.model import Json, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxInput:
    """What an agent is called with: the case, and the values of its prompts by surface."""

    case: CaseInput
    prompts: Mapping[str, Json]
    deadline_s: float | None = None

    def look_up(self, placeholder: Placeholder) -> Json:
        """The value of a placeholder of a template."""
        match placeholder.kind:
            case "input":
                return self.case.text
            case "history":
                return [{"role": each.role, "content": each.content} for each in self.case.history]
            case "state":
                return dict(self.case.state)
            case _:
                return self.prompts[placeholder.surface_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxAnswer:
    """What an agent answered."""

    text: str
    data: Json = None


async def run_black_box(
    prompts: PromptSet,
    call: Callable[[BlackBoxInput], Awaitable[BlackBoxAnswer]],
    case: CaseInput,
    profile: Profile,
    context: RunContext,
) -> AgentRun:
    """Call an agent under a profile. Whatever it raises is the error of the run, unless it ends the evaluation."""
    values = prompts.get_values(profile)
    given = BlackBoxInput(case=case, prompts=values, deadline_s=context.deadline_s)
    started, start_ns = time.perf_counter(), time.time_ns()
    answer, error = BlackBoxAnswer(text=""), None
    limit = None if context.deadline_s is None else asyncio.timeout(context.deadline_s)
    try:
        if limit is None:
            answer = await call(given)
        else:
            async with limit:
                answer = await call(given)
    except FATAL_ERRORS:
        raise
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - a failing case is a result
        if limit is not None and limit.expired():
            error = Failure("TimeoutError", f"no answer in {context.deadline_s} s")
        else:
            error = describe_error(raised)
    step = Step(
        id=prompts.agent_name,
        node_id=prompts.agent_name,
        kind="agent",
        surface_reads={name: digest(value) for name, value in sorted(values.items())},
        input=Snapshot(case.text),
        output=Snapshot(answer.text, answer.data),
        error=error,
        start_ns=start_ns,
        end_ns=time.time_ns(),
    )
    trace = ExecutionTrace(
        id=f"{context.case_id or prompts.agent_name}~{context.repeat}~{context.turn}",
        steps=(step,),
        status="completed" if error is None else "failed",
        conversation_id=context.case_id or None,
    )
    return AgentRun(
        output=answer.text,
        data=answer.data,
        trace=trace,
        error=error,
        duration_s=time.perf_counter() - started,
    )
