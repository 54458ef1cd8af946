"""One run of a black-box agent: it is called in a session of the endpoint, and its model calls become a trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.call_trace import BlackBoxRun, build_steps
from promptiter.agents.black_box.templates import Placeholder
from promptiter.agents.failures import describe_error
from promptiter.concurrency import is_cancelled
from promptiter.endpoint.sessions import EndpointSession, open_session
from promptiter.errors import FATAL_ERRORS, ModelNotFoundError
from promptiter.llm.redaction import MASK
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Failure, Usage
from traces.model import Json, TraceStatus, sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxInput:
    """What an agent is called with: the case, the values of its prompts by surface, and the session for its calls."""

    case: CaseInput
    prompts: Mapping[str, Json]
    session: EndpointSession

    def look_up(self, placeholder: Placeholder) -> Json:
        """The value of a placeholder of a template."""
        match placeholder.kind:
            case "input":
                return self.case.text
            case "history":
                return [{"role": each.role, "content": each.content} for each in self.case.history]
            case "state":
                return dict(self.case.state)
            case "key":
                return self.session.key
            case "base_url":
                return self.session.base_url
            case _:
                return self.prompts[placeholder.surface_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackBoxAnswer:
    """What an agent answered. An agent may also report an error, its trace, and its usage if its calls are not seen."""

    text: str
    data: Json = None
    error: Failure | None = None
    trace: ExecutionTrace | None = None
    usage: Usage | None = None


Call = Callable[[BlackBoxInput], Awaitable[BlackBoxAnswer]]


async def run_black_box(
    snapshot: StructureSnapshot, call: Call, case: CaseInput, profile: Profile, context: RunContext
) -> AgentRun:
    """Call an agent under a profile. Whatever it raises is the error of the run, unless it ends the evaluation."""
    values = list_values(snapshot, profile)
    started, start_ns = time.perf_counter(), time.time_ns()
    async with open_session(context) as session:
        given = BlackBoxInput(case=case, prompts=values, session=session)
        answer, error = await _call(call, given, context.deadline_s)
    error = _explain(error, session)
    trace_id = f"{context.case_id or 'run'}~{context.repeat}~{profile.digest[:12]}" + f"~{context.turn}" * bool(
        context.turn
    )
    conversation_id = context.case_id or None
    if answer.trace is not None:
        trace = replace(answer.trace, id=trace_id, conversation_id=conversation_id)
    else:
        steps = build_steps(
            BlackBoxRun(
                snapshot=snapshot,
                values=values,
                case=case,
                answer=answer.text,
                data=answer.data,
                error=error,
                calls=[each for each in session.calls if each.error is None or not session.was_answered_later(each)],
                start_ns=start_ns,
                end_ns=time.time_ns(),
            )
        )
        status: TraceStatus = "completed" if error is None else "failed"
        trace = ExecutionTrace(id=trace_id, steps=steps, status=status, conversation_id=conversation_id)
    return AgentRun(
        output=answer.text,
        data=answer.data,
        trace=trace,
        usage=_find_usage(answer, session),
        error=error,
        duration_s=time.perf_counter() - started,
    )


def list_values(snapshot: StructureSnapshot, profile: Profile) -> dict[str, Json]:
    """The values of all surfaces under a profile, by surface."""
    profile.check(snapshot)
    return {each: profile.value(each, snapshot) for each in snapshot.surface_ids}


def _find_usage(answer: BlackBoxAnswer, session: EndpointSession) -> Usage:
    """The usage of the calls that were seen. If there are none, it is what the agent reports."""
    if session.calls:
        return sum_usage(each.reply.usage for each in session.calls if each.reply is not None)
    return answer.usage or (sum_usage(()) if answer.trace is None else answer.trace.usage)


def _explain(error: Failure | None, session: EndpointSession) -> Failure | None:
    """The error of a run, with that of its last failed model call, which many agents do not show.

    If a service failed to answer a call, or the model does not exist, the run is an error even if the agent reports
    success: its answer says nothing about the prompts.
    """
    failed = [call.error for call in session.calls if call.error is not None]
    if error is not None:
        message = error.message.replace(session.key, MASK)
        if failed and failed[-1].message not in message:
            message = f"{message}; its last failed model call: {failed[-1].type}: {failed[-1].message}"
        return replace(error, message=message, is_outage=error.is_outage or bool(session.outages))
    is_without_model = len(failed) == len(session.calls) and all(each.type == _NOT_FOUND for each in failed)
    lost = session.outages or (failed if is_without_model else [])
    if not lost:
        return None
    message = f"the agent answered without the answer of a model call, which failed: {lost[0].message}"
    return replace(lost[0], message=message)


_NOT_FOUND = ModelNotFoundError.__name__


async def _call(call: Call, given: BlackBoxInput, deadline_s: float | None) -> tuple[BlackBoxAnswer, Failure | None]:
    nothing = BlackBoxAnswer(text="")
    limit = None if deadline_s is None else asyncio.timeout(deadline_s)
    try:
        if limit is None:
            answer = await call(given)
        else:
            async with limit:
                answer = await call(given)
    except FATAL_ERRORS:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if is_cancelled(error):
            raise
        if limit is not None and limit.expired():
            return nothing, Failure("TimeoutError", f"no answer in {deadline_s} s")
        return nothing, describe_error(error)
    return answer, answer.error
