"""Engine: one optimization run, from the request to the result.

    engine = Engine(agent, evaluator, LLMBackwarder("gpt-5"), LLMAggregator("gpt-5"), LLMOptimizer("gpt-5"))
    result = engine.run_sync(RunRequest(train=train, validation=validation))

The engine checks the request, validates the baseline, lets a strategy search, and says how it ended. A run that fails
keeps its finished rounds; stopping is no failure.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from promptiter.agents.base import Agent
from promptiter.backprop.stages import Aggregator, Attributor, Backwarder, Optimizer
from promptiter.engine.checks import CheckedRequest, check_request
from promptiter.engine.events import Observer
from promptiter.engine.fold import fold
from promptiter.engine.interrupts import Interrupt, on_signals
from promptiter.engine.journal import Journal, MemoryJournal
from promptiter.engine.log import EventLog
from promptiter.engine.policies import written
from promptiter.engine.records import RunMeasured, RunRequest, RunResult, Status, Verdict
from promptiter.engine.review import Reviewer
from promptiter.engine.session import Session, Strategy
from promptiter.engine.shapes import plain_of
from promptiter.engine.stopping import StopDecision, StopReason
from promptiter.errors import BudgetEndedError, PromptiterError
from promptiter.evaluation.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.teacher import TaughtSet, with_expected_answers
from promptiter.profile import Profile
from promptiter.registry import STRATEGIES
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.model import Json

T = TypeVar("T")

ROUNDS = "promptiter.search.rounds:BackpropRounds"
"""The strategy that three stages make up. Searches stand above the engine, so it knows this one by name only."""


class RunFailedError(PromptiterError):
    """A run ended in an error. `result` has everything that was finished before; the cause is the error itself."""

    def __init__(self, error: BaseException, result: RunResult) -> None:
        super().__init__(f"the run failed in round {result.current_round}: {type(error).__name__}: {error}")
        self.result = result


class Engine:
    """Optimizes one agent. The three stages make up the default search; without any, those that need no model.

    Where a Backwarder goes, an Attributor, which looks at whole traces, may stand too.
    """

    def __init__(
        self,
        agent: Agent,
        evaluator: Evaluator,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        strategy: Strategy | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if strategy is not None and (backwarder or aggregator or optimizer):
            raise TypeError("give an Engine either the three stages or a strategy, not both")
        self.agent = agent
        self.evaluator = evaluator
        self.strategy = strategy or cast("Strategy", STRATEGIES.get(ROUNDS)(backwarder, aggregator, optimizer))
        self._clock = clock
        self._now = now

    def describe(self) -> StructureSnapshot:
        """What may be changed about the agent."""
        return self.agent.describe()

    async def run(
        self,
        request: RunRequest,
        *,
        observers: Sequence[Observer] = (),
        journal: Journal | None = None,
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
    ) -> RunResult:
        """Optimize. RequestError: the request cannot be served. RunFailedError: it failed, with its result so far.

        A run that is cancelled from outside raises CancelledError, after the journal and the observers had its end.
        """
        ended = await self._conduct(request, observers, journal, interrupt or Interrupt(), reviewer)
        if ended.error is None:
            return ended.result
        if isinstance(ended.error, asyncio.CancelledError):
            raise ended.error
        raise RunFailedError(ended.error, ended.result) from ended.error

    def run_sync(
        self,
        request: RunRequest,
        *,
        observers: Sequence[Observer] = (),
        journal: Journal | None = None,
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> RunResult:
        """The same from synchronous code, also inside a running event loop, as in a notebook.

        The first Ctrl-C finishes the round in flight, the second stops at once; both give a result.
        """
        interrupt = interrupt or Interrupt()

        async def conduct() -> _Ended:
            work = asyncio.ensure_future(self._conduct(request, observers, journal, interrupt, reviewer))
            with on_signals(interrupt, work.cancel, tell=tell):
                return await work

        ended = _blocking(conduct, interrupt)
        if ended.error is None or isinstance(ended.error, asyncio.CancelledError):
            return ended.result
        raise RunFailedError(ended.error, ended.result) from ended.error

    async def _conduct(
        self,
        request: RunRequest,
        observers: Sequence[Observer],
        journal: Journal | None,
        interrupt: Interrupt,
        reviewer: Reviewer | None,
    ) -> _Ended:
        evaluator = self._evaluator_for(request)
        checked = check_request(request, self.describe(), evaluator)
        started = self._now()
        run_id = request.run_id or _run_id(started, request, checked)
        log = EventLog(run_id, journal or MemoryJournal(), observers)
        session = Session(
            request,
            log,
            agent=self.agent,
            evaluator=evaluator,
            train=checked.train,
            validation=checked.validation,
            targets=checked.targets,
            clock=self._clock,
            interrupt=interrupt,
            reviewer=reviewer,
        )
        run = _Run(session=session, log=log, strategy=self.strategy, clock=self._clock)
        with evaluator.gateway.active():
            return await run.conduct(started)

    def _evaluator_for(self, request: RunRequest) -> Evaluator:
        evaluator = self.evaluator
        if request.evaluation is not None:
            evaluator = evaluator.with_options(request.evaluation)
        if request.seed != evaluator.options.seed:
            evaluator = evaluator.with_options(replace(evaluator.options, seed=request.seed))
        return evaluator if request.judge is None else evaluator.with_judge(request.judge)


@dataclass(frozen=True, slots=True)
class _Ended:
    result: RunResult
    error: BaseException | None


class _Run:
    """One run from its first event to its last."""

    def __init__(self, *, session: Session, log: EventLog, strategy: Strategy, clock: Callable[[], float]) -> None:
        self.session = session
        self.log = log
        self.strategy = strategy
        self.clock = clock
        self.began = clock()
        self.budget_ended = False
        self.spent_before = session.evaluator.gateway.ledger.snapshot()

    async def conduct(self, started: datetime) -> _Ended:
        error: BaseException | None = None
        status: Status = "succeeded"
        try:
            await self._search(started)
        except BudgetEndedError as ended:
            self.session.stop = StopDecision(stop=True, reasons=(StopReason(ended.cap, str(ended)),))
            self.budget_ended = True
        except asyncio.CancelledError as cancelled:
            error, status = cancelled, "cancelled"
        except Exception as failure:  # noqa: BLE001 - whatever it is, the finished rounds are kept and it is raised again
            error, status = failure, "failed"
        await self._complete(status, error)
        return _Ended(fold(self.log.read()), error)

    async def _search(self, started: datetime) -> None:
        session = self.session
        profile = session.request.initial_profile or Profile.baseline(session.snapshot)
        await session.note("run_started", _head(session, profile, started, strategy=self.strategy))
        if session.request.teacher is not None:
            session.train, session.validation = await self._taught(session.request.teacher)
        await session.start(profile)
        if not session.accepted.validation.is_reliable:
            return
        if session.request.max_rounds == 0:
            session.stop = StopDecision(stop=True, reasons=(StopReason("max_rounds", "only the baseline is wanted"),))
            return
        await self.strategy.search(session)
        if session.stop is None or not session.stop.stop:
            reason = StopReason("exhausted", "the search has nothing left to try")
            session.stop = StopDecision(stop=True, reasons=(reason,))

    async def _taught(self, teacher: Agent | str) -> tuple[EvalSet, EvalSet]:
        """Both sets with the teacher's answers, written once, before anything is compared with them."""
        session, seed = self.session, self.session.request.seed
        gateway = session.evaluator.gateway

        async def taught() -> tuple[TaughtSet, ...]:
            sets = (session.train, session.validation)
            return tuple([await with_expected_answers(each, teacher, gateway=gateway, seed=seed) for each in sets])

        train, validation = await session.record("references", tuple[TaughtSet, ...], taught)
        return train.eval_set, validation.eval_set

    async def _complete(self, status: Status, error: BaseException | None) -> None:
        """Write the last event. Nobody may cancel that."""
        session = self.session
        self.log.phase = "end"
        measured = RunMeasured(
            run_id=self.log.run_id,
            duration_s=self.clock() - self.began,
            case_runs=session.case_runs,
            paid_case_runs=session.paid_case_runs,
            spent=session.evaluator.gateway.ledger.snapshot() - self.spent_before,
            problems=tuple(self.log.problems),
        )
        data: dict[str, Json] = {
            "status": status,
            "verdict": self._verdict(),
            "stop": plain_of(session.stop) if session.stop is not None and session.stop.stop else None,
            "error": None if error is None or status == "cancelled" else self._told(error),
            "measured": plain_of(measured),
        }
        await asyncio.shield(self.log.append("run_completed", data))

    def _told(self, error: BaseException) -> str:
        redactor = self.session.evaluator.gateway.redactor
        return redactor.redact_text(f"{type(error).__name__}: {error}")

    def _verdict(self) -> Verdict:
        session = self.session
        if not session.has_baseline:
            return "budget_ended" if self.budget_ended else "no_evidence"
        if session.has_accepted:
            return "improved"
        if not session.accepted.validation.is_reliable:
            return "invalid_eval"
        return "budget_ended" if self.budget_ended and not session.has_decided else "no_evidence"


def _head(session: Session, profile: Profile, started: datetime, *, strategy: Strategy) -> dict[str, Json]:
    request = session.request
    return {
        "structure": session.snapshot.to_json(),
        "profile": plain_of(profile),
        "targets": sorted(session.targets),
        "train": [session.train.id, session.train.content_digest, len(session.train.cases)],
        "validation": [session.validation.id, session.validation.content_digest, len(session.validation.cases)],
        "objective": request.objective,
        "acceptance": written(request.acceptance),
        "stop": written(request.stop),
        "max_rounds": request.max_rounds,
        "strategy": type(strategy).__name__,
        "seed": request.seed,
        "measured": {"started_at": started.isoformat(timespec="seconds")},
    }


def _run_id(started: datetime, request: RunRequest, checked: CheckedRequest) -> str:
    inputs = digest(
        [
            checked.train.content_digest,
            checked.validation.content_digest,
            list(checked.targets),
            request.initial_profile.digest if request.initial_profile is not None else None,
            request.objective,
            written(request.acceptance),
            written(request.stop),
            request.max_rounds,
            request.seed,
        ]
    )
    return f"{started:%Y-%m-%dT%H-%M-%S}_{inputs[:8]}"


def _blocking(work: Callable[[], Coroutine[Any, Any, T]], interrupt: Interrupt) -> T:
    """What the work gives. Where an event loop is running already, it gets a thread and a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    outcome: Future[T] = Future()

    def in_a_thread() -> None:
        try:
            outcome.set_result(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            outcome.set_exception(error)

    thread = threading.Thread(target=in_a_thread, name="promptiter-run", daemon=True)
    thread.start()
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            if interrupt.why is not None:
                raise
            interrupt.ask("Ctrl-C")
