"""Session: the services of a run that a search algorithm uses. It asks the session for everything else.

Each service records its results in the event log and answers from there when a run is resumed. So a Search is a plain
async function, and resuming a run means calling it again. A search takes randomness and time from the session only and
makes one request at a time; several evaluations at once are one request (`evaluate_many`).

Of validation, a search learns only which candidates were accepted. That is why the validation cases can still show, at
the end, whether a gain holds for new cases. A search that needs more calls `read_validation`, which is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import NoReturn, Protocol, TypeVar

from promptiter.agents.base import Agent
from promptiter.engine.active_run import ActiveRun
from promptiter.engine.case_memory import remember_search
from promptiter.engine.comparison import Comparison
from promptiter.engine.edit_guard import EditGuard, build_skipped_rows
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.engine.hidden_validation import SessionProfile, ValidationRecord, build_hidden_error
from promptiter.engine.request import RunRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.session_checks import check_candidate, check_event, check_pairs, check_train_pair, includes_case
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.sequential import decide_sequentially
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.events import Payload, Phase
from promptiter.runlog.payloads import (
    CandidateDecided,
    CandidateProposed,
    RoundCompleted,
    RoundStarted,
    ValidationRead,
)
from promptiter.runlog.results import RunShape
from promptiter.runlog.run_state import ENGINE_PHASES
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace
from traces.model import Json

P = TypeVar("P", bound=Payload)


class Search(Protocol):
    """A search algorithm. The engine calls it once the baseline is validated, and again when a run is resumed."""

    async def search(self, session: Session) -> None:
        """Look for better profiles until `session.should_stop()`. Accepted candidates are kept, whatever is raised."""


class Session:
    """One run in progress, as its search sees it.

    `train` are the cases that the search learns from. `targets` are the surfaces that may change, `snapshot` is the
    structure, `accepted` the best profile so far, `baseline` the initial one, and `rng` the only source of randomness.
    `request` is what the run was asked for, without its validation and test cases. All fields are read-only.
    """

    def __init__(self, run: ActiveRun) -> None:
        self.request: RunRequest = replace(run.request, validation=None, test=None)
        self.agent: Agent = run.agent
        self.evaluator: Evaluator = run.evaluator
        self.snapshot: StructureSnapshot = run.snapshot
        self.shape: RunShape = run.shape
        self.targets: frozenset[str] = run.targets
        self.reviewer: Reviewer | None = run.reviewer
        self.seed: int = run.seed
        self.rng: Random = run.rng
        self._run = run
        self._guard = EditGuard(run.request.edit_limits, run.snapshot, baseline=run.baseline.profile)
        self._has_read_validation = False
        self._is_ready = True

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and "_is_ready" in self.__dict__:
            raise AttributeError(f"{name!r} of a session is read-only; a run changes through the calls of its search")
        super().__setattr__(name, value)

    @property
    def validation(self) -> NoReturn:
        raise build_hidden_error("validation")

    @property
    def state(self) -> NoReturn:
        raise build_hidden_error("state")

    @property
    def round(self) -> int:
        return self._run.round

    @property
    def train(self) -> EvalSet:
        """The train cases, with the teacher's answers if there is a teacher."""
        return self._run.train

    @property
    def accepted(self) -> SessionProfile:
        """The best profile so far; at first the initial profile."""
        return SessionProfile(self._run.accepted.profile)

    @property
    def baseline(self) -> SessionProfile:
        """The initial profile of the run."""
        return SessionProfile(self._run.baseline.profile)

    async def read_validation(self) -> ValidationRecord:
        """Return the validation cases and all results on them, and record that the search has read them.

        The validation cases can then no longer show a gain for new cases: without a test set, the verdict is at most
        `improved_on_validation`.
        """
        if not self._has_read_validation:
            await remember_search(self._run)
            await self._run.note(ValidationRead())
            self._has_read_validation = True
        return ValidationRecord(eval_set=self._run.validation, state=self._run.state)

    async def trace(self, trace_digest: str) -> ExecutionTrace:
        """Return a trace that an evaluation recorded."""
        return await self._run.trace(trace_digest)

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        return self._run.redact(text)

    def report(self, problem: str) -> None:
        """Report a problem that the user should know of and that does not end the run."""
        self._run.report(problem)

    def candidate(self, patches: PatchSet, *, parent: Profile | None = None) -> Profile:
        """Return the accepted profile, or another parent, with these patches. Only targets may change."""
        self._check_targets(patches.surface_ids)
        return (parent or self.accepted.profile).apply(patches, self.snapshot)

    def find_hidden_repeat(self, examples: Json) -> str:
        """Say which message of few-shot examples repeats a validation or test case; empty if none does.

        The answer does not name the case. `validate` rejects candidates with such examples.
        """
        return self._run.hidden_cases.find_repeat(examples)

    async def record(
        self, kind: type[P], work: Callable[[], Awaitable[P]], *, request: Json = None, phase: Phase | None = None
    ) -> P:
        """Return the result of `work` and record it as an event; a resumed run reads it from the log.

        `request` is what the work depends on. When a run is resumed, it must be the same.
        """
        check_event(kind)
        return await self._run.record(kind, work, request=request, phase=phase)

    async def note(self, payload: P, *, request: Json = None, phase: Phase | None = None) -> P:
        """Record a fact that follows from earlier ones, and return it as the log has it: without secrets."""
        check_event(type(payload))
        return await self._run.note(payload, request=request, phase=phase)

    async def evaluate(
        self,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
        repeats: range | None = None,
        known: Sequence[CaseRow] = (),
    ) -> Evaluation:
        """Run the cases under a profile. Each row is recorded at once, so a resumed run only runs the rest.

        Rows that are `known`, of an earlier evaluation of these cases under this profile, are not run again.
        """
        [evaluation] = await self._evaluate([(eval_set, profile)], phase=phase, repeats=repeats, known=known)
        return evaluation

    async def evaluate_many(
        self, pairs: Sequence[tuple[EvalSet, Profile]], *, phase: Phase, repeats: range | None = None
    ) -> list[Evaluation]:
        """Run several evaluations at once, under one concurrency limit; the results are in the order of the pairs.

        `phase` says what they are for, in a word of the search's own. Test cases are refused. Validation cases count as
        read (see `read_validation`).
        """
        return await self._evaluate(pairs, phase=phase, repeats=repeats)

    async def _evaluate(
        self,
        pairs: Sequence[tuple[EvalSet, Profile]],
        *,
        phase: Phase,
        repeats: range | None,
        known: Sequence[CaseRow] = (),
    ) -> list[Evaluation]:
        if phase in ENGINE_PHASES:
            raise SetupError(f"the phase {phase!r} is the engine's own; name another, such as 'screening'")
        check_pairs(pairs, repeats)
        await self._guard_cases([eval_set for eval_set, _ in pairs])
        may_know = phase == "train" and repeats is None
        requests = [
            EvaluationRequest(
                eval_set=eval_set,
                profile=profile,
                phase=phase,
                runs=None if repeats is None else list_case_runs(eval_set, repeats),
                kept=known or (self._find_known_rows(eval_set, profile) if may_know else ()),
            )
            if (excess := self._guard.find_excess(profile)) is None
            else self._skip_evaluation(eval_set, profile, excess, phase=phase, repeats=repeats)
            for eval_set, profile in pairs
        ]
        with self._run.one_request.make():
            return await self._run.evaluations.evaluate_many(requests)

    def _skip_evaluation(
        self, eval_set: EvalSet, profile: Profile, excess: str, *, phase: Phase, repeats: range | None
    ) -> EvaluationRequest:
        """An evaluation of a candidate that exceeds the edit limits: rows with this error, and nothing to run."""
        runs = list_case_runs(eval_set, range(self.evaluator.options.repeats) if repeats is None else repeats)
        rows = build_skipped_rows(excess, runs, eval_set, self.evaluator)
        return EvaluationRequest(eval_set=eval_set, profile=profile, phase=phase, runs=(), kept=rows)

    def find_excess(self, candidate: Profile) -> str | None:
        """Say which edit limit a proposed candidate exceeds; None if it keeps to them. It would be rejected."""
        return self._guard.find_excess(candidate)

    def reserve_repeats(self, count: int) -> range:
        """Return numbers of repeats that no evaluation of this run has used yet, or will use unasked."""
        return self._run.validator.reserve_repeats(count)

    async def _guard_cases(self, eval_sets: Sequence[EvalSet]) -> None:
        """Refuse test cases, and record that validation cases are read."""
        run = self._run
        if run.test is not None and includes_case(eval_sets, run.test, known=self.train):
            raise SetupError("a search may not run test cases: only the final test does; evaluate train cases")
        if run.shape == "two_sets" and includes_case(eval_sets, run.validation, known=self.train):
            await self.read_validation()

    def _find_known_rows(self, eval_set: EvalSet, profile: Profile) -> tuple[CaseRow, ...]:
        """The rows of the baseline, if its validation ran these cases under the same profile."""
        run = self._run
        validated = {case.id: case for case in run.validation.cases}
        is_same = all(validated.get(case.id) is case for case in eval_set.cases)
        if not is_same or profile.digest != run.baseline.profile.digest:
            return ()
        return tuple(row for row in run.baseline.validation.rows if row.case_id in eval_set.by_id)

    def count_replays(self, replays: int) -> None:
        """Count case runs that the search made itself, without `evaluate`."""
        self._run.evaluations.count_replays(replays)

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record missing traces of an evaluation again; a resumed run may not have kept them."""
        await self._run.evaluations.restore_traces(evaluation, eval_set, profile)

    async def begin_round(self) -> None:
        """Start the next round from the accepted profile."""
        with self._run.one_request.make():
            self._run.log.round += 1
            await self._run.note(RoundStarted(profile_digest=self.accepted.profile.digest), phase="train")

    async def complete_round(self) -> None:
        await self._run.note(RoundCompleted())

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
        await self._run.note(
            CandidateProposed(
                profile_digest=safe.digest,
                parents=tuple(dict.fromkeys(each.digest for each in made_from)),
                patches=patches,
                other_values={name: value for name, value in values.items() if name not in patches.surface_ids},
            ),
            request=[safe.digest, [each.digest for each in made_from]],
        )
        self._guard.note_parents(safe, made_from)
        return safe

    async def validate(
        self,
        candidate: Profile | PatchSet,
        *,
        parents: Sequence[Profile] = (),
        known: Sequence[CaseRow] = (),
        train: tuple[Evaluation, Evaluation] | None = None,
        compares_records: bool = False,
    ) -> AcceptanceDecision:
        """Run a candidate on validation and let the policy decide. If accepted, it is the best profile from now on.

        The search learns whether it was accepted, and no figure. See `propose` for `parents`; a candidate that this
        round has proposed already needs none. Rows that are `known`, because the search ran all validation cases under
        this candidate, are not run again: they are compared with the record of the accepted profile on the same
        repeats. If the search learns from the validation cases, that record chose what was changed, so both run again,
        unless the search `compares_records`: then a lucky record may be accepted, which the final test finds out.

        `train` are evaluations that the search made of the accepted profile and of this candidate, on the same train
        cases and repeats. A policy that asks for train cases gets them instead of new runs.
        """
        with self._run.one_request.make():
            profile = await self._propose_once(candidate, parents)
            if profile.digest == self.accepted.profile.digest:
                return await self._record_rejection("it changes nothing", profile)
            if train is not None:
                check_train_pair(train, accepted=self.accepted.profile, candidate=profile)
            baseline, hidden = self.baseline.profile, self._run.hidden_cases
            if excess := self._guard.find_excess(profile):
                return await self._record_rejection(excess, profile)
            if repeat := hidden.find_repeat_of_candidate(profile, baseline=baseline, structure=self.snapshot):
                return await self._record_rejection(repeat, profile)
            await remember_search(self._run)
            comparison = Comparison(
                self._run.validator, profile, known=known, train=train, compares_records=compares_records
            )
            decision = await decide_sequentially(self._run.acceptance, comparison.gather)
            return (await self._record_decision(decision, profile, comparison.record)).without_figures

    async def reject(
        self, candidate: Profile | PatchSet, reason: str, *, parents: Sequence[Profile] = ()
    ) -> AcceptanceDecision:
        """Reject a candidate before its validation is paid. If it exceeds the edit limits, that is the reason."""
        with self._run.one_request.make():
            profile = await self._propose_once(candidate, parents)
            return await self._record_rejection(self._guard.find_excess(profile) or reason, profile)

    async def skip_round(self, reason: str) -> AcceptanceDecision:
        """Record why this round has no candidate to validate."""
        self._check_round()
        return await self._record_rejection(reason, None)

    async def _propose_once(self, candidate: Profile | PatchSet, parents: Sequence[Profile]) -> Profile:
        current = self._run.state.round
        profile = self._build_profile(candidate, parents)
        for each in () if current is None else current.candidates:
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
        return (await self._run.note(decided, request=name, phase="validation")).decision

    async def should_stop(self) -> bool:
        """Return whether the stop policies end the run."""
        return await self._run.should_stop()

    def _check_round(self) -> None:
        if self.round == 0:
            raise RuntimeError("a candidate belongs to a round; call session.begin_round first")
