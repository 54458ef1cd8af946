"""ActiveRun: one run in progress, with its record, its evaluations and its policies.

The engine uses it directly. Its search sees it as a Session, which leaves out what validation says about candidates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from random import Random
from typing import TypeVar

from promptiter.agents.base import Agent
from promptiter.engine.comparison import Validator
from promptiter.engine.evaluations import Evaluations
from promptiter.engine.hidden_cases import HiddenCases
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.one_request import OneRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.policies.acceptance import protect_cases
from promptiter.policies.stopping import Progress, complete_stop, reads_score
from promptiter.runlog.candidates import ValidatedProfile
from promptiter.runlog.case_uses import CaseUses
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Payload, Phase, check_payload_class
from promptiter.runlog.payloads import BudgetEnded, StopDecided, StopMeasured
from promptiter.runlog.run_state import RunState
from promptiter.wording import shorten
from traces import ExecutionTrace, digest
from traces.model import Json

P = TypeVar("P", bound=Payload)


class ActiveRun:
    """One run in progress. Each service records its results in the event log, and answers from there on resume.

    `train` and `validation` are the cases of the search, the same ones unless the `shape` of the run is two sets;
    `test` cases are used by the final test only. `targets` are the surfaces that may change, `snapshot` is the
    structure, and `rng` the only source of randomness. `case_uses` are those of the project, where the run is known as
    `place`.
    """

    def __init__(
        self,
        checked: CheckedRequest,
        log: EventLog,
        *,
        agent: Agent,
        evaluator: Evaluator,
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
        case_uses: CaseUses,
        place: str = "",
    ) -> None:
        self.request = request = checked.request
        self.checked = checked
        self.log = log
        self.agent = agent
        self.evaluator = evaluator
        self.snapshot = checked.snapshot
        self.shape = checked.shape
        self.test = checked.test
        self.targets = frozenset(checked.targets)
        self.reviewer = reviewer
        self.case_uses = case_uses
        self.place = place
        self.seed = evaluator.seed
        self.rng = Random(self.seed)
        self.evaluations = Evaluations(log, agent, evaluator, metric_calls=checked.count_metric_calls())
        self.validator = Validator(self)
        self.meter = log.meter
        self.one_request = OneRequest()
        self.acceptance = protect_cases(request.acceptance, request.protected)
        self._interrupt = interrupt
        self._records = 0
        self._stopping = complete_stop(
            request.stop,
            max_rounds=request.round_limit,
            objective=request.objective,
            is_for_score=request.goal.kind == "score",
        )

    @property
    def state(self) -> RunState:
        """The run after the events so far."""
        return self.log.state

    @property
    def round(self) -> int:
        return self.log.round

    @property
    def train(self) -> EvalSet:
        """The train cases, with the teacher's answers if there is a teacher."""
        references = self.state.references
        if self.shape != "two_sets":
            return self.validation
        return self.checked.train if references is None else references.train.eval_set

    @property
    def validation(self) -> EvalSet:
        """The validation cases, with the teacher's answers if there is a teacher."""
        references = self.state.references
        return self.checked.validation if references is None else references.validation.eval_set

    @cached_property
    def hidden_cases(self) -> HiddenCases:
        """Finds few-shot examples that repeat validation or test cases."""
        hidden = (*self.validation.cases, *(self.test.cases if self.test is not None else ()))
        return HiddenCases(hidden, self.train.cases if self.shape == "two_sets" else ())

    @property
    def accepted(self) -> ValidatedProfile:
        """The best profile so far; at first the initial profile."""
        assert self.state.accepted is not None, "the baseline is validated before a search starts"
        return self.state.accepted

    @property
    def baseline(self) -> ValidatedProfile:
        """The initial profile of the run."""
        assert self.state.baseline is not None, "the baseline is validated before a search starts"
        return self.state.baseline

    @property
    def is_handed_over(self) -> bool:
        """Whether another process continues the run."""
        return self._interrupt.is_handed_over

    async def trace(self, trace_digest: str) -> ExecutionTrace:
        """Return a trace that an evaluation recorded."""
        return await self.evaluator.trace_store.get(trace_digest)

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        return self.evaluator.gateway.redactor.redact_text(text)

    def report(self, problem: str) -> None:
        """Report a problem that the user should know of and that does not end the run."""
        self.log.problems.append(self.redact(problem))

    async def record(
        self, kind: type[P], work: Callable[[], Awaitable[P]], *, request: Json = None, phase: Phase | None = None
    ) -> P:
        """Return the result of `work` and record it as an event; a resumed run reads it from the log.

        `request` is what the work depends on. When a run is resumed, it must be the same.
        """
        check_payload_class(kind)
        request_digest = digest(request)
        with self.one_request.make():
            known = await self.log.take(kind, request=request_digest)
            if known is None:
                self.evaluator.gateway.check_stop()
                with self.one_request.work():
                    payload = await work()
                if not isinstance(payload, kind):
                    raise SetupError(f"the work of a record returned {shorten(payload)}; return a {kind.__qualname__}")
                self.log.phase = phase or self.log.phase
                known = await self.log.append(payload, request=request_digest)
        self._records += 1
        self.rng.seed(f"{self.seed} after {self._records}")  # the same after a resume, which does not repeat the work
        return known

    async def note(self, payload: P, *, request: Json = None, phase: Phase | None = None) -> P:
        """Record a fact that follows from earlier ones, and return it as the log has it: without secrets."""
        with self.one_request.make():
            self.log.phase = phase or self.log.phase
            return await self.log.note(payload, request=None if request is None else digest(request))

    async def record_budget_end(self, ended: BudgetEndedError) -> None:
        """Record that the budget ended the search or the ablation; the run continues with the next part."""
        await self.note(BudgetEnded(cap=ended.cap, message=self.redact(ended.message)))

    async def should_stop(self, *, is_search_over: bool = False) -> bool:
        """Return whether the stop policies end the run. Once the search is over, they only say why it ended."""
        with self.one_request.make():
            decided = await self.log.take(StopDecided)
            if decided is None:
                progress = self._progress()
                decision = self._stopping.decide(progress)
                found = StopDecided(
                    decision=decision,
                    reads_score=not is_search_over and reads_score(self._stopping, progress, decision),
                    measured=StopMeasured(spent=progress.spent, evaluations=progress.evaluations),
                )
                decided = await self.log.append(found)
            return decided.decision.stop

    def _progress(self) -> Progress:
        return Progress(
            round=self.round,
            rounds_without_acceptance=self.state.rounds_without_acceptance,
            best=self.accepted.validation,
            objective=self.request.objective,
            elapsed_s=self.meter.elapsed_s,
            evaluations=self.evaluations.paid,
            crashes=self.state.crashes,
            spent=self.meter.spent,
            user_stop=self._interrupt.reason,
            test_now=self._interrupt.test_now,
        )
