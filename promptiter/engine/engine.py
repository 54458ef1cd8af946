"""Engine: one optimization run, from the request to the result.

    engine = Engine(agent, evaluator, LLMBackwarder("gpt-5"), LLMAggregator("gpt-5"), LLMOptimizer("gpt-5"))
    result = engine.run_sync(RunRequest(train=train, validation=validation))

The engine checks the request, validates the baseline, runs the search and the final test, and returns the result. A
run that fails keeps its finished rounds. Stopping a run is not a failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast

from promptiter.agents.base import Agent
from promptiter.concurrency import run_in_thread
from promptiter.engine.active_run import ActiveRun
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.model_checks import check_models
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest, check_request
from promptiter.engine.review import Reviewer
from promptiter.engine.run import Run, RunOutcome, restore_agent
from promptiter.engine.services import RunServices, make_services
from promptiter.engine.session import Search
from promptiter.engine.type_checks import (
    check_journal,
    check_observers,
    check_parts,
    check_request_type,
    check_structure,
)
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.scorer import NO_AGENT, DescribedAgent
from promptiter.policies.combine import describe_policy
from promptiter.references import refuse_while_importing
from promptiter.registry import SEARCHES
from promptiter.runlog.case_uses import CaseUses
from promptiter.runlog.event_log import EventLog, is_finished
from promptiter.runlog.events import Observer
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.journal import Journal
from promptiter.runlog.meter import Meter
from promptiter.runlog.results import RunResult
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder, Optimizer
from promptiter.stages.roles import REVIEWER, SEARCH, check_part
from promptiter.structure import StructureSnapshot
from traces import digest

DEFAULT_SEARCH = "backprop"
"""It is named, not imported, because searches are a layer above the engine."""


class Engine:
    """Optimizes one agent.

    The three stages configure the default search; stages that are left out default to ones that need no model. An
    Attributor, which looks at a whole trace at once, may take the place of the Backwarder. A run with a scorer needs no
    agent, only its structure. `case_uses` remembers which cases runs have used; a store of runs has its own.
    """

    def __init__(
        self,
        agent: Agent | StructureSnapshot,
        evaluator: Evaluator,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        search: Search | None = None,
        case_uses: CaseUses | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if search is not None and (backwarder or aggregator or optimizer):
            raise TypeError("give an Engine either the three stages or a search, not both")
        check_parts(agent, evaluator)
        if search is not None:
            check_part(search, SEARCH)
        self.agent: Agent = DescribedAgent(agent) if isinstance(agent, StructureSnapshot) else agent
        self.evaluator = evaluator
        self.search = search or cast("Search", SEARCHES.get(DEFAULT_SEARCH)(backwarder, aggregator, optimizer))
        self._clock = clock
        self._now = now
        self._case_uses = case_uses
        self._users = 0
        self._lock = threading.Lock()

    def describe(self) -> StructureSnapshot:
        """Return what may change about the agent."""
        return self.agent.describe()

    def check(self, request: RunRequest | CheckedRequest) -> CheckedRequest:
        """Check a request; RequestError lists every problem. One that was checked is returned as it is."""
        if isinstance(request, CheckedRequest):
            return request
        check_request_type(request)
        if isinstance(self.agent, DescribedAgent) and request.scorer is None:
            raise RequestError([NO_AGENT])
        snapshot = self.describe()
        check_structure(snapshot, self.agent)
        return check_request(request, snapshot, self.evaluator)

    async def run(
        self,
        request: RunRequest | CheckedRequest,
        *,
        observers: Sequence[Observer] = (),
        journal: Journal | None = None,
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
    ) -> RunResult:
        """Optimize the agent and return the result.

        Raises RequestError if the request is invalid, and RunFailedError, with the result so far, if the run fails. A
        run that is cancelled from outside writes its last event, then raises CancelledError.
        """
        checked = self.check(request)
        services = make_services(checked.evaluator, journal=journal, case_uses=self._case_uses)
        outcome = await self.execute(checked, services, observers=observers, interrupt=interrupt, reviewer=reviewer)
        return outcome.result_or_error()

    def run_sync(
        self,
        request: RunRequest | CheckedRequest,
        *,
        observers: Sequence[Observer] = (),
        journal: Journal | None = None,
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> RunResult:
        """Run from synchronous code, also inside a running event loop, as in a notebook.

        The first Ctrl-C finishes the case runs and stage calls in progress, the second stops at once. Both return a
        result. `notify` is called with a message for the user at each of them.
        """
        checked, interrupt = self.check(request), interrupt or Interrupt()
        services = make_services(checked.evaluator, journal=journal, case_uses=self._case_uses)
        return run_blocking(
            lambda: self.execute(checked, services, observers=observers, interrupt=interrupt, reviewer=reviewer),
            interrupt,
            notify=notify,
        ).result_or_failure()

    async def execute(
        self,
        checked: CheckedRequest,
        services: RunServices,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
    ) -> RunOutcome:
        """Run, and return the error with the result instead of raising it: a run that failed has a result too."""
        check_observers(observers)
        check_journal(services.journal)
        if reviewer is not None:
            check_part(reviewer, REVIEWER)
        refuse_while_importing()
        interrupt = interrupt or Interrupt()
        gateway = services.evaluator.gateway.stopping_on(lambda: interrupt.reason)
        evaluator = services.evaluator.with_gateway(gateway)
        journal, request = services.journal, checked.request
        if is_finished(await journal.last()):
            return RunOutcome(await run_in_thread(lambda: fold_lazily(journal.reader())), None)
        await run_in_thread(lambda: self._check_models(evaluator, request))
        started = self._now()
        run_id = request.run_id or new_run_id(started, checked)
        meter = Meter(self._clock, evaluator.gateway.ledger, before=services.spent_before)
        log = EventLog(run_id, journal, observers, meter=meter, redactor=evaluator.gateway.redactor)
        active = ActiveRun(
            checked,
            log,
            agent=checked.choose_agent(self.agent),
            evaluator=evaluator,
            interrupt=interrupt,
            reviewer=reviewer,
            case_uses=services.case_uses,
            place=services.place,
        )
        run = Run(active, self.search)
        async with self.using_agent():
            with evaluator.gateway.active():
                return await run.execute(started)

    def _check_models(self, evaluator: Evaluator, request: RunRequest) -> None:
        others = {"teacher": request.teacher if isinstance(request.teacher, str) else None}
        check_models(self.agent, evaluator, profile=request.initial_profile, others=others, search=self.search)

    @asynccontextmanager
    async def using_agent(self) -> AsyncIterator[None]:
        """Use the agent. When the last of the runs that use it ends, the baseline of an in-place agent is restored."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
            if not self._users:
                await restore_agent(self.agent)


def new_run_id(started: datetime, checked: CheckedRequest) -> str:
    """Return a run id: the start time and a hash of the inputs."""
    request = checked.request
    inputs = digest(
        [
            checked.train.content_digest,
            checked.validation.content_digest,
            checked.test.content_digest if checked.test is not None else None,
            list(checked.targets),
            request.initial_profile.digest if request.initial_profile is not None else None,
            request.objective,
            describe_policy(request.goal),
            describe_policy(request.acceptance),
            describe_policy(request.final_test),
            describe_policy(request.stop),
            request.max_rounds,
            request.seed,
        ]
    )
    return f"{started:%Y-%m-%dT%H-%M-%S}_{inputs[:8]}"
