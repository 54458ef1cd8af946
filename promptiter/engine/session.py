"""Session: the services of a run that a search algorithm uses.

Each service records its result in the event log and answers from there when a run is resumed, so a Search is a plain
async function, and resuming a run means calling it again. A search takes randomness and time only from the session,
and calls its services one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol, TypeVar

from promptiter.agents.base import Agent
from promptiter.engine.comparison import Comparison, ValidatedProfile, Validator
from promptiter.engine.evaluations import Evaluations
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import Evaluation, get_best_value
from promptiter.policies.acceptance import AcceptancePolicy, AllOf, Protected
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.sequential import decide_sequentially
from promptiter.policies.stopping import (
    MaxRounds,
    Patience,
    Progress,
    StopDecision,
    StopPolicy,
    TargetScore,
    UserStop,
    stop_if,
)
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.codec import encode_candidate, from_plain, to_plain
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Event, EventType, Phase
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, digest
from traces.model import Json

T = TypeVar("T")


class Search(Protocol):
    """A search algorithm. The engine calls it once the baseline is validated, and again when a run is resumed."""

    async def search(self, session: Session) -> None:
        """Look for better profiles until `session.should_stop()`. Accepted candidates are kept, whatever is raised."""


class Session:
    """One run in progress, as its search sees it.

    `train` and `validation` are the cases of the search; `test` cases are used by the final test only. `targets` are
    the surfaces that may change, `snapshot` is the structure, `accepted` the best profile so far with its validation,
    and `rng` the only source of randomness.
    """

    def __init__(
        self,
        request: RunRequest,
        log: EventLog,
        *,
        agent: Agent,
        evaluator: Evaluator,
        checked: CheckedRequest,
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
    ) -> None:
        self.request = request
        self.agent = agent
        self.evaluator = evaluator
        self.snapshot: StructureSnapshot = agent.describe()
        self.train = checked.train
        self.validation = checked.validation
        self.test = checked.test
        self.targets = frozenset(checked.targets)
        self.reviewer = reviewer
        self.seed = evaluator.options.seed
        self.rng = Random(self.seed)
        self.evaluations = Evaluations(log, agent, evaluator)
        self.validator = Validator(self)
        self.stop: StopDecision | None = None
        self.meter = log.meter
        self._log = log
        self._interrupt = interrupt
        self._baseline: ValidatedProfile | None = None
        self._accepted: ValidatedProfile | None = None
        self.candidates_tried = 0
        self._rounds_without_acceptance = 0
        self._records = 0
        self.accepted_gain = 0.0
        self._stopping = MaxRounds(max(1, request.max_rounds)) | UserStop()
        if (until := request.stop or _default_stop(request)) is not None:
            self._stopping |= until
        self._acceptance: AcceptancePolicy = request.acceptance
        if request.protected:
            self._acceptance = AllOf(request.acceptance, Protected())

    @property
    def round(self) -> int:
        return self._log.round

    @property
    def accepted(self) -> ValidatedProfile:
        """The best profile so far; at first the initial profile."""
        assert self._accepted is not None, "the baseline is validated before a search starts"
        return self._accepted

    @property
    def baseline(self) -> ValidatedProfile:
        """The initial profile of the run."""
        assert self._baseline is not None, "the baseline is validated before a search starts"
        return self._baseline

    @property
    def baseline_score(self) -> float | None:
        """The objective of the initial profile on validation."""
        return None if self._baseline is None else self._baseline.validation.objective(self.request.objective)

    @property
    def best_score(self) -> float | None:
        """The objective of the best profile so far on validation."""
        return None if self._accepted is None else self._accepted.validation.objective(self.request.objective)

    @property
    def has_baseline(self) -> bool:
        """Whether the initial profile has been validated."""
        return self._accepted is not None

    @property
    def has_accepted(self) -> bool:
        """Whether a candidate has been accepted."""
        return self._accepted is not self._baseline

    def trace(self, trace_digest: str) -> ExecutionTrace:
        """Return a trace that an evaluation recorded."""
        return self.evaluator.trace_store.get(trace_digest)

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        return self.evaluator.gateway.redactor.redact_text(text)

    def report(self, problem: str) -> None:
        """Report a problem that the user should know of and that does not end the run."""
        self._log.problems.append(self.redact(problem))

    def candidate(self, patches: PatchSet) -> Profile:
        """Return the accepted profile with these patches. Only targets may change."""
        if strange := sorted(patches.surface_ids - self.targets):
            raise SetupError(f"a patch changes {strange[0]!r}, which is not a target of this run")
        return self.accepted.profile.apply(patches, self.snapshot)

    async def record(
        self,
        kind: EventType,
        shape: Any,
        work: Callable[[], Awaitable[Any]],
        *,
        request: Json = None,
        phase: Phase | None = None,
    ) -> Any:
        """Return the result of `work`, as a value of this shape, and record it; a resumed run reads it from the log.

        `request` is what the work depends on. When a run is resumed, it must be the same.
        """
        request_digest = digest(request)
        known = self._log.take(kind, request=request_digest)
        if known is None:
            plain = to_plain(await work(), shape)
            self._log.phase = phase or self._log.phase
            known = await self._log.append(kind, {"request": request_digest, "value": plain})
        self._records += 1
        self.rng.seed(f"{self.seed} after {self._records}")  # the same after a resume, which does not repeat the work
        return from_plain(shape, known.data["value"])

    async def record_value(self, kind: EventType, value: T, *, request: Json = None, phase: Phase | None = None) -> T:
        """Record a value, and return it as the log has it: without secrets."""

        async def known() -> T:
            return value

        recorded: T = await self.record(kind, type(value), known, request=request, phase=phase)
        return recorded

    async def note(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Record a fact that follows from earlier ones."""
        return await self._log.note(kind, data)

    async def record_budget_end(self, ended: BudgetEndedError) -> None:
        """Record that the budget ended the search or the ablation; the run continues with the next part."""
        await self.note("search_cut", {"cap": ended.cap, "message": self.redact(ended.message)})

    async def evaluate(
        self, eval_set: EvalSet, profile: Profile, *, phase: Phase, repeats: range | None = None
    ) -> Evaluation:
        """Run the cases under a profile. Each row is recorded at once, so a resumed run only runs the rest."""
        runs = None if repeats is None else list_case_runs(eval_set, repeats)
        return await self.evaluations.evaluate(eval_set, profile, phase=phase, runs=runs)

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record missing traces of an evaluation again; a resumed run may not have kept them."""
        await self.evaluations.restore_traces(evaluation, eval_set, profile)

    async def start(self, profile: Profile) -> None:
        """Validate the initial profile."""
        self._baseline = ValidatedProfile(profile, await self.evaluate(self.validation, profile, phase="baseline"))
        self._accepted = self._baseline

    async def begin_round(self) -> None:
        """Start the next round from the accepted profile."""
        if self.evaluations.is_busy:
            raise RuntimeError("an evaluation is still running; await it before the next round")
        self._log.round += 1
        self._log.phase = "train"
        await self.note("round_started", {"profile_digest": self.accepted.profile.digest})

    async def complete_round(self) -> None:
        await self.note("round_completed", {})

    async def validate(self, candidate: Profile) -> AcceptanceDecision:
        """Run a candidate on validation and let the policy decide. If accepted, it is the best profile from now on."""
        data, candidate = self._encode_candidate(candidate)
        if data["profile_digest"] == data["parent"]:
            return await self.reject(candidate, "it changes nothing")
        await self.note("candidate", data)
        comparison = Comparison(self.validator, candidate)
        answer = await decide_sequentially(self._acceptance, comparison.gather)
        decision = await self._record_decision(answer)
        self.candidates_tried += 1
        if decision.accepted:
            unseen = self.evaluator.build_evaluation((), self.validation, candidate)
            self.continue_from(candidate, comparison.first_validation or unseen)
            self.accepted_gain += decision.delta or 0.0
            self._rounds_without_acceptance = 0
        return decision

    def continue_from(self, profile: Profile, validation: Evaluation) -> None:
        """Make a profile the accepted one."""
        self._accepted = ValidatedProfile(profile, validation)

    async def reject(self, candidate: Profile, reason: str) -> AcceptanceDecision:
        """Reject a candidate before its validation is paid."""
        data, _ = self._encode_candidate(candidate)
        await self.note("candidate", data)
        self.candidates_tried += 1
        return await self.skip_round(reason)

    def _encode_candidate(self, candidate: Profile) -> tuple[dict[str, Json], Profile]:
        redact = self.evaluator.gateway.redactor.redact_known_json
        return encode_candidate(candidate, accepted=self.accepted.profile, structure=self.snapshot, redact=redact)

    async def skip_round(self, reason: str) -> AcceptanceDecision:
        """Record why this round has no candidate to validate."""
        return await self._record_decision(AcceptanceDecision(accepted=False, delta=None, reason=self.redact(reason)))

    async def _record_decision(self, answer: AcceptanceDecision) -> AcceptanceDecision:
        decision = await self.record_value("decision", answer, phase="validation")
        if not decision.accepted:
            self._rounds_without_acceptance += 1
        return decision

    async def should_stop(self) -> bool:
        """Return whether the stop policies end the run. `session.stop` has their reasons."""
        event = self._log.take("stop")
        if event is None:
            decision = self._stopping.decide(self._progress())
            measured = {"spent": to_plain(self.meter.spent)}
            event = await self._log.append("stop", {"value": to_plain(decision), "measured": measured})
        self.stop = from_plain(StopDecision, event.data["value"])
        return self.stop.stop

    def end(self, kind: str, text: str) -> None:
        """Stop the run for this reason, whatever the stop policies decide."""
        self.stop = stop_if(True, kind, text)

    def _progress(self) -> Progress:
        return Progress(
            round=self.round,
            rounds_without_acceptance=self._rounds_without_acceptance,
            best=self.accepted.validation,
            objective=self.request.objective,
            elapsed_s=self.meter.elapsed_s,
            evaluations=self.evaluations.paid,
            spent=self.meter.spent,
            user_stop=self._interrupt.reason,
            test_now=self._interrupt.test_now,
        )


def _default_stop(request: RunRequest) -> StopPolicy | None:
    """The stop policy of a request without one: a perfect score, or three rounds without an accepted candidate.

    Other goals than the score have none: their searches end when nothing is left to try.
    """
    if request.goal.kind != "score":
        return None
    return TargetScore(get_best_value(request.objective)) | Patience(3)
