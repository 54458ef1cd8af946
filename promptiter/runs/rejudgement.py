"""Rejudgement: a recorded run decided again under other policies, as far as its record can tell.

Until the first decision that comes out differently, the record has all that the policies would have seen. What would
have followed that decision was never run. Later candidates are still decided on, as the run went.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.errors import JournalError
from promptiter.evaluation.result import Objective
from promptiter.policies.acceptance import AcceptancePolicy
from promptiter.policies.combine import describe_policy
from promptiter.policies.evidence import MoreEvidence
from promptiter.policies.policy_code import parse_acceptance, parse_stop
from promptiter.policies.stop_decision import StopDecision
from promptiter.policies.stopping import (
    Progress,
    StopFile,
    StopOnAll,
    StopOnAny,
    StopPolicy,
    UserStop,
    complete_stop,
    decide_stop,
)
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import CandidateDecided, RunStarted, StopDecided
from promptiter.runlog.run_state import RunState
from promptiter.runs.decisions import DecidedAgain, decide_candidate
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.header import read_header

DivergenceKind: TypeAlias = Literal["accepted", "rejected", "more_evidence", "stopped", "continued"]
"""What happens now that did not happen in the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedAgain:
    """Whether the run ended after a round, in the record and now; None if the record cannot tell."""

    round: int
    recorded: StopDecision
    again: StopDecision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first decision that comes out differently, and whether what follows from it is known.

    It is if the run ends there: `stop` has the reasons.
    """

    round: int
    kind: DivergenceKind
    reason: str
    stop: StopDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejudgement:
    """All decisions of a run, made again. Without a `divergence`, the run would have been the same.

    `acceptance` and `stop` are the policies as code; they are `was_acceptance` and `was_stop` in the run.
    """

    acceptance: str
    was_acceptance: str
    stop: str
    was_stop: str
    candidates: tuple[DecidedAgain, ...]
    stops: tuple[StoppedAgain, ...]
    divergence: Divergence | None = None


def rejudge_run(
    folder: str | os.PathLike[str], *, acceptance: AcceptancePolicy | None = None, stop: StopPolicy | None = None
) -> Rejudgement:
    """Decide the run in a folder again, by default under its own policies. Nothing is run and no model is called."""
    read_header(folder)
    return rejudge(EventFile(Path(folder) / JOURNAL).read(), acceptance=acceptance, stop=stop)


def rejudge(
    events: Iterable[Event], *, acceptance: AcceptancePolicy | None = None, stop: StopPolicy | None = None
) -> Rejudgement:
    """Decide a run again from its events. SetupError if its own policies are needed and not promptiter's."""
    first, *_ = peeked = list(islice(events := iter(events), 1))
    if not isinstance(first.payload, RunStarted):
        raise JournalError("the journal does not begin with the start of a run; restore it from a copy")
    work = _Rejudge(first.payload, acceptance, stop)
    for event in chain(peeked, events):
        work.take(event)
    return work.build()


class _Rejudge:
    """The state of the run as it went, and as it goes now; both are the same until they diverge."""

    def __init__(self, started: RunStarted, acceptance: AcceptancePolicy | None, stop: StopPolicy | None) -> None:
        self._started = started
        self._acceptance = acceptance or parse_acceptance(started.acceptance)
        self._stop = stop or (None if started.stop == "None" else parse_stop(started.stop))
        self._stopping = complete_stop(
            None if self._stop is None else _forget_files(self._stop),
            max_rounds=started.max_rounds,
            objective=started.objective,
            is_for_score=started.goal.kind == "score",
        )
        self._went = RunState()
        self._goes: RunState | None = RunState()
        self._candidates: list[DecidedAgain] = []
        self._stops: list[StoppedAgain] = []
        self._divergence: Divergence | None = None

    def take(self, event: Event) -> None:
        now = event
        match event.payload:
            case CandidateDecided(candidate=str()) as decided:
                now = self._decide(decided, event)
            case StopDecided() as stopped:
                self._decide_stop(stopped, event)
        self._went.take(event)
        if self._goes is not None:
            self._goes.take(now)

    def _decide(self, decided: CandidateDecided, event: Event) -> Event:
        """Decide on a candidate, and return the event as it is now."""
        again = decide_candidate(self._acceptance, decided.evidence, self._went)
        self._candidates.append(
            DecidedAgain(round=event.round, candidate=decided.candidate or "", recorded=decided.decision, again=again)
        )
        if self._divergence is not None:
            self._goes = None  # a candidate of the same round, which would have been compared with another profile
        elif isinstance(again, MoreEvidence):
            self._divergence = Divergence(round=event.round, kind="more_evidence", reason=again.reason)
            self._goes = None
        elif again is not None and again.accepted != decided.decision.accepted:
            kind: DivergenceKind = "accepted" if again.accepted else "rejected"
            self._divergence = Divergence(round=event.round, kind=kind, reason=again.reason)
            changed = to_plain(replace(decided, decision=again))
            return Event(**{**event.model_dump(exclude={"data"}), "data": changed})
        return event

    def _decide_stop(self, stopped: StopDecided, event: Event) -> None:
        """Decide whether the run ends after a round. This is the last thing that is known after a divergence."""
        recorded, again = stopped.decision, None
        if self._goes is not None:
            again = decide_stop(self._stopping, _rebuild_progress(self._goes, stopped, event, self._started.objective))
        self._stops.append(StoppedAgain(round=event.round, recorded=recorded, again=again))
        if again is None:
            return
        if self._divergence is not None:
            self._divergence = replace(self._divergence, stop=again if again.stop else None)
            self._goes = None
        elif again.stop != recorded.stop:
            kind: DivergenceKind = "stopped" if again.stop else "continued"
            stop = again if again.stop else None
            reason = again.text or f"the run ended there: {recorded.text}"
            self._divergence = Divergence(round=event.round, kind=kind, reason=reason, stop=stop)
            self._goes = None

    def build(self) -> Rejudgement:
        return Rejudgement(
            acceptance=describe_policy(self._acceptance),
            was_acceptance=self._started.acceptance,
            stop=describe_policy(self._stop),
            was_stop=self._started.stop,
            candidates=tuple(self._candidates),
            stops=tuple(self._stops),
            divergence=self._divergence,
        )


def _rebuild_progress(state: RunState, stopped: StopDecided, event: Event, objective: Objective) -> Progress:
    """The progress that the stop policies saw."""
    requests = {reason.kind: reason.text for reason in stopped.decision.reasons}
    return Progress(
        round=event.round,
        rounds_without_acceptance=state.rounds_without_acceptance,
        best=None if state.accepted is None else state.accepted.validation,
        objective=objective,
        elapsed_s=event.measured.elapsed_s,
        evaluations=stopped.measured.evaluations,
        crashes=state.crashes,
        spent=stopped.measured.spent,
        user_stop=requests.get("user_stop"),
        test_now="test_now" in requests,
    )


def _forget_files(policy: StopPolicy) -> StopPolicy:
    """The policy with the user's stops as recorded: a stop file may be gone by now, or be there for another run."""
    if isinstance(policy, StopOnAll | StopOnAny):
        return type(policy)(*map(_forget_files, policy.policies))
    return UserStop() if isinstance(policy, StopFile) else policy
