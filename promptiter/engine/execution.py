"""Execution: everything that an engine needs for one run, and nothing that it needs before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path

import orjson

from promptiter.agents.base import Agent, check_agent_health
from promptiter.concurrency import run_in_thread
from promptiter.engine.active_run import ActiveRun
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.model_checks import check_models
from promptiter.engine.outline import TargetedSearch
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.run import Run, RunOutcome
from promptiter.engine.services import RunServices
from promptiter.engine.session import Search
from promptiter.engine.type_checks import check_journal, check_observers
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.policies.combine import describe_policy
from promptiter.references import refuse_while_importing
from promptiter.runlog.codec import to_plain
from promptiter.runlog.event_log import EventLog, is_finished
from promptiter.runlog.events import Observer
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.meter import Meter
from promptiter.runlog.observation import ObservedRun, observing
from promptiter.stages.roles import REVIEWER, check_part
from traces import digest
from traces.model import Json


class Execution:
    """How an engine executes its runs.

    A run is inside `using_agent` from its first event to its last. `clock` and `now` are those of the engine.
    """

    def __init__(
        self,
        agent: Agent,
        search: Search,
        *,
        using_agent: Callable[[], AbstractAsyncContextManager[None]],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self.agent = agent
        self.search = search
        self._using_agent = using_agent
        self._clock = clock
        self._now = now

    async def execute(
        self,
        checked: CheckedRequest,
        services: RunServices,
        *,
        observers: Sequence[Observer],
        interrupt: Interrupt,
        reviewer: Reviewer | None,
        finish: Callable[[RunOutcome], Awaitable[None]] | None = None,
    ) -> RunOutcome:
        """Run, and return the error with the result instead of raising it. Observers end after `finish`."""
        check_observers(observers)
        check_journal(services.journal)
        if reviewer is not None:
            check_part(reviewer, REVIEWER)
        refuse_while_importing()
        gateway = services.evaluator.gateway.stopping_on(lambda: interrupt.reason)
        evaluator = services.evaluator.with_gateway(gateway)
        journal, request = services.journal, checked.request
        is_complete = is_finished(await journal.last())
        if not is_complete:
            await self.check_setup(checked, evaluator)
        started = self._now()
        run_id = request.run_id or new_run_id(started, checked, self.search)
        redactor = evaluator.gateway.redactor
        observed = ObservedRun(run_id=run_id, events=journal.reader(), folder=services.folder)
        async with observing(observers, observed, redact=redactor.redact_text) as ready:
            if is_complete:
                outcome = RunOutcome(await run_in_thread(lambda: fold_lazily(journal.reader())), None)
            else:
                meter = Meter(self._clock, evaluator.gateway.ledger, before=services.spent_before)
                log = EventLog(run_id, journal, ready, meter=meter, redactor=redactor)
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
                outcome = await self._run(active, started)
            if finish is not None:
                await finish(outcome)
        return outcome

    async def _run(self, active: ActiveRun, started: datetime) -> RunOutcome:
        run = Run(active, self.search)
        async with self._using_agent():
            with active.evaluator.gateway.active():
                return await run.execute(started)

    async def check_setup(self, checked: CheckedRequest, evaluator: Evaluator) -> None:
        """Check that models, programs and services that the run needs are there. Raises SetupError; spends nothing."""
        if isinstance(self.search, TargetedSearch):
            found = self.search.find_target_problems(checked.snapshot, checked.targets, shape=checked.shape)
            if found:
                raise RequestError(found)
        await run_in_thread(lambda: self._check_models(evaluator, checked.request))
        await check_agent_health(self.agent)

    def _check_models(self, evaluator: Evaluator, request: RunRequest) -> None:
        others = {"teacher": request.teacher if isinstance(request.teacher, str) else None}
        check_models(self.agent, evaluator, profile=request.initial_profile, others=others, search=self.search)


def new_run_id(started: datetime, checked: CheckedRequest, search: object) -> str:
    """Return a run id: the start time and a hash of the inputs, such as the agent's values and the search's options."""
    request, evaluator = checked.request, checked.evaluator
    inputs = digest(
        [
            checked.snapshot.baseline_id,
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
            request.round_limit,
            request.seed,
            evaluator.seed,
            evaluator.options.repeats,
            {metric.name: metric.threshold for metric in evaluator.metrics},
            dict(evaluator.weights),
            to_plain(evaluator.penalties),
            type(search).__name__,
            _list_options(search),
        ]
    )
    return f"{started:{_ID_TIME}}_{inputs[:8]}"


_ID_TIME = "%Y-%m-%dT%H-%M-%S"


def find_rest_of_second(run_id: str, now: datetime) -> float:
    """How long another run with equal inputs would get this id: the seconds that are left of the second in it."""
    try:
        started = datetime.strptime(run_id.partition("_")[0], _ID_TIME).replace(tzinfo=now.tzinfo)
    except ValueError:  # an id that a caller chose
        return 0.0
    age_s = (now - started).total_seconds()
    return 1.0 - age_s if 0.0 <= age_s < 1.0 else 0.0


def _list_options(search: object) -> dict[str, Json]:
    """The options of a search that are plain values; of a file that one names, the content."""
    options: dict[str, Json] = {}
    for each in fields(search) if is_dataclass(search) else ():
        value = getattr(search, each.name)
        if isinstance(value, str) and Path(value).is_absolute() and Path(value).is_file():
            value = Path(value).read_text(encoding="utf-8", errors="replace")
        with suppress(TypeError):  # an object that Python gave
            options[each.name] = orjson.dumps(value).decode()
    return options
