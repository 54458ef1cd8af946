"""Decisions made again: what a policy would decide on the candidates of a finished run, from its record alone.

    for each in decide_again(events, MinGain(0.05)):
        print(each.round, each.recorded.accepted, each.again)

Neither the agent nor a model is called: the record has every row that the policy saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.acceptance import AcceptancePolicy, protect_cases
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.policy_code import parse_acceptance
from promptiter.policies.sequential import decide_at_look
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import CandidateDecided, RunStarted
from promptiter.runlog.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedAgain:
    """A candidate by the digest of its profile, the decision in the record, and the answer that a policy gives now.

    A request for more evidence means that the policy needs repeats that the run did not make. `again` is None if the
    search rejected the candidate before any policy saw it.
    """

    round: int
    candidate: str
    recorded: AcceptanceDecision
    again: Answer | None


def decide_again(events: Iterable[Event], policy: AcceptancePolicy | None = None) -> Iterator[DecidedAgain]:
    """Yield the decision of a policy on each decided candidate of a run, in order; by default of the run's own policy.

    Raises SetupError if the run's own policy is not one of promptiter's: pass it in that case.
    """
    state = RunState()
    for event in events:
        match event.payload:
            case RunStarted(acceptance=code) if policy is None:
                policy = parse_acceptance(str(code))
            case CandidateDecided(candidate=str(digest), decision=recorded, evidence=evidence):
                again = None if policy is None else decide_candidate(policy, evidence, state)
                yield DecidedAgain(round=event.round, candidate=digest, recorded=recorded, again=again)
        state.take(event)


def decide_candidate(policy: AcceptancePolicy, record: EvidenceRecord | None, state: RunState) -> Answer | None:
    """The answer of a policy to the recorded evidence on a candidate, given the run before its decision."""
    if record is None:
        return None
    evaluations = _collect_evaluations(state)
    train = None if record.train is None else rebuild_evidence(record.train, evaluations)
    evidence = rebuild_evidence(record, evaluations, train=train)
    return decide_at_look(protect_cases(policy, record.protected), evidence, look=record.looks)


def rebuild_evidence(
    record: EvidenceRecord, evaluations: Mapping[int, Evaluation], *, train: Evidence | None = None
) -> Evidence:
    """The evidence of a record, from the evaluations of the run by number."""
    settings = next(iter(evaluations.values()))  # thresholds and weights are the same in all of them
    accepted, candidate = (
        replace(settings, rows=tuple(_select_rows(evaluations, numbers)))
        for numbers in (record.accepted, record.candidate)
    )
    return record.build_evidence(accepted, candidate, train=train)


def _select_rows(
    evaluations: Mapping[int, Evaluation], numbers: Mapping[int, tuple[str, ...] | None]
) -> Iterator[CaseRow]:
    for number, case_ids in numbers.items():
        for row in evaluations[number].rows:
            if case_ids is None or row.case_id in case_ids:
                yield row


def _collect_evaluations(state: RunState) -> dict[int, Evaluation]:
    """The evaluations that a decision may rest on: those of the round, and those of the accepted profile."""
    found = [] if state.accepted is None else [state.accepted.validation]
    if state.accepted_train is not None:
        found.append(state.accepted_train)
    if state.round is not None:
        found += state.round.all_evaluations
    return {each.number: each for each in found if each.number is not None}
