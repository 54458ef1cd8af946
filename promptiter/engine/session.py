"""Session: the services of a run that a search algorithm uses. It asks the session for everything else.

Each service records its results in the event log and answers from there when a run is resumed. So a Search is a plain
async function, and resuming a run means calling it again. A search takes randomness and time from the session only and
makes one request at a time; several evaluations at once are one request (`evaluate_many`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Protocol, TypeVar

from promptiter.agents.base import Agent
from promptiter.engine.comparison import Comparison, Validator
from promptiter.engine.evaluations import EvaluationRequest, Evaluations
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.one_request import OneRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.session_checks import check_candidate, check_pairs
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.acceptance import protect_cases
from promptiter.policies.evidence import AcceptanceDecision, EvidenceRecord
from promptiter.policies.sequential import decide_sequentially
from promptiter.policies.stopping import Progress, complete_stop
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Payload, Phase, check_payload_class
from promptiter.runlog.payloads import (
    BudgetEnded,
    CandidateDecided,
    CandidateProposed,
    RoundCompleted,
    RoundStarted,
    StopDecided,
    StopMeasured,
)
from promptiter.runlog.run_state import ENGINE_PHASES, RunState, ValidatedProfile
from promptiter.wording import shorten
from traces import ExecutionTrace, digest
from traces.model import Json

P = TypeVar("P", bound=Payload)


class Search(Protocol):
    """A search algorithm. The engine calls it once the baseline is validated, and again when a run is resumed."""

    async def search(self, session: Session) -> None:
        """Look for better profiles until `session.should_stop()`. Accepted candidates are kept, whatever is raised."""


class Session:
    """One run in progress, as its search sees it.

    `train` and `validation` are the cases of the search, the same ones unless the `shape` of the run is two sets;
    `test` cases are used by the final test only. `targets` are the surfaces that may change, `snapshot` is the
    structure, `accepted` the best profile so far with its validation, and `rng` the only source of randomness. All
    fields are read-only.
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
    ) -> None:
        self.request = request = checked.request
        self.agent = agent
        self.evaluator = evaluator
        self.snapshot = checked.snapshot
        self.shape = checked.shape
        self.test = checked.test
        self.targets = frozenset(checked.targets)
        self.reviewer = reviewer
        self.seed = evaluator.seed
        self.rng = Random(self.seed)
        self.evaluations = Evaluations(log, agent, evaluator)
        self.validator = Validator(self)
        self.meter = log.meter
        self._checked = checked
        self._log = log
        self._interrupt = interrupt
        self._records = 0
        self._one_request = OneRequest()
        self._stopping = complete_stop(
            request.stop,
            max_rounds=request.max_rounds,
            objective=request.objective,
            is_for_score=request.goal.kind == "score",
        )
        self._acceptance = protect_cases(request.acceptance, request.protected)
        self._is_ready = True

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and "_is_ready" in self.__dict__:
            raise AttributeError(f"{name!r} of a session is read-only; a run changes through the calls of its search")
        super().__setattr__(name, value)

    @property
    def state(self) -> RunState:
        """The run after the events so far."""
        return self._log.state

    @property
    def round(self) -> int:
        return self._log.round

    @property
    def train(self) -> EvalSet:
        """The train cases, with the teacher's answers if there is a teacher."""
        references = self.state.references
        if self.shape != "two_sets":
            return self.validation
        return self._checked.train if references is None else references.train.eval_set

    @property
    def validation(self) -> EvalSet:
        """The validation cases, with the teacher's answers if there is a teacher."""
        references = self.state.references
        return self._checked.validation if references is None else references.validation.eval_set

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

    async def trace(self, trace_digest: str) -> ExecutionTrace:
        """Return a trace that an evaluation recorded."""
        return await self.evaluator.trace_store.get(trace_digest)

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        return self.evaluator.gateway.redactor.redact_text(text)

    def report(self, problem: str) -> None:
        """Report a problem that the user should know of and that does not end the run."""
        self._log.problems.append(self.redact(problem))

    def candidate(self, patches: PatchSet, *, parent: Profile | None = None) -> Profile:
        """Return the accepted profile, or another parent, with these patches. Only targets may change."""
        self._check_targets(patches.surface_ids)
        return (parent or self.accepted.profile).apply(patches, self.snapshot)

    async def record(
        self, kind: type[P], work: Callable[[], Awaitable[P]], *, request: Json = None, phase: Phase | None = None
    ) -> P:
        """Return the result of `work` and record it as an event; a resumed run reads it from the log.

        `request` is what the work depends on. When a run is resumed, it must be the same.
        """
        check_payload_class(kind)
        request_digest = digest(request)
        with self._one_request.make():
            known = await self._log.take(kind, request=request_digest)
            if known is None:
                self.evaluator.gateway.check_stop()
                with self._one_request.work():
                    payload = await work()
                if not isinstance(payload, kind):
                    raise SetupError(f"the work of a record returned {shorten(payload)}; return a {kind.__qualname__}")
                self._log.phase = phase or self._log.phase
                known = await self._log.append(payload, request=request_digest)
        self._records += 1
        self.rng.seed(f"{self.seed} after {self._records}")  # the same after a resume, which does not repeat the work
        return known

    async def note(self, payload: P, *, request: Json = None, phase: Phase | None = None) -> P:
        """Record a fact that follows from earlier ones, and return it as the log has it: without secrets."""
        with self._one_request.make():
            self._log.phase = phase or self._log.phase
            return await self._log.note(payload, request=None if request is None else digest(request))

    async def record_budget_end(self, ended: BudgetEndedError) -> None:
        """Record that the budget ended the search or the ablation; the run continues with the next part."""
        await self.note(BudgetEnded(cap=ended.cap, message=self.redact(ended.message)))

    async def evaluate(
        self, eval_set: EvalSet, profile: Profile, *, phase: Phase, repeats: range | None = None
    ) -> Evaluation:
        """Run the cases under a profile. Each row is recorded at once, so a resumed run only runs the rest."""
        [evaluation] = await self.evaluate_many([(eval_set, profile)], phase=phase, repeats=repeats)
        return evaluation

    async def evaluate_many(
        self, pairs: Sequence[tuple[EvalSet, Profile]], *, phase: Phase, repeats: range | None = None
    ) -> list[Evaluation]:
        """Run several evaluations at once, under one concurrency limit; the results are in the order of the pairs.

        `phase` says what they are for, in a word of the search's own.
        """
        if phase in ENGINE_PHASES:
            raise SetupError(f"the phase {phase!r} is the engine's own; name another, such as 'screening'")
        check_pairs(pairs, repeats)
        requests = [
            EvaluationRequest(
                eval_set=eval_set,
                profile=profile,
                phase=phase,
                runs=None if repeats is None else list_case_runs(eval_set, repeats),
                kept=self._find_known_rows(eval_set, profile) if phase == "train" and repeats is None else (),
            )
            for eval_set, profile in pairs
        ]
        with self._one_request.make():
            return await self.evaluations.evaluate_many(requests)

    def _find_known_rows(self, eval_set: EvalSet, profile: Profile) -> tuple[CaseRow, ...]:
        """The rows of the baseline, if its validation ran the same cases under the same profile."""
        is_same = eval_set is self.validation and profile.digest == self.baseline.profile.digest
        return self.baseline.validation.rows if is_same else ()

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record missing traces of an evaluation again; a resumed run may not have kept them."""
        await self.evaluations.restore_traces(evaluation, eval_set, profile)

    async def begin_round(self) -> None:
        """Start the next round from the accepted profile."""
        with self._one_request.make():
            self._log.round += 1
            await self.note(RoundStarted(profile_digest=self.accepted.profile.digest), phase="train")

    async def complete_round(self) -> None:
        await self.note(RoundCompleted())

    async def propose(
        self, candidate: Profile | PatchSet, *, parents: Sequence[Profile] = (), reason: str = ""
    ) -> Profile:
        """Record a candidate, and return its profile as it is recorded: without secrets.

        `parents` are the profiles that it was made from, by default the accepted one. A patch set changes the first of
        them. A profile's changes to the first of them are recorded with this `reason`.
        """
        return await self._propose(candidate, self._build_profile(candidate, parents), parents, reason)

    async def _propose(
        self, candidate: Profile | PatchSet, profile: Profile, parents: Sequence[Profile], reason: str = ""
    ) -> Profile:
        self._check_round()
        made_from = list(parents) or [self.accepted.profile]
        values = self.evaluator.gateway.redactor.redact_known_json(dict(profile.overrides))
        safe = Profile.of(self.snapshot, values)
        if isinstance(candidate, PatchSet):
            patches = candidate
        else:
            patches = made_from[0].build_patches(safe, self.snapshot, reason=reason)
        await self.note(
            CandidateProposed(
                profile_digest=safe.digest,
                parents=tuple(dict.fromkeys(each.digest for each in made_from)),
                patches=patches,
                other_values={name: value for name, value in values.items() if name not in patches.surface_ids},
            ),
            request=[safe.digest, [each.digest for each in made_from]],
        )
        return safe

    async def validate(self, candidate: Profile | PatchSet, *, parents: Sequence[Profile] = ()) -> AcceptanceDecision:
        """Run a candidate on validation and let the policy decide. If accepted, it is the best profile from now on.

        See `propose` for `parents`; a candidate that this round has proposed already needs none.
        """
        with self._one_request.make():
            profile = await self._propose_once(candidate, parents)
            if profile.digest == self.accepted.profile.digest:
                return await self._record_rejection("it changes nothing", profile)
            comparison = Comparison(self.validator, profile)
            decision = await decide_sequentially(self._acceptance, comparison.gather)
            return await self._record_decision(decision, profile, comparison.record)

    async def reject(
        self, candidate: Profile | PatchSet, reason: str, *, parents: Sequence[Profile] = ()
    ) -> AcceptanceDecision:
        """Reject a candidate before its validation is paid."""
        with self._one_request.make():
            return await self._record_rejection(reason, await self._propose_once(candidate, parents))

    async def skip_round(self, reason: str) -> AcceptanceDecision:
        """Record why this round has no candidate to validate."""
        self._check_round()
        return await self._record_rejection(reason, None)

    async def _propose_once(self, candidate: Profile | PatchSet, parents: Sequence[Profile]) -> Profile:
        known = () if self.state.round is None else self.state.round.candidates
        profile = self._build_profile(candidate, parents)
        for each in known:
            if each.profile.digest == profile.digest and each.decision is None:
                return each.profile
        return await self._propose(candidate, profile, parents)

    def _build_profile(self, candidate: Profile | PatchSet, parents: Sequence[Profile]) -> Profile:
        """Return the profile of a candidate, checked."""
        check_candidate(candidate, parents)
        for parent in parents:
            parent.check(self.snapshot)
        if isinstance(candidate, PatchSet):
            return self.candidate(candidate, parent=parents[0] if parents else None)
        candidate.check(self.snapshot)
        changes = self.baseline.profile.changes(candidate, self.snapshot)
        self._check_targets(change.surface_id for change in changes)
        return candidate

    def _check_targets(self, surface_ids: Iterable[str]) -> None:
        if strange := sorted(set(surface_ids) - self.targets):
            raise SetupError(f"a candidate changes {strange[0]!r}, which is not a target of this run")

    async def _record_rejection(self, reason: str, candidate: Profile | None) -> AcceptanceDecision:
        decision = AcceptanceDecision(accepted=False, delta=None, reason=self.redact(reason))
        return await self._record_decision(decision, candidate, None)

    async def _record_decision(
        self, decision: AcceptanceDecision, candidate: Profile | None, evidence: EvidenceRecord | None
    ) -> AcceptanceDecision:
        name = None if candidate is None else candidate.digest
        decided = CandidateDecided(candidate=name, decision=decision, evidence=evidence)
        return (await self.note(decided, request=name, phase="validation")).decision

    async def should_stop(self) -> bool:
        """Return whether the stop policies end the run. `session.state.run.stop` has their reasons."""
        with self._one_request.make():
            decided = await self._log.take(StopDecided)
            if decided is None:
                decision = self._stopping.decide(self._progress())
                measured = StopMeasured(spent=self.meter.spent)
                decided = await self._log.append(StopDecided(decision=decision, measured=measured))
            return decided.decision.stop

    async def cancel_request(self) -> bool:
        """Cancel a request that the search has left in progress; False if there is none. The engine calls this."""
        return await self._one_request.cancel()

    def _check_round(self) -> None:
        if self.round == 0:
            raise RuntimeError("a candidate belongs to a round; call session.begin_round first")

    def _progress(self) -> Progress:
        return Progress(
            round=self.round,
            rounds_without_acceptance=self.state.rounds_without_acceptance,
            best=self.accepted.validation,
            objective=self.request.objective,
            elapsed_s=self.meter.elapsed_s,
            evaluations=self.evaluations.paid,
            spent=self.meter.spent,
            user_stop=self._interrupt.reason,
            test_now=self._interrupt.test_now,
        )
