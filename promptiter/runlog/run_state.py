"""RunState: the state of a run after some of its events. Session, verdict and `fold` all read it.

It holds the run so far and the current round only, whatever the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from promptiter.errors import JournalError
from promptiter.evaluation.result import Evaluation, merge_evaluations
from promptiter.evaluation.stats.validation_use import ValidationUse, find_acceptance_share
from promptiter.evaluation.surface_reads import find_unread
from promptiter.policies.crashes import has_crashed
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.pairing import leave_out_lost_pairs
from promptiter.policies.stop_decision import StopDecision
from promptiter.profile import Profile
from promptiter.runlog.candidates import ValidatedProfile, build_candidate
from promptiter.runlog.case_uses import CaseUseHistory
from promptiter.runlog.details import DetailsPayload
from promptiter.runlog.events import ENGINE_EVENTS, Event, Payload, UnknownPayload
from promptiter.runlog.payloads import (
    AblationFinished,
    BudgetEnded,
    BudgetReserved,
    CandidateDecided,
    CandidateProposed,
    CaseFinished,
    CasesUsed,
    EvaluationFinished,
    EvaluationStarted,
    FinalTestBegun,
    FinalTestFinished,
    OpenedTestSet,
    ReadsAudited,
    ReferencesWritten,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunConcluded,
    RunStarted,
    StopDecided,
    ValidationRead,
    ValidationReader,
)
from promptiter.runlog.recorded_rows import RecordedRows
from promptiter.runlog.result_draft import ResultDraft
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult, SearchNote
from promptiter.runlog.round_index import RoundIndex
from promptiter.runlog.round_state import RoundState

OUTSIDE_ROUNDS = frozenset(("baseline", "ablation", "final_test", "test"))
"""Phases before the first round and after the last."""

ENGINE_PHASES = OUTSIDE_ROUNDS | {"validation", "train_again"}
"""Phases of evaluations that the engine makes. Searches name others."""


class RunState:
    """A run after some events. It starts before the first event, or before any round, given the run until then.

    Only events change it: its fields are read-only.
    """

    def __init__(self, run: RunResult | None = None) -> None:
        self._index = RoundIndex()
        self._round: RoundState | None = None
        self._baseline: ValidatedProfile | None = None
        self._accepted: ValidatedProfile | None = None
        self._accepted_train: Evaluation | None = None
        self._references: ReferencesWritten | None = None
        self._candidates_tried = 0
        self._rounds_without_acceptance = 0
        self._accepted_gain = 0.0
        self._validation_reader: ValidationReader | None = None
        self._validation_use = ValidationUse()
        self._use_id = ""
        self._draft = ResultDraft(run)
        self._stop: StopDecision | None = None
        self._unread = frozenset(() if run is None else run.unread_surfaces)
        self._counted_round: RoundState | None = None
        self._rows = RecordedRows()
        self._again: dict[str, Evaluation] = {}
        self._crashed: set[str] = set()

    @property
    def run(self) -> RunResult:
        """The run so far, without its rounds."""
        return self._draft.build()

    @property
    def round(self) -> RoundResult | None:
        """The current round so far; None before the first."""
        return None if self._round is None else self._round.result

    @property
    def baseline(self) -> ValidatedProfile | None:
        """The initial profile; None before it is validated."""
        return self._baseline

    @property
    def accepted(self) -> ValidatedProfile | None:
        """The best profile so far; None before the baseline is validated."""
        return self._accepted

    @property
    def accepted_train(self) -> Evaluation | None:
        """The train cases under the best profile so far, if the search compares candidates with it."""
        return self._accepted_train

    @property
    def index(self) -> RoundIndex:
        """Where the rounds are in the journal."""
        return self._index

    @property
    def accepted_gain(self) -> float:
        """The total gain of all accepted candidates."""
        return self._accepted_gain

    @property
    def candidates_tried(self) -> int:
        return self._candidates_tried

    @property
    def crashes(self) -> int:
        """The number of candidates that crashed, in whatever evaluation."""
        return len(self._crashed)

    @property
    def rounds_without_acceptance(self) -> int:
        return self._rounds_without_acceptance

    @property
    def references(self) -> ReferencesWritten | None:
        """The eval sets with a teacher's answers, if there is a teacher."""
        return self._references

    @property
    def use_id(self) -> str:
        """The id under which the uses of the run's cases are kept."""
        return self._use_id

    @property
    def validation_use(self) -> ValidationUse:
        """The answers that validation gave to the search."""
        return self._validation_use

    @property
    def validation_reader(self) -> ValidationReader | None:
        """Who has read validation cases or results on them during the search; None if no one did."""
        return self._validation_reader

    @property
    def has_accepted(self) -> bool:
        """Whether the best profile is not the initial one."""
        return self._accepted is not self._baseline

    def rounds(self, events: Iterable[Event]) -> Iterator[RoundResult]:
        """Take these events, and yield each round when the next one starts or the events end."""
        for event in events:
            if event.type == RoundStarted.event_type and self._round is not None:
                yield self._round.result
            self.take(event)
        if self._round is not None:
            yield self._round.result

    def take(self, event: Event) -> None:
        """Take one event. An event after the end of a run means that the run was resumed."""
        if event.type != RunCompleted.event_type:
            self._draft.reopen(self._stop)
        match event.payload:
            case RunStarted() as started:
                self._start(started)
                self._draft.start(started, event.run_id)
            case ReferencesWritten() as references:
                self._references = references
            case EvaluationStarted() as started_evaluation:
                self._rows.start(started_evaluation)
            case CaseFinished(evaluation=number, row=row):
                self._rows.add(number, row)
                self._unread = find_unread(self._unread, [row.reads])
            case EvaluationFinished() as finished:
                self._finish_evaluation(finished, event.phase)
            case RoundStarted(profile_digest=digest):
                self._start_round(digest, event)
            case CandidateProposed() as proposed:
                self._propose(proposed, event.seq)
            case CandidateDecided() as decided:
                self._decide(decided)
            case ReadsAudited(undeclared=undeclared) if undeclared:
                self._unread = frozenset()  # a node reads more than its traces record, so unread surfaces are unknown
                self._draft.change(unread_surfaces=())
            case CasesUsed() as used:
                self._draft.remember(
                    CaseUseHistory(
                        validation_cases=used.validation_cases,
                        earlier_runs=used.earlier_runs,
                        seen_cases=used.seen_cases,
                    )
                )
            case OpenedTestSet(opened_before=opened, seen_cases=seen):
                known = self._draft.current.case_history
                self._draft.remember(replace(known, test_opened=opened, seen_test_cases=seen))
            case ValidationRead(by=reader):
                self._validation_reader = reader
            case StopDecided(decision=decision, reads_score=reads_score):
                if reads_score:
                    self._validation_use = self._validation_use.add_stop_by_score()
                if self._round is not None:
                    self._round.stop(decision)
                stop = decision if decision.stop else None
                self._stop = None if decision.is_user_stop else stop  # a resumed run continues after a user's stop
                if stop != self._draft.current.stop:
                    self._draft.change(stop=stop)
            case AblationFinished() as ablated:
                self._ablate(ablated)
            case RunConcluded() as concluded:
                self._conclude(concluded)
            case RunCompleted() as completed:
                self._draft.complete(completed, event.run_id)
            case (
                RoundCompleted()
                | BudgetReserved()
                | FinalTestBegun()
                | BudgetEnded()
                | ReadsAudited()
                | FinalTestFinished()
            ):
                pass
            case UnknownPayload(problem=problem) if event.type in ENGINE_EVENTS:
                raise JournalError(f"event {event.seq} of the journal cannot be read: {problem}")
            case payload:
                self._take_from_search(payload, event)
        self._index.end = event.seq + 1

    def _start(self, started: RunStarted) -> None:
        self._use_id = started.measured.use_id
        self._validation_use = ValidationUse(acceptance_share=find_acceptance_share(started.max_rounds))
        self._unread = frozenset(started.targets)

    def _finish_evaluation(self, finished: EvaluationFinished, phase: str) -> None:
        evaluation = self._rows.finish(finished, phase)
        if evaluation is None:
            return
        if has_crashed(evaluation) and evaluation.profile_digest != self._draft.current.initial_profile.digest:
            self._crashed.add(evaluation.profile_digest)
        if len(self._unread) < len(self._draft.current.unread_surfaces) or self._draft.current.baseline is None:
            self._draft.change(unread_surfaces=tuple(sorted(self._unread)))
        if self._round is not None and phase not in OUTSIDE_ROUNDS:
            self._round.add_evaluation(evaluation)
            if phase == "train" and evaluation.profile_digest == self._draft.current.working_profile.digest:
                self._accepted_train = evaluation
            return
        self._draft.evaluations.append(evaluation)
        if phase == "baseline":
            self._baseline = self._accepted = ValidatedProfile(self._draft.current.initial_profile, evaluation)
            self._draft.change(baseline=evaluation, accepted=evaluation)
        elif phase == "final_test":
            known = self._again.get(evaluation.profile_digest)
            merged = merge_evaluations([evaluation] if known is None else [known, evaluation])
            assert merged is not None
            self._again[evaluation.profile_digest] = merged

    def _start_round(self, digest: str, event: Event) -> None:
        accepted = self._draft.current.working_profile
        if digest != accepted.digest:
            raise JournalError(
                f"event {event.seq} of the journal starts a round from the profile {digest[:12]}…, but the accepted "
                f"profile there is {accepted.digest[:12]}…; restore the journal from a copy"
            )
        self._round = RoundState(event.round, accepted)
        self._index.rounds.append(event.seq)
        self._rows.clear()  # an evaluation that did not end before the round belongs to none

    def _propose(self, proposed: CandidateProposed, seq: int) -> None:
        if self._round is not None:
            profile = build_candidate(proposed, self._draft.current.structure)
            self._round.propose(profile, parents=proposed.parents, patches=proposed.patches, seq=seq)

    def _decide(self, decided: CandidateDecided) -> None:
        decision = decided.decision
        self._candidates_tried += decided.candidate is not None
        if decided.evidence is not None and decided.evidence.candidate:
            self._validation_use = self._validation_use.add_decision(accepted=decision.accepted)
        if self._round is None:
            return
        self._count_round(decision.accepted)
        found = self._round.decide(decided.candidate, decision, decided.evidence)
        if found is not None and decision.accepted:
            candidate, seq = found
            self._index.accepted.append(seq)
            self._accepted_gain += decision.delta or 0.0
            seen = () if decided.evidence is None else decided.evidence.candidate
            first = next((each for each in candidate.evaluations if each.number in seen), None)
            self._accepted_train = _find_train(candidate, decided.evidence)
            self._accept(candidate.profile, first)  # later candidates are compared with its first validation
            if candidate.validation is not None:
                self._draft.change(accepted=candidate.validation)  # the result shows all of them

    def _count_round(self, accepted: bool) -> None:
        """Count rounds since the last acceptance; a round with several decisions counts once."""
        if accepted:
            self._rounds_without_acceptance = 0
        elif self._counted_round is not self._round:
            self._rounds_without_acceptance += 1
        self._counted_round = self._round

    def _accept(self, profile: Profile, validation: Evaluation | None) -> None:
        """Make a profile the best so far. Without a validation, none of its cases has been run."""
        baseline = self._draft.current.baseline
        if validation is None and baseline is not None:
            validation = replace(baseline, rows=(), profile_digest=profile.digest, number=None, phase="validation")
        self._draft.change(accepted_profile=profile, working_profile=profile, accepted=validation)
        if validation is not None:
            self._accepted = ValidatedProfile(profile, validation)

    def _ablate(self, ablated: AblationFinished) -> None:
        """Remove parts of the accepted profile. It keeps its validation, because the ablation runs train cases."""
        run, found = self._draft.current, ablated.ablation
        if found.dropped:
            left = run.working_profile.reset(found.dropped, to=run.initial_profile, snapshot=run.structure)
            self._accept(left, run.accepted)
        self._draft.change(ablation=found)

    def _conclude(self, concluded: RunConcluded) -> None:
        """Adopt the accepted profile if the final test shows a gain, otherwise the initial one."""
        found, run = concluded.conclusion, self._draft.current
        before = self._again.get(run.initial_profile.digest, run.baseline)
        after = self._again.get(run.working_profile.digest, run.accepted)
        if self._again and before is not None and after is not None:
            before, after = leave_out_lost_pairs(before, after)
        profile, accepted = (run.working_profile, after) if found.adopts else (run.initial_profile, before)
        self._draft.change(
            conclusion=found, verdict=found.verdict, baseline=before, accepted_profile=profile, accepted=accepted
        )

    def _take_from_search(self, payload: Payload, event: Event) -> None:
        """Keep what a search recorded, in the details of the round or as a note."""
        if isinstance(payload, DetailsPayload) and self._round is not None:
            self._round.add_details(payload)
            return
        note = SearchNote(type=event.type, data=event.data)
        if self._round is not None:
            self._round.add_note(note)
        else:
            self._draft.notes.append(note)


def _find_train(candidate: CandidateResult, evidence: EvidenceRecord | None) -> Evaluation | None:
    """The train evaluation of a candidate that its decision rests on."""
    seen = () if evidence is None or evidence.train is None else evidence.train.candidate
    return next((each for each in candidate.evaluations if each.number in seen), None)
