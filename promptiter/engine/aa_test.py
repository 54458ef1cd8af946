"""The A/A test: measures run-to-run noise with several repeats of each validation case under the initial profile.

    report = await measure_noise(engine, request)
    print(report.noise.std, report.split.judge_share, report.smallest_gain(), report.headroom.sometimes)

Each run is judged several times, to separate the judge's noise from the agent's. A stronger model and the teacher, if
there are any, run each case once. It takes the cases, teacher, judge, seed and budget of a run request. Answers in a
cache that was given to the gateway are free. If a budget or a person stops it early, the report covers the repeats that
were finished for all cases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, check_agent_health, is_agent
from promptiter.engine.engine import Engine
from promptiter.engine.evaluations import RERUNS
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import BudgetEndedError, RequestError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, Evaluator, OnRow, list_case_runs
from promptiter.evaluation.judgements import JUDGE_REPEATS, build_judgements, judge_repeatedly, split_judgements
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.stats.final_test import fit_to_cases, plan_final_test
from promptiter.evaluation.stats.headroom import ContenderResult
from promptiter.evaluation.stats.noise import REPEATS, NoiseReport
from promptiter.evaluation.teacher import TeacherAgent, has_generated_references, write_expected_answers
from promptiter.llm.ledger import NOTHING, LedgerSnapshot
from promptiter.policies.final_test import FinalTest
from promptiter.profile import Profile


async def measure_noise(
    engine: Engine,
    request: RunRequest | CheckedRequest,
    *,
    repeats: int = REPEATS,
    judge_repeats: int = JUDGE_REPEATS,
    stronger: str | None = None,
    on_row: OnRow | None = None,
    interrupt: Interrupt | None = None,
) -> NoiseReport:
    """Run each validation case `repeats` times under the initial profile of a request, and report noise and headroom.

    Each run is judged `judge_repeats` times. With `stronger`, the name of a model, the agent also runs once with that
    model in place of its own. `on_row` is called with each case run of the profile as it finishes. An `interrupt`
    stops after the case runs in progress.
    """
    if repeats < 2:
        raise SetupError(f"repeats is {repeats!r}, but noise is measured between repeats of a case; give 2 or more")
    checked = engine.check(request)
    if stronger is not None and (problems := checked.evaluator.gateway.find_setup_problems([stronger])):
        raise RequestError([f"stronger: {problem}" for problem in problems])
    measurement = _NoiseMeasurement(
        engine.agent, checked, on_row or (lambda _: None), judge_repeats=judge_repeats, stronger=stronger
    )
    await check_agent_health(engine.agent)
    async with engine.using_agent():
        with measurement.evaluator.gateway.active():
            return await measurement.report(repeats, interrupt or Interrupt())


class _NoiseMeasurement:
    """One eval set under one profile."""

    def __init__(
        self, agent: Agent, checked: CheckedRequest, on_row: OnRow, *, judge_repeats: int, stronger: str | None
    ) -> None:
        request = checked.request
        self.agent = checked.choose_agent(agent)
        self.evaluator = checked.evaluator.for_run()
        self.eval_set = checked.validation
        self.profile = request.initial_profile or Profile.baseline(checked.snapshot)
        self.objective = request.objective
        blocks = plan_final_test(request.alpha, repeats=(request.final_test or FinalTest()).repeats)
        self.blocks = fit_to_cases(blocks, len(self.eval_set.cases))
        self.teacher = request.teacher
        self.judge_repeats = judge_repeats
        self.stronger = stronger
        self.on_row = on_row
        self.rows: list[list[CaseRow]] = []  # the judgements of each run
        self.reached: list[ContenderResult] = []
        self.at_start = self.at_end = LedgerSnapshot()

    async def report(self, repeats: int, interrupt: Interrupt) -> NoiseReport:
        stop_reason = await self._run_all(repeats, interrupt)
        spent = self.at_end - self.at_start
        judgements = build_judgements(self.evaluator, self.rows, self.eval_set, self.profile)
        if judgements[0].is_reliable:
            cases = len(self.eval_set.cases)
            judgements = tuple(replace(each, rows=_select_complete_repeats(each.rows, cases)) for each in judgements)
        return NoiseReport(
            evaluation=judgements[0],
            rejudged=judgements[1:],
            objective=self.objective,
            stop_reason=stop_reason,
            spent=spent.of_models,
            judge_spent=spent.by_role().get("judge", NOTHING),
            paid_runs=sum(judged[0].origin == "executed" for judged in self.rows),
            blocks=self.blocks,
            reached=tuple(self.reached),
        )

    async def _run_all(self, repeats: int, interrupt: Interrupt) -> str | None:
        """Run everything, and return the reason if it ended early."""
        try:
            await self._write_references()
            self.at_start = self._spent
            try:
                await self._run(repeats, interrupt)
            finally:
                self.at_end = self._spent
            await self._run_others(interrupt)
        except BudgetEndedError as ended:
            return ended.cap
        except asyncio.CancelledError:
            if interrupt.reason is None:
                raise
        is_incomplete = len(self.rows) < repeats * len(self.eval_set.cases)
        return "user_stop" if is_incomplete and interrupt.reason is not None else None

    async def _write_references(self) -> None:
        if self.teacher is not None:
            labelled = await write_expected_answers(self.eval_set, self.teacher, gateway=self.evaluator.gateway)
            self.eval_set = labelled.eval_set

    async def _run(self, repeats: int, interrupt: Interrupt) -> None:
        """Run all repeats. Runs that are lost to an outage are made again, after the others."""
        left = list_case_runs(self.eval_set, range(repeats))
        max_failed = self.evaluator.options.max_errored_fraction * len(left)
        for _ in range(1 + RERUNS):
            lost = await self._run_until(left, interrupt, max_failed=max_failed)
            left = [(row.case_id, row.repeat) for row in lost]
            if not left or interrupt.reason is not None or len(left) > max_failed:
                break  # with more failures the report is unreliable anyway
        for row in lost:
            self._keep(row)

    async def _run_until(self, runs: Sequence[CaseRepeat], interrupt: Interrupt, *, max_failed: float) -> list[CaseRow]:
        """Run these until too many fail, or a person stops it. Returns the rows that were lost to an outage."""
        judging = judge_repeatedly(self.evaluator, self.judge_repeats)
        lost, failed = list[CaseRow](), 0
        async with aclosing(judging.stream_rows(self.agent, self.eval_set, self.profile, runs=runs)) as rows:
            async for row in rows:
                if row.outage is None:
                    self._keep(row)
                else:
                    lost.append(row)
                failed += row.error is not None
                if failed > max_failed or interrupt.reason is not None:
                    break
        return lost

    def _keep(self, row: CaseRow) -> None:
        self.rows.append(split_judgements(row, self.judge_repeats))
        self.on_row(self.rows[-1][0])

    async def _run_others(self, interrupt: Interrupt) -> None:
        """Run each case once with the stronger model, and once with the teacher, if there are any."""
        if self.stronger is not None and interrupt.reason is None:
            before = self._spent
            evaluator = self.evaluator.with_gateway(self.evaluator.gateway.with_agent_model(self.stronger))
            other = _Contender(self.stronger, self.agent, self.profile, evaluator, self.eval_set)
            found = await other.run(interrupt)
            if found.problem is None and not _has_asked(self.stronger, self._spent - before):
                found = ContenderResult(name=self.stronger, problem="the agent asked no model through the gateway")
            self.reached.append(found)
        if self.teacher is not None and interrupt.reason is None:
            agent = self.teacher if is_agent(self.teacher) else TeacherAgent(self.teacher, self.evaluator.gateway)
            profile = Profile.baseline(agent.describe())
            other = _Contender("teacher", agent, profile, self.evaluator, self._select_for_teacher())
            self.reached.append(await other.run(interrupt))

    def _select_for_teacher(self) -> EvalSet:
        """The cases that can judge the teacher. It agrees with references that it wrote itself."""
        if not any(metric.needs_reference for metric in self.evaluator.metrics):
            return self.eval_set
        cases = tuple(case for case in self.eval_set.cases if not has_generated_references(case))
        return replace(self.eval_set, cases=cases)

    @property
    def _spent(self) -> LedgerSnapshot:
        return self.evaluator.gateway.ledger.snapshot()


@dataclass(frozen=True, slots=True)
class _Contender:
    """Another agent, or the same one with another model, that runs the same cases."""

    name: str
    agent: Agent
    profile: Profile
    evaluator: Evaluator
    eval_set: EvalSet

    async def run(self, interrupt: Interrupt) -> ContenderResult:
        if not self.eval_set.cases:
            return ContenderResult(name=self.name, problem="it wrote the references of all cases itself")
        runs, rows = list_case_runs(self.eval_set, range(1)), list[CaseRow]()
        async with aclosing(self.evaluator.stream_rows(self.agent, self.eval_set, self.profile, runs=runs)) as finished:
            async for row in finished:
                rows.append(row)
                if interrupt.reason is not None:
                    return ContenderResult(name=self.name, problem="stopped on request")
        found = self.evaluator.build_evaluation(rows, self.eval_set, self.profile)
        if not found.is_reliable:
            return ContenderResult(name=self.name, problem=f"too many runs or scores failed: {found.commonest_errors}")
        return ContenderResult(name=self.name, evaluation=found)


def _has_asked(model: str, spent: LedgerSnapshot) -> bool:
    """Whether the agent asked a model, or was answered from the cache."""
    asked = (each.spent for each in spent.entries if each.role == "agent" and each.model == model)
    return any(each.calls or each.cache_hits for each in asked)


def _select_complete_repeats(rows: Sequence[CaseRow], cases: int) -> tuple[CaseRow, ...]:
    """Return the rows of the repeats that all cases have, so that fast cases do not count more than slow ones."""
    done = Counter(row.repeat for row in rows)
    return tuple(row for row in rows if done[row.repeat] == cases)
