"""RoundState: the current round of a run, after some of its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promptiter.evaluation.result import Evaluation
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.stopping import StopDecision
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.details import DetailsPayload, RoundDetails
from promptiter.runlog.results import CandidateResult, RoundResult, SearchNote


class RoundState:
    """A round so far. `result` is what the record says of it."""

    def __init__(self, number: int, input_profile: Profile) -> None:
        self._result: RoundResult | None = None
        self._round = number
        self._input_profile = input_profile
        self._candidates: list[CandidateResult] = []
        self._events: list[int] = []
        self._by_digest: dict[str, list[int]] = {}
        self._evaluations: list[Evaluation] = []
        self._details: RoundDetails | None = None
        self._notes: list[SearchNote] = []
        self._skipped = ""
        self._stop: StopDecision | None = None

    @property
    def result(self) -> RoundResult:
        if self._result is None:
            self._result = RoundResult(
                round=self._round,
                input_profile=self._input_profile,
                candidates=tuple(self._candidates),
                evaluations=_sort(self._evaluations),
                details=self._details,
                notes=tuple(self._notes),
                skipped=self._skipped,
                stop=self._stop,
            )
        return self._result

    def propose(self, profile: Profile, *, parents: tuple[str, ...], patches: PatchSet, seq: int) -> None:
        """Add a candidate, with the evaluations of its profile in this round, by the event `seq`."""
        self._result, digest = None, profile.digest
        own = _sort(each for each in self._evaluations if each.profile_digest == digest)
        self._evaluations = [each for each in self._evaluations if each.profile_digest != digest]
        self._by_digest.setdefault(digest, []).append(len(self._candidates))
        self._candidates.append(CandidateResult(profile=profile, parents=parents, patches=patches, evaluations=own))
        self._events.append(seq)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add an evaluation to the candidates whose profile it ran, or to the round."""
        self._result, numbers = None, self._find_candidates(evaluation.profile_digest)
        for number in numbers:
            known = self._candidates[number]
            self._candidates[number] = replace(known, evaluations=_sort([*known.evaluations, evaluation]))
        if not numbers:
            self._evaluations.append(evaluation)

    def decide(
        self, digest: str | None, decision: AcceptanceDecision, evidence: EvidenceRecord | None
    ) -> tuple[CandidateResult, int] | None:
        """Add a decision. Returns the candidate and the event that proposed it; None if the round is skipped."""
        self._result, numbers = None, self._find_candidates(digest)
        if not numbers:
            self._skipped = decision.reason
            return None
        number = numbers[0]
        self._candidates[number] = replace(self._candidates[number], decision=decision, evidence=evidence)
        return self._candidates[number], self._events[number]

    def add_details(self, payload: DetailsPayload) -> None:
        """Add an event to the details of the round."""
        self._result, self._details = None, payload.add_to(self._details)

    def add_note(self, note: SearchNote) -> None:
        self._result = None
        self._notes.append(note)

    def stop(self, decision: StopDecision) -> None:
        self._result, self._stop = None, decision

    def _find_candidates(self, digest: str | None) -> list[int]:
        """Find the candidates with a profile: those without a decision, or else the last one."""
        numbers = self._by_digest.get(digest or "", [])
        return [each for each in numbers if self._candidates[each].decision is None] or numbers[-1:]


def _sort(evaluations: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Sort evaluations by number: the order in which those of a batch finish is left to chance."""
    return tuple(sorted(evaluations, key=lambda each: each.number or 0))
