"""Runs of one or several profiles on the same cases and repeats, interleaved, outside of an optimization run.

Rows are kept as they finish, so that a budget or a person may stop the runs at any time. Answers come from the cache of
the evaluator's gateway where it has them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, check_agent, check_agent_health, restore_agent
from promptiter.engine.evaluations import EvaluationRequest, Evaluations
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.model_checks import check_models
from promptiter.errors import BudgetEndedError, OutageError, SetupError, StopRequestedError
from promptiter.evaluation.data.case import EvalSet, advise_eval_set
from promptiter.evaluation.evaluator import Evaluator, OnRow, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.profile import Profile
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Event, Observer
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.meter import Meter
from promptiter.runlog.payloads import CaseFinished, EvalSetSummary, RunStarted
from promptiter.wording import shorten


class ProfileRuns:
    """The case runs of some profiles so far. Repeats are counted from 0; they are numbered from `first_repeat`."""

    def __init__(
        self,
        agent: Agent,
        evaluator: Evaluator,
        cases: EvalSet,
        profiles: Sequence[Profile],
        *,
        first_repeat: int = 0,
        on_row: OnRow | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        _check_inputs(agent, evaluator, cases, profiles)
        self._interrupt = interrupt or Interrupt()
        evaluator = evaluator.for_run()
        self.evaluator = evaluator.with_gateway(evaluator.gateway.stopping_on(lambda: self._interrupt.reason))
        self.rows: list[dict[tuple[str, int], CaseRow]] = [{} for _ in profiles]
        self._agent = agent
        self._cases = cases
        self._profiles = profiles
        self._first_repeat = first_repeat
        self._observers: list[Observer] = [self, *([] if on_row is None else [_RowObserver(on_row)])]
        self._repeats = 0
        self._evaluations: Evaluations | None = None

    @property
    def ledger(self) -> LedgerSnapshot:
        """What these runs have spent."""
        return self.evaluator.gateway.ledger.snapshot()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Make runs in this block. Raises SetupError if they could not start, and restores the agent at the end."""
        self.evaluator.check(self._agent, [(self._cases, profile) for profile in self._profiles])
        for profile in self._profiles:
            await asyncio.to_thread(check_models, self._agent, self.evaluator, profile=profile)
        await check_agent_health(self._agent)
        try:
            with self.evaluator.gateway.active():
                yield
        finally:
            await restore_agent(self._agent)

    async def run_block(self, repeats: int) -> str | None:
        """Run each case this number of times more under each profile. Returns the reason if it ended early."""
        if self._evaluations is None:
            self._evaluations = Evaluations(await self._start_log(), self._agent, self.evaluator)
        start, self._repeats = self._repeats, self._repeats + repeats
        wanted = range(self._first_repeat + start, self._first_repeat + self._repeats)
        requests = [
            EvaluationRequest(
                eval_set=self._cases,
                profile=profile,
                phase="final_test" if start or place else "baseline",  # a baseline tries a few cases first
                runs=list_case_runs(self._cases, wanted),
            )
            for place, profile in enumerate(self._profiles)
        ]
        try:
            await self._evaluations.evaluate_many(requests)
        except BudgetEndedError as ended:
            return ended.cap
        except OutageError as error:
            raise OutageError(error.message, advice="fix the cause, then try again") from error
        except StopRequestedError:
            return "user_stop"
        except asyncio.CancelledError:
            if self._interrupt.reason is None:
                raise
            return "user_stop"
        return None

    def build_evaluations(self) -> list[Evaluation]:
        """Build the evaluation of each profile on the runs that were made under all of them."""
        common = set.intersection(*map(set, self.rows))
        return [
            self.evaluator.build_evaluation(
                (replace(row, repeat=repeat) for (case, repeat), row in rows.items() if (case, repeat) in common),
                self._cases,
                profile,
            )
            for rows, profile in zip(self.rows, self._profiles, strict=True)
        ]

    async def observe(self, event: Event) -> None:
        """Keep each row as it finishes. The evaluations of a block are numbered in the order of the profiles."""
        if isinstance(event.payload, CaseFinished):
            row = event.payload.row
            place = event.payload.evaluation % len(self._profiles)
            self.rows[place][row.case_id, row.repeat - self._first_repeat] = row

    async def _start_log(self) -> EventLog:
        """Start a log in memory, as evaluations need one."""
        gateway = self.evaluator.gateway
        meter = Meter(time.monotonic, gateway.ledger)
        log = EventLog("profiles", MemoryJournal(), self._observers, meter=meter, redactor=gateway.redactor)
        cases = EvalSetSummary.of(self._cases)
        await log.append(
            RunStarted(
                structure=self._agent.describe().to_json(),
                profile=self._profiles[0],
                targets=(),
                train=cases,
                validation=cases,
                shape="one_set",
            )
        )
        return log


@dataclass(frozen=True, slots=True)
class _RowObserver:
    """Passes each row to a function of the caller. If that fails, the runs continue without it."""

    on_row: OnRow

    async def observe(self, event: Event) -> None:
        if isinstance(event.payload, CaseFinished):
            self.on_row(event.payload.row)


def _check_inputs(agent: object, evaluator: object, cases: object, profiles: Sequence[object]) -> None:
    check_agent(agent)
    if not isinstance(evaluator, Evaluator):
        raise SetupError(
            f"the evaluator is {shorten(evaluator)}; give an Evaluator, such as Evaluator(build_metrics(...))"
        )
    if not isinstance(cases, EvalSet):
        raise SetupError(f"the cases are {shorten(cases)}; give an EvalSet{advise_eval_set(cases)}")
    if not cases.cases:
        raise SetupError(f"the eval set {cases.id!r} has no cases; give at least one")
    for profile in profiles:
        if not isinstance(profile, Profile):
            raise SetupError(
                f"{shorten(profile)} is not a profile; give Profile.baseline(agent.describe()), or Profile.of(...)"
            )
