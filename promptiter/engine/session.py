"""Session: the services that a search algorithm is given. Whatever it wants from the world, it asks for here.

Each service writes what it found into the event log, and answers from there when a run goes on: so a Search is a
plain async function, and resume is running it again. A search draws randomness and time from the session only, and
asks for one thing after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from promptiter.agents.base import Agent
from promptiter.engine.comparison import Accepted, Comparison, Comparisons
from promptiter.engine.evaluations import Evaluations
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.review import Reviewer
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import Evaluation, get_best_value
from promptiter.policies.acceptance import AcceptancePolicy, AllOf, Protected
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.sequential import decided
from promptiter.policies.stopping import MaxRounds, Patience, Progress, StopDecision, StopPolicy, TargetScore, UserStop
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.candidate_codec import data_of
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Event, EventType, Phase
from promptiter.runlog.meter import Meter
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, digest
from traces.model import Json

T = TypeVar("T")


class Search(Protocol):
    """A search algorithm. Called once by the engine, after the baseline was validated; and again when a run goes on."""

    async def search(self, session: Session) -> None:
        """Look for better profiles until the session says stop. What was accepted stays, whatever is raised."""


class Session:
    """One run in flight, as its search sees it.

    `train` and `validation` are the cases, `test` those that stay sealed until the run makes its claim, `targets` the
    surfaces that may change, `snapshot` the structure, `accepted` the best profile so far with its validation, `tried`
    how many candidates were, `rng` the only source of chance.
    """

    def __init__(
        self,
        request: RunRequest,
        log: EventLog,
        *,
        agent: Agent,
        evaluator: Evaluator,
        train: EvalSet,
        validation: EvalSet,
        targets: Sequence[str],
        test: EvalSet | None = None,
        seed: int,
        spending: Meter,
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
    ) -> None:
        self.request = request
        self.agent = agent
        self.evaluator = evaluator
        self.snapshot: StructureSnapshot = agent.describe()
        self.train = train
        self.validation = validation
        self.test = test
        self.targets = frozenset(targets)
        self.reviewer = reviewer
        self.seed = seed
        self.rng = Random(seed)
        self.evaluations = Evaluations(log, agent, evaluator)
        self.comparisons = Comparisons(self)
        self.stop: StopDecision | None = None
        self.spending = spending
        self._log = log
        self._interrupt = interrupt
        self._baseline: Accepted | None = None
        self._accepted: Accepted | None = None
        self.candidates_tried = 0
        self._rounds_without_acceptance = 0
        self._records = 0
        self.accepted_gain = 0.0
        self._stopping = MaxRounds(max(1, request.max_rounds)) | UserStop()
        if (until := request.stop or _until_done(request)) is not None:
            self._stopping |= until
        self._acceptance: AcceptancePolicy = request.acceptance
        if request.protected:
            self._acceptance = AllOf(request.acceptance, Protected())

    @property
    def round(self) -> int:
        return self._log.round

    @property
    def accepted(self) -> Accepted:
        """The best profile so far; at first the one that the run started with."""
        assert self._accepted is not None, "the baseline is validated before a search starts"
        return self._accepted

    @property
    def baseline(self) -> Accepted:
        """The profile that the run started with."""
        assert self._baseline is not None, "the baseline is validated before a search starts"
        return self._baseline

    @property
    def baseline_score(self) -> float | None:
        """Its objective, on validation."""
        return None if self._baseline is None else self._baseline.validation.objective(self.request.objective)

    @property
    def best_score(self) -> float | None:
        """The objective of the best profile so far, on validation."""
        return None if self._accepted is None else self._accepted.validation.objective(self.request.objective)

    @property
    def has_baseline(self) -> bool:
        """Whether the profile that the run started with has been validated."""
        return self._accepted is not None

    @property
    def has_accepted(self) -> bool:
        """Whether the best profile is another than the run started with."""
        return self._accepted is not self._baseline

    def trace(self, trace_digest: str) -> ExecutionTrace:
        """A trace that an evaluation recorded."""
        return self.evaluator.trace_store.get(trace_digest)

    def redacted(self, text: str) -> str:
        """A text without secrets, as it may be written down."""
        return self.evaluator.gateway.redactor.redact_text(text)

    def report(self, problem: str) -> None:
        """Tell of something that the user should know and that does not end the run."""
        self._log.problems.append(self.redacted(problem))

    def candidate(self, patches: PatchSet) -> Profile:
        """The accepted profile with these patches on top. Only targets may change."""
        if strange := sorted(patches.surface_ids - self.targets):
            raise SetupError(f"a patch changes {strange[0]!r}, which is no target of this run")
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
        """What `work` gives, as a value of this shape, kept in the log; from the log if it has it already.

        `request` is what the work depends on: when a run goes on, it must be the same.
        """
        asked = digest(request)
        known = self._log.take(kind, request=asked)
        if known is None:
            plain = to_plain(await work(), shape)
            self._log.phase = phase or self._log.phase
            known = await self._log.append(kind, {"request": asked, "value": plain})
        self._records += 1
        self.rng.seed(f"{self.seed} after {self._records}")  # whether or not the work was done, and drew
        return from_plain(shape, known.data["value"])

    async def record_known(self, kind: EventType, value: T, *, request: Json = None, phase: Phase | None = None) -> T:
        """The same for a value that is at hand: it is given back as the log has it, without secrets."""

        async def known() -> T:
            return value

        recorded: T = await self.record(kind, type(value), known, request=request, phase=phase)
        return recorded

    async def note(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Write down a fact that follows from what is known already."""
        return await self._log.note(kind, data)

    async def cut(self, ended: BudgetEndedError) -> None:
        """Write down that the budget ended what was going on; the run goes on with what comes after it."""
        await self.note("search_cut", {"cap": ended.cap, "told": self.redacted(str(ended))})

    async def evaluate(
        self, eval_set: EvalSet, profile: Profile, *, phase: Phase, repeats: range | None = None
    ) -> Evaluation:
        """Run the cases under a profile. Each row is kept as it comes: a run that goes on later runs only the rest."""
        runs = None if repeats is None else list_case_runs(eval_set, repeats)
        return await self.evaluations.evaluate(eval_set, profile, phase=phase, runs=runs)

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Make sure that the traces of an evaluation are there, also when a run goes on that lost them."""
        await self.evaluations.restore_traces(evaluation, eval_set, profile)

    async def start(self, profile: Profile) -> None:
        """Validate the profile that the run starts with."""
        self._baseline = Accepted(profile, await self.evaluate(self.validation, profile, phase="baseline"))
        self._accepted = self._baseline

    async def begin_round(self) -> None:
        if self.evaluations.is_busy:
            raise RuntimeError("a round begins when the evaluations of the last one are done; await them first")
        self._log.round += 1
        self._log.phase = "train"
        await self.note("round_started", {"profile_digest": self.accepted.profile.digest})

    async def complete_round(self) -> None:
        await self.note("round_completed", {})

    async def validate(self, candidate: Profile) -> AcceptanceDecision:
        """Run a candidate on the validation set and let the policy decide; what it accepts is the best from now on."""
        data, candidate = self._as_written(candidate)
        if data["profile_digest"] == data["parent"]:
            return await self.reject(candidate, "it changes nothing")
        await self.note("candidate", data)
        comparison = Comparison(self.comparisons, candidate)
        answer = await decided(self._acceptance, comparison.gather)
        decision = await self._decided(answer)
        self.candidates_tried += 1
        if decision.accepted:
            unseen = self.evaluator.build_evaluation((), self.validation, candidate)
            self.continue_from(candidate, comparison.opening or unseen)
            self.accepted_gain += decision.delta or 0.0
            self._rounds_without_acceptance = 0
        return decision

    def continue_from(self, profile: Profile, validation: Evaluation) -> None:
        """Make a profile the working one."""
        self._accepted = Accepted(profile, validation)

    async def reject(self, candidate: Profile, reason: str) -> AcceptanceDecision:
        """Give a candidate up before validation is paid."""
        data, _ = self._as_written(candidate)
        await self.note("candidate", data)
        self.candidates_tried += 1
        return await self.pass_over(reason)

    def _as_written(self, candidate: Profile) -> tuple[dict[str, Json], Profile]:
        safe = self.evaluator.gateway.redactor.redact_known_json
        return data_of(candidate, accepted=self.accepted.profile, structure=self.snapshot, safe=safe)

    async def pass_over(self, reason: str) -> AcceptanceDecision:
        """Say why a round has no candidate worth trying."""
        return await self._decided(AcceptanceDecision(accepted=False, delta=None, reason=self.redacted(reason)))

    async def _decided(self, answer: AcceptanceDecision) -> AcceptanceDecision:
        decision = await self.record_known("decision", answer, phase="validation")
        if not decision.accepted:
            self._rounds_without_acceptance += 1
        return decision

    async def should_stop(self) -> bool:
        """Ask the stop policies; once they have said stop, `session.stop` has the reasons."""
        event = self._log.take("stop")
        if event is None:
            decision = self._stopping.decide(self._progress())
            measured = {"spent": to_plain(self.spending.spent)}
            event = await self._log.append("stop", {"value": to_plain(decision), "measured": measured})
        self.stop = from_plain(StopDecision, event.data["value"])
        return self.stop.stop

    def _progress(self) -> Progress:
        return Progress(
            round=self.round,
            rounds_without_acceptance=self._rounds_without_acceptance,
            best=self.accepted.validation,
            objective=self.request.objective,
            elapsed_s=self.spending.elapsed_s,
            evaluations=self.evaluations.paid,
            spent=self.spending.spent,
            user_stop=self._interrupt.why,
            test_now=self._interrupt.test_now,
        )


def _until_done(request: RunRequest) -> StopPolicy | None:
    """What ends a run if nobody says: nothing is left to gain, or nothing is gained any more.

    Of a goal besides the score only its search knows that.
    """
    if request.goal.kind != "score":
        return None
    return TargetScore(get_best_value(request.objective)) | Patience(3)
