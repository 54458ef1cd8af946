"""Engine: one optimization run, from the request to the result.

    engine = Engine(agent, evaluator, LLMBackwarder("gpt-5"), LLMAggregator("gpt-5"), LLMOptimizer("gpt-5"))
    result = engine.run_sync(RunRequest(train=train, validation=validation))

The engine checks the request, validates the baseline, runs the search and the final test, and returns the result. A
run that fails keeps its finished rounds. Stopping a run is not a failure.

Everything that only a run needs is imported by the first run: about half of promptiter, and pydantic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from promptiter.agents.base import Agent, check_agent, restore_agent
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.request import RunRequest
from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.registry import SEARCHES
from promptiter.stages.roles import SEARCH, check_part
from promptiter.structure import StructureSnapshot
from promptiter.wording import shorten

if TYPE_CHECKING:
    from promptiter.engine.execution import Execution
    from promptiter.engine.request_checks import CheckedRequest
    from promptiter.engine.review import Reviewer
    from promptiter.engine.run import RunOutcome
    from promptiter.engine.services import RunServices
    from promptiter.engine.session import Search
    from promptiter.runlog.case_uses import CaseUses
    from promptiter.runlog.events import Observer
    from promptiter.runlog.journal import Journal
    from promptiter.runlog.results import RunResult
    from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
    from promptiter.stages.optimizer import Optimizer

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
        self.agent = _prepare_agent(agent)
        if not isinstance(evaluator, Evaluator):
            raise SetupError(f"the evaluator is {shorten(evaluator)}; give an Evaluator, such as Evaluator(metrics)")
        if search is not None:
            check_part(search, SEARCH)
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
        from promptiter.engine.request_checks import check_request_for
        from promptiter.engine.round_limits import complete_limits

        if isinstance(request, RunRequest):
            request = complete_limits(request, self.search)
        return check_request_for(self.agent, request, self.evaluator, self.search)

    async def check_setup(self, checked: CheckedRequest) -> None:
        """Check that what a run needs is there: models, programs, packages, services. Raises SetupError.

        Nothing is spent. A run checks it, too; this is for what must not be done if it cannot start.
        """
        await self._make_execution().check_setup(checked, checked.evaluator)

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
        services = self._make_services(checked, journal)
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
        services = self._make_services(checked, journal)
        return run_blocking(
            lambda: self.execute(checked, services, observers=observers, interrupt=interrupt, reviewer=reviewer),
            interrupt,
            notify=notify,
        ).result_or_failure()

    def _make_services(self, checked: CheckedRequest, journal: Journal | None) -> RunServices:
        from promptiter.engine.services import make_services

        return make_services(checked.evaluator, journal=journal, case_uses=self._case_uses)

    async def execute(
        self,
        checked: CheckedRequest,
        services: RunServices,
        *,
        observers: Sequence[Observer] = (),
        interrupt: Interrupt | None = None,
        reviewer: Reviewer | None = None,
        finish: Callable[[RunOutcome], Awaitable[None]] | None = None,
    ) -> RunOutcome:
        """Run, and return the error with the result instead of raising it: a run that failed has a result too.

        `finish` writes the files of the run, before its observers end.
        """
        return await self._make_execution().execute(
            checked,
            services,
            observers=observers,
            interrupt=interrupt or Interrupt(),
            reviewer=reviewer,
            finish=finish,
        )

    def _make_execution(self) -> Execution:
        from promptiter.engine.execution import Execution

        return Execution(self.agent, self.search, using_agent=self.using_agent, clock=self._clock, now=self._now)

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


def _prepare_agent(agent: Agent | StructureSnapshot) -> Agent:
    """The agent, or that of a structure. Raises SetupError if it is neither."""
    if isinstance(agent, StructureSnapshot):
        from promptiter.evaluation.scorer import DescribedAgent

        return DescribedAgent(agent)
    check_agent(agent)
    return agent
