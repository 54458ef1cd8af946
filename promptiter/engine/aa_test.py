"""The A/A test: measures run-to-run noise with several repeats of each validation case under the initial profile.

    report = await measure_noise(engine, request)
    print(report.noise.std, report.smallest_gain(), report.reach(0.1))

It takes the cases, teacher, judge, seed and budget of a run request. Answers in a cache that was given to the gateway
are free. If a budget or a person stops it early, the report covers the repeats that were finished for all cases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from promptiter.agents.base import Agent
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.evaluation.stats.noise import REPEATS, NoiseReport
from promptiter.evaluation.teacher import write_expected_answers
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.policies.final_test import FinalTest
from promptiter.profile import Profile
from promptiter.runlog.results import RunRequest

OnRow = Callable[[CaseRow], None]


async def measure_noise(
    engine: Engine,
    request: RunRequest | CheckedRequest,
    *,
    repeats: int = REPEATS,
    on_row: OnRow | None = None,
    interrupt: Interrupt | None = None,
) -> NoiseReport:
    """Run each validation case `repeats` times under the initial profile of a request, and report the noise.

    `on_row` is called with each case run as it finishes. An `interrupt` stops after the case runs in progress.
    """
    if repeats < 2:
        raise SetupError(f"repeats is {repeats!r}, but noise is measured between repeats of a case; give 2 or more")
    measurement = _NoiseMeasurement(engine.agent, engine.check(request), on_row or (lambda _: None))
    async with engine.using_agent():
        with measurement.evaluator.gateway.active():
            return await measurement.report(repeats, interrupt or Interrupt())


class _NoiseMeasurement:
    """One eval set under one profile."""

    def __init__(self, agent: Agent, checked: CheckedRequest, on_row: OnRow) -> None:
        request = checked.request
        self.agent = checked.choose_agent(agent)
        self.evaluator = checked.evaluator.for_run()
        self.eval_set = checked.validation
        self.profile = request.initial_profile or Profile.baseline(checked.snapshot)
        self.objective = request.objective
        self.blocks = plan_blocks(request.alpha, repeats=(request.final_test or FinalTest()).repeats)
        self.teacher = request.teacher
        self.on_row = on_row
        self.rows: list[CaseRow] = []
        self.at_start = NOTHING

    async def report(self, repeats: int, interrupt: Interrupt) -> NoiseReport:
        stop_reason = await self._run_all(repeats, interrupt)
        found = self.evaluator.build_evaluation(self.rows, self.eval_set, self.profile)
        if found.is_reliable:
            found = replace(found, rows=_select_complete_repeats(found.rows, len(self.eval_set.cases)))
        return NoiseReport(
            evaluation=found,
            objective=self.objective,
            stop_reason=stop_reason,
            spent=self._spent - self.at_start,
            paid_runs=sum(row.origin == "executed" for row in self.rows),
            blocks=self.blocks,
        )

    async def _run_all(self, repeats: int, interrupt: Interrupt) -> str | None:
        """Run everything, and return the reason if it ended early."""
        try:
            await self._write_references()
            self.at_start = self._spent
            await self._run(repeats, interrupt)
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
        max_failed = self.evaluator.options.max_errored_fraction * len(self.eval_set.cases) * repeats
        failed = 0
        runs = list_case_runs(self.eval_set, range(repeats))
        rows = self.evaluator.stream_rows(self.agent, self.eval_set, self.profile, runs=runs)
        async with aclosing(rows):
            async for row in rows:
                self.rows.append(row)
                self.on_row(row)
                failed += row.error is not None
                if failed > max_failed or interrupt.reason is not None:
                    return  # with more failures the report is unreliable anyway

    @property
    def _spent(self) -> Spending:
        return self.evaluator.gateway.ledger.snapshot().of_models


def _select_complete_repeats(rows: Sequence[CaseRow], cases: int) -> tuple[CaseRow, ...]:
    """Return the rows of the repeats that all cases have, so that fast cases do not count more than slow ones."""
    done = Counter(row.repeat for row in rows)
    return tuple(row for row in rows if done[row.repeat] == cases)
