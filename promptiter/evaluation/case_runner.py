"""CaseRunner: run the agent on one case and score the run, in this process or in a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext, Substitute, run_agent
from promptiter.agents.failures import describe_error
from promptiter.concurrency import call_any, is_cancelled, run_together
from promptiter.errors import FATAL_ERRORS, BudgetEndedError, RunLockedError, StoreError, UnexpectedCallError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.metrics.metric import Metric, check_score, report_exception
from promptiter.evaluation.result import CaseRow, Measured
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import ScorerRun
from promptiter.evaluation.surface_reads import collect_reads
from promptiter.evaluation.user_simulator import UserSimulator, converse
from promptiter.llm.gateway import Gateway
from promptiter.llm.judgement import judge_repeat
from promptiter.llm.ledger import CallCounter, count_calls
from promptiter.profile import Profile, activate_profiles
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Failure, Step, ToolCall
from traces.model import Snapshot

GRACE_S = 1.0
"""An agent that ignores its deadline is stopped this much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseJob:
    """One case run: the case, the profile, the repeat, and outputs that are given in advance.

    `evaluation` is the place of its evaluation in a batch.
    """

    case: EvalCase
    profile: Profile
    repeat: int = 0
    evaluation: int = 0
    substitutes: tuple[Substitute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRow:
    """The row of a case run before its secrets are redacted, and the traces whose digests it will get."""

    row: CaseRow
    traces: tuple[ExecutionTrace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRunner:
    """What the case runs of an evaluation share. `context` has the seed and the deadline of a turn.

    `active_profiles` are for other agents that the agent calls; it has its own as an argument.
    """

    agent: Agent
    metrics: tuple[Metric, ...]
    context: RunContext
    user_simulator: UserSimulator | None = None
    active_profiles: tuple[Profile, ...] = ()

    async def run(self, job: CaseJob, gateway: Gateway) -> TracedRow:
        """Run a case and score it, with calls through this gateway. A failing case is a row with an error.

        Raises what ends the evaluation: a spent budget, an unexpected call to a scripted model, a wrong setup.
        """
        started = time.perf_counter()
        with gateway.active(), activate_profiles(self.active_profiles):
            with count_calls() as calls:
                run = await self._run_case(job)
            return await self._score(job, run, calls=calls, started=started)

    async def fail(self, job: CaseJob, error: Failure, gateway: Gateway) -> TracedRow:
        """The result of a case whose run was ended from outside, with the error that says why."""
        with gateway.active():
            return await self._score(job, AgentRun(error=error), calls=CallCounter(), started=time.perf_counter())

    async def _score(self, job: CaseJob, run: AgentRun, *, calls: CallCounter, started: float) -> TracedRow:
        scores = await score_run(self.metrics, job.case, run, repeat=job.repeat)
        traces = [turn.trace for turn in run.by_turn]
        row = CaseRow(
            case_id=job.case.id,
            eval_set_id=job.case.eval_set_id,
            repeat=job.repeat,
            scores=scores,
            output=run.output,
            error=run.error,
            usage=run.usage,
            reads=None if run.error else collect_reads(traces),  # a failed run may not have read everything
            figures=run.figures if isinstance(run, ScorerRun) else {},
            measured=Measured(
                duration_s=time.perf_counter() - started,
                origin="cache" if calls.cached and not calls.paid else "executed",
                paid_calls=calls.paid,
                cache_hits=calls.cached,
            ),
        )
        return TracedRow(row=row, traces=tuple(trace for trace in traces if trace is not None))

    async def _run_case(self, job: CaseJob) -> AgentRun:
        case = job.case
        if case.mode == "trace":
            return AgentRun.of_turns([_replay_turn(case, number, turn) for number, turn in enumerate(case.actual)])
        if not case.turns and (case.scenario is None or self.user_simulator is None):
            return AgentRun(error=Failure("EmptyCase", "the case has no turns"))
        context = RunContext(
            case_id=case.id,
            repeat=job.repeat,
            seed=self.context.seed,
            role=self.context.role,
            deadline_s=self.context.deadline_s,
            substitutes=job.substitutes,
        )
        return await converse(GuardedAgent(self.agent), case, job.profile, context, self.user_simulator)


def describe_timeout(deadline_s: float | None) -> Failure:
    """The error of a turn that took too long."""
    return Failure("TimeoutError", f"no answer in {deadline_s} s")


async def score_run(metrics: Iterable[Metric], case: EvalCase, run: AgentRun, *, repeat: int) -> tuple[Score, ...]:
    """Score a run that has happened, by all metrics at the same time."""
    with judge_repeat(repeat):
        return tuple(await run_together(_score_one(metric, case, run) for metric in metrics))


async def _score_one(metric: Metric, case: EvalCase, run: AgentRun) -> Score:
    try:
        return check_score(await call_any(metric, case, run), metric)
    except (BudgetEndedError, UnexpectedCallError, StoreError, RunLockedError):
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if is_cancelled(error):
            raise
        return report_exception(metric, error)


class GuardedAgent:
    """Wraps a user's agent so that errors become results and the deadline is enforced."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def describe(self) -> StructureSnapshot:
        return self.agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        limit = None if context.deadline_s is None else asyncio.timeout(context.deadline_s + GRACE_S)
        try:
            if limit is None:
                return await run_agent(self.agent, case, profile, context)
            async with limit:
                return await run_agent(self.agent, case, profile, context)
        except FATAL_ERRORS:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            if limit is not None and limit.expired():
                return AgentRun(error=describe_timeout(context.deadline_s))
            return AgentRun(error=describe_error(error))


def _replay_turn(case: EvalCase, number: int, turn: Turn) -> AgentRun:
    """One turn of a case in trace mode, built from its recording."""
    calls = tuple(
        ToolCall(name=call.name, id=call.id, arguments=call.arguments, result=call.result)
        for call in turn.expected_tool_calls or ()
    )
    output = turn.expected or ""
    step = Step(
        id="agent", node_id="agent", kind="agent", input=Snapshot(turn.user), output=Snapshot(output), tool_calls=calls
    )
    trace = ExecutionTrace(id=f"{case.id}~{number}", steps=(step,), conversation_id=case.id)
    return AgentRun(output=output, trace=trace)
