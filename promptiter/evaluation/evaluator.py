"""Evaluator: run an agent on the cases of an eval set under a profile, and score every run.

A failing case is a row with an error. Only a spent budget, cancellation, or an unexpected call to a scripted model ends
an evaluation. The rows do not depend on the concurrency.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext, Substitute
from promptiter.concurrency import run_together
from promptiter.errors import BudgetEndedError, EvalSetError, SetupError, UnexpectedCallError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.executor import CaseJob, Executor, LocalExecutor
from promptiter.evaluation.metrics.metric import Metric, leave_unscored
from promptiter.evaluation.result import CaseRow, Evaluation, Measured
from promptiter.evaluation.score import Score
from promptiter.evaluation.surface_reads import collect_reads
from promptiter.evaluation.trace_store import TraceStore
from promptiter.evaluation.user_simulator import UserSimulator, converse
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import count_calls
from promptiter.llm.redaction import Redactor
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Failure, Step, ToolCall
from traces.model import Snapshot
from traces.snapshots import escape_surrogates

GRACE_S = 1.0
"""An agent that ignores its deadline is stopped this much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """How cases are run. `repeats` is how often each case is run; `case_timeout_s` limits one turn of one run."""

    repeats: int = 1
    concurrency: int = 16
    case_timeout_s: float | None = None
    max_errored_fraction: float = 0.25
    seed: int = 0
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.concurrency < 1:
            raise SetupError(f"repeats and concurrency must be at least 1, got {self.repeats} and {self.concurrency}")


@dataclass(frozen=True, slots=True)
class CaseRuns:
    """Runs of cases under a profile, as case ids and repeats."""

    eval_set: EvalSet
    profile: Profile
    runs: Sequence[tuple[str, int]]


class Evaluator:
    """Runs cases and scores them. One evaluator serves many evaluations, also several at once in one event loop."""

    def __init__(
        self,
        metrics: Sequence[Metric] = (),
        *,
        gateway: Gateway | None = None,
        options: EvaluationOptions | None = None,
        executor: Executor | None = None,
        trace_store: TraceStore | None = None,
        user_simulator: UserSimulator | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        names = [metric.name for metric in metrics]
        if len(set(names)) < len(names):
            raise SetupError(f"an evaluation needs metrics with unique names, got {', '.join(names)}")
        self.metrics = tuple(metrics)
        self.gateway = gateway or Gateway()
        self.options = options or EvaluationOptions()
        self.executor: Executor = executor or LocalExecutor(concurrency=self.options.concurrency)
        self.trace_store = trace_store or TraceStore()
        self.user_simulator = user_simulator
        self.weights = dict(weights or {})

    def with_options(self, options: EvaluationOptions) -> Evaluator:
        """The same evaluator with other options. A custom executor keeps its own concurrency."""
        other = copy.copy(self)
        other.options = options
        if isinstance(self.executor, LocalExecutor):
            other.executor = LocalExecutor(concurrency=options.concurrency)
        return other

    def with_metrics(self, metrics: Iterable[Metric]) -> Evaluator:
        """The same evaluator with other metrics."""
        other = copy.copy(self)
        other.metrics = tuple(metrics)
        return other

    def with_judge(self, model: str) -> Evaluator:
        """The same evaluator with this model as the judge."""
        from promptiter.evaluation.metrics.judge import JudgeMetric

        return self.with_metrics(
            each.with_model(model) if isinstance(each, JudgeMetric) else each for each in self.metrics
        )

    async def evaluate(
        self,
        agent: Agent,
        eval_set: EvalSet,
        profile: Profile | None = None,
        *,
        on_row: Callable[[CaseRow], None] | None = None,
    ) -> Evaluation:
        """Run every case and repeat, and collect the rows. `on_row` is called with each row as it finishes."""
        profile = profile or Profile.baseline(agent.describe())
        rows = []
        async for row in self.stream_rows(agent, eval_set, profile):
            rows.append(row)
            if on_row is not None:
                on_row(row)
        return self.build_evaluation(rows, eval_set, profile)

    def build_evaluation(self, rows: Iterable[CaseRow], eval_set: EvalSet, profile: Profile) -> Evaluation:
        """Build the evaluation of these rows."""
        return Evaluation(
            eval_set_id=eval_set.id,
            profile_digest=profile.digest,
            rows=tuple(rows),
            thresholds={metric.name: metric.threshold for metric in self.metrics},
            max_errored_fraction=self.options.max_errored_fraction,
            weights=self.weights,
        )

    async def stream_rows(
        self,
        agent: Agent,
        eval_set: EvalSet,
        profile: Profile,
        *,
        runs: Sequence[tuple[str, int]] | None = None,
    ) -> AsyncGenerator[CaseRow, None]:
        """Yield the rows as they finish, in any order, without keeping them.

        `runs` selects case ids and repeats; the default is every repeat of every case.
        """
        wanted = CaseRuns(
            eval_set, profile, list_case_runs(eval_set, range(self.options.repeats)) if runs is None else runs
        )
        async for _, row in self.stream_batch(agent, [wanted]):
            yield row

    async def stream_batch(self, agent: Agent, batch: Sequence[CaseRuns]) -> AsyncGenerator[tuple[int, CaseRow], None]:
        """Yield the rows of several evaluations as they finish, each with the place of its evaluation in the batch.

        All run under one concurrency limit.
        """
        if not self.metrics:
            raise SetupError("an evaluation needs metrics; give the evaluator at least one")
        structure = agent.describe()
        cases: dict[tuple[int, str], EvalCase] = {}
        for number, each in enumerate(batch):
            each.profile.check(structure)
            known = len(cases)
            cases |= {(number, case.id): case for case in each.eval_set.cases}
            if len(cases) - known < len(each.eval_set.cases):
                raise EvalSetError(f"eval set {each.eval_set.id!r} has duplicate case ids")
        self._check_scenarios(cases.values())
        jobs = (
            CaseJob(evaluation=number, case_id=case_id, profile=each.profile, repeat=repeat)
            for number, each in enumerate(batch)
            for case_id, repeat in each.runs
        )
        async for job, row in self._execute(agent, lambda job: cases[job.evaluation, job.case_id], jobs):
            source = cases[job.evaluation, job.case_id].eval_set_id or batch[job.evaluation].eval_set.id
            yield job.evaluation, replace(row, eval_set_id=source)

    async def replay(
        self, agent: Agent, case: EvalCase, profile: Profile, *, repeat: int, substitutes: tuple[Substitute, ...]
    ) -> CaseRow:
        """Run one case again with some outputs substituted, and score it. Unchanged calls come from the cache."""
        job = CaseJob(case_id=case.id, profile=profile, repeat=repeat, substitutes=substitutes)
        [(_, row)] = [finished async for finished in self._execute(agent, lambda _: case, [job])]
        return row

    def _execute(
        self, agent: Agent, find_case: Callable[[CaseJob], EvalCase], jobs: Iterable[CaseJob]
    ) -> AsyncIterator[tuple[CaseJob, CaseRow]]:
        async def work(job: CaseJob) -> CaseRow:
            with self.gateway.active():
                return await self._run_and_score(agent, find_case(job), job)

        self.gateway.bind_to_running_loop()
        return self.executor.run(jobs, work)

    def _check_scenarios(self, cases: Iterable[EvalCase]) -> None:
        scenarios = [case.id for case in cases if case.scenario is not None]
        if scenarios and self.user_simulator is None:
            raise SetupError(
                f"case {scenarios[0]!r} is a scenario and needs a simulated user; set user_simulator_config"
            )

    async def _run_and_score(self, agent: Agent, case: EvalCase, job: CaseJob) -> CaseRow:
        started = time.perf_counter()
        with count_calls() as calls:
            run = await self._run_case(agent, case, job)
        scores = await run_together(self._score_run(metric, case, run) for metric in self.metrics)
        redactor = self.gateway.redactor
        return CaseRow(
            case_id=case.id,
            repeat=job.repeat,
            scores=tuple(_redact_score(score, redactor) for score in scores),
            output=redactor.redact_known(escape_surrogates(run.output)),
            error=Failure(run.error.type, redactor.redact_text(run.error.message)) if run.error else None,
            usage=run.usage,
            trace_digests=tuple(
                self.trace_store.put(turn.trace, redactor=redactor) for turn in run.by_turn if turn.trace is not None
            ),
            reads=None
            if run.error
            else collect_reads(turn.trace for turn in run.by_turn),  # a failed run may not have read everything
            measured=Measured(
                duration_s=time.perf_counter() - started,
                origin="cache" if calls.cached and not calls.paid else "executed",
                paid_calls=calls.paid,
                cache_hits=calls.cached,
            ),
        )

    async def _run_case(self, agent: Agent, case: EvalCase, job: CaseJob) -> AgentRun:
        if case.mode == "trace":
            return AgentRun.of_turns([_replay_turn(case, number, turn) for number, turn in enumerate(case.actual)])
        if not case.turns and (case.scenario is None or self.user_simulator is None):
            return AgentRun(error=Failure("EmptyCase", "the case has no turns"))
        context = RunContext(
            run_id=self.options.run_id,
            case_id=case.id,
            repeat=job.repeat,
            seed=self.options.seed,
            deadline_s=self.options.case_timeout_s,
            substitutes=job.substitutes,
        )
        return await converse(_GuardedAgent(agent), case, job.profile, context, self.user_simulator)

    async def _score_run(self, metric: Metric, case: EvalCase, run: AgentRun) -> Score:
        try:
            return await metric(case, run)
        except (BudgetEndedError, UnexpectedCallError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a metric is user code; a failure is unscored
            return leave_unscored(metric, f"{type(error).__name__}: {error}")


def list_case_runs(eval_set: EvalSet, repeats: Iterable[int]) -> list[tuple[str, int]]:
    """The case runs of these repeats: all cases of the first, then of the next."""
    return [(case.id, repeat) for repeat in repeats for case in eval_set.cases]


class _GuardedAgent:
    """Wraps a user's agent so that errors become results and the deadline is enforced."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def describe(self) -> StructureSnapshot:
        return self.agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        limit = asyncio.timeout(None if context.deadline_s is None else context.deadline_s + GRACE_S)
        try:
            async with limit:
                run = await self.agent.run(case, profile, context)
        except (BudgetEndedError, UnexpectedCallError, SetupError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failing case is a result
            if limit.expired():
                return AgentRun(error=Failure("TimeoutError", f"no answer in {context.deadline_s} s"))
            return AgentRun(error=Failure(type(error).__name__, str(error)))
        if not isinstance(run, AgentRun):
            return AgentRun(error=Failure("TypeError", f"the agent must return an AgentRun, not {type(run).__name__}"))
        return run


def _redact_score(score: Score, redactor: Redactor) -> Score:
    known = redactor.redact_known_json
    findings = (replace(each, expected=known(each.expected), actual=known(each.actual)) for each in score.findings)
    return replace(
        score,
        reason=redactor.redact_known(score.reason),
        error=None if score.error is None else redactor.redact_text(score.error),
        findings=tuple(findings),
    )


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
