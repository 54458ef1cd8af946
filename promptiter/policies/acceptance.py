"""Acceptance: whether a candidate becomes the accepted profile, decided on two evaluations of the same cases.

    acceptance = AnyGain() & NoRegression()

A policy is one method, `decide`. It returns a decision with its reason, or asks for more repeats first. Policies
compose with `&` and `|`. No policy accepts an evaluation with too many failures: see `decide`.

`AnyGain`, the default, is lenient, because the final test decides what is adopted. A policy that compares
candidates with their noise is in `sigma_gain`; bounds on tokens and dollars, and tie-breakers, are in `constraints`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.numbers import is_number
from promptiter.policies.combine import CombinedPolicy, describe_policy, format_call, iter_policies
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence, has_noise
from promptiter.wording import join_names, shorten

MAX_NAMED_CASES = 10
"""A reason names at most this number of cases and counts the others."""

ROUNDING = 1e-12
"""Gains up to this are rounding errors."""

MAX_RERUNS = 5
"""The most re-runs of a protected case that fails at first."""

MAX_TIES = 2
"""The most repeats that `AnyGain` asks for because gains and losses cancel each other out."""

_MAJORITY = MAX_RERUNS // 2 + 1


class AcceptancePolicy(Protocol):
    """Decides on one candidate. Called after its validation, and again after each block of repeats it asked for.

    It must not block, and must give the same answer to the same evidence.
    """

    def decide(self, evidence: Evidence) -> Answer:
        """Return a decision with its reason, or a request for more repeats."""


@runtime_checkable
class StartsOnTrain(AcceptancePolicy, Protocol):
    """A policy that compares both profiles on the train cases first, before validation is paid."""

    @property
    def first_request(self) -> MoreEvidence:
        """The repeats to run before the first call of `decide`."""


def find_first_request(policy: AcceptancePolicy) -> MoreEvidence | None:
    """Return the repeats of train cases that a policy wants to see first; None if it starts with validation."""
    requests = [part.first_request for part in iter_policies(policy) if isinstance(part, StartsOnTrain)]
    return min(requests, key=_rank_by_cost, default=None)


def decide(policy: AcceptancePolicy, evidence: Evidence) -> Answer:
    """Return the answer of a policy. Evidence with a problem is rejected, whatever the policy.

    A policy that does not start on train is not called before the candidate is validated.
    """
    if evidence.problem is not None:
        return evidence.reject(evidence.problem)
    if not evidence.has_validation and not isinstance(policy, StartsOnTrain | CombinedPolicy):
        return MoreEvidence(reason="the candidate is not validated yet")
    answer = policy.decide(evidence)
    if not isinstance(answer, Answer):
        raise SetupError(
            f"{describe_policy(policy)} answered {shorten(answer)}; return an AcceptanceDecision or MoreEvidence"
        )
    return answer


class ComposablePolicy:
    """A base class that gives an acceptance policy `&`, `|`, and a repr that reads like the code that creates it."""

    __slots__ = ()

    def __and__(self: AcceptancePolicy, other: AcceptancePolicy) -> AllOf:
        return AllOf(self, other)

    def __rand__(self: AcceptancePolicy, other: AcceptancePolicy) -> AllOf:
        return AllOf(other, self)

    def __or__(self: AcceptancePolicy, other: AcceptancePolicy) -> AnyOf:
        return AnyOf(self, other)

    def __ror__(self: AcceptancePolicy, other: AcceptancePolicy) -> AnyOf:
        return AnyOf(other, self)

    def __repr__(self) -> str:
        return format_call(self)


@dataclass(frozen=True, slots=True, repr=False)
class AnyGain(ComposablePolicy):
    """Accepts a candidate with any gain on the repeats that both profiles ran.

    This is lenient: it accepts nearly half of the candidates that change nothing but noise. It is meant for a search
    that builds on what it accepted and leaves the proof to the final test. If gains and losses of single cases cancel
    each other out, they may be noise, so it asks for another repeat, twice at most.
    """

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        gain = f"gain {_format_gain(evidence.gain, ROUNDING if evidence.gain > 0 else 0.0)}"
        unscored = _describe_unscored(evidence)
        if evidence.gain > ROUNDING:
            return evidence.accept(f"{gain}{unscored}")
        if evidence.gain >= -ROUNDING and _may_be_noise(evidence):
            return MoreEvidence(reason="gains and losses cancel each other out")
        return evidence.reject(f"{gain}: {'no better' if evidence.gain >= -ROUNDING else 'worse'}{unscored}")


def _may_be_noise(evidence: Evidence) -> bool:
    """Whether some cases gained, and further repeats may show that this or the loss of others was chance."""
    arms = evidence.common.accepted, evidence.common.candidate
    repeats = max((row.repeat for row in arms[1].rows), default=0) + 1
    if repeats >= evidence.first_look_repeats + MAX_TIES or (repeats > 1 and not any(map(has_noise, arms))):
        return False
    return any(delta.change > ROUNDING for delta in evidence.deltas)


@dataclass(frozen=True, slots=True, repr=False)
class MinGain(ComposablePolicy):
    """Accepts a candidate whose gain reaches `min_gain`."""

    min_gain: float = 0.005

    def __post_init__(self) -> None:
        if not is_number(self.min_gain, least=0) or self.min_gain > 1:
            raise SetupError(f"min_gain is {self.min_gain!r}; give a number from 0 to 1, such as 0.005")

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        gain, unscored = _format_gain(evidence.gain, self.min_gain), _describe_unscored(evidence)
        if evidence.gain < self.min_gain:
            return evidence.reject(f"gain {gain} is below {self.min_gain:g}{unscored}")
        return evidence.accept(f"gain {gain} reaches {self.min_gain:g}{unscored}")


@dataclass(frozen=True, slots=True, repr=False)
class NoRegression(ComposablePolicy):
    """Accepts a candidate under which every case that passed still passes."""

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        if evidence.new_fails:
            return evidence.reject(
                f"passed before and no longer: {_name_cases(evidence.new_fails, evidence.newly_unscored)}"
            )
        return evidence.accept("every case that passed still passes")


@dataclass(frozen=True, slots=True, repr=False)
class Protected(ComposablePolicy):
    """Accepts a candidate under which every protected case that passed still passes.

    One failure may be chance, so a case that passed and now fails is run again under both profiles, up to five times,
    until one outcome has the majority. The candidate is rejected if the case mostly fails under it and mostly passes
    under the accepted profile. If it mostly fails under the accepted profile too, its first pass was luck, and the
    candidate is not to blame. A run that could not be scored counts as failed, under either profile.

    Without its own case ids the policy protects those of the run. A protected case that was not run is rejected.
    """

    case_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.case_ids, str):
            raise SetupError(f"the protected cases are {self.case_ids!r}; give a tuple: ({self.case_ids!r},)")
        object.__setattr__(self, "case_ids", tuple(sorted(set(self.case_ids))))

    def __repr__(self) -> str:
        return f"Protected({self.case_ids or ''})"

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        protected = set(self.case_ids or evidence.protected)
        if absent := protected - {case.case_id for case in evidence.candidate.cases}:
            return evidence.reject(f"protected, but not run: {_name_cases(sorted(absent))}")
        failing = protected.intersection(
            (*evidence.first_repeats(evidence.first_look_repeats).new_fails, *evidence.new_fails)
        )
        votes = [_Vote.of(evidence, case_id) for case_id in sorted(failing)]
        if broken := [vote for vote in votes if vote.is_broken]:
            names = join_names([str(vote) for vote in broken], limit=MAX_NAMED_CASES)
            return evidence.reject(f"protected, and no longer passing: {names}")
        if undecided := [vote for vote in votes if not vote.is_settled]:
            cases = tuple(vote.case_id for vote in undecided)
            reason = f"protected, and no longer passing at first: {_name_cases(cases)}"
            return MoreEvidence(cases=cases, repeats=max(vote.missing for vote in undecided), reason=reason)
        reason = f"protected cases still pass ({len(protected)})" if protected else "no case is protected"
        return evidence.accept("; ".join([reason, *map(str, votes)]))


def protect_cases(policy: AcceptancePolicy, case_ids: Collection[str]) -> AcceptancePolicy:
    """Return the policy of a run with these protected cases: they must still pass, whatever the policy."""
    return AllOf(policy, Protected()) if case_ids else policy


@dataclass(frozen=True, slots=True)
class _Vote:
    """How often a case passes in its re-runs, which are the repeats after the first look, under both profiles."""

    case_id: str
    runs: int
    before: int
    after: int

    @staticmethod
    def of(evidence: Evidence, case_id: str) -> _Vote:
        before, after = (
            {row.repeat: _passes(each, row) for row in each.rows if row.case_id == case_id}
            for each in (evidence.accepted, evidence.candidate)
        )
        again = sorted(repeat for repeat in before.keys() & after.keys() if repeat >= evidence.first_look_repeats)[
            :MAX_RERUNS
        ]
        return _Vote(
            case_id, len(again), sum(before[repeat] for repeat in again), sum(after[repeat] for repeat in again)
        )

    @property
    def is_broken(self) -> bool:
        return self.runs - self.after >= _MAJORITY and self.before >= _MAJORITY

    @property
    def is_settled(self) -> bool:
        return self.is_broken or self.after >= _MAJORITY or self.runs - self.before >= _MAJORITY

    @property
    def missing(self) -> int:
        """The re-runs to make before the next look."""
        return (_MAJORITY if self.runs < _MAJORITY else MAX_RERUNS) - self.runs

    def __str__(self) -> str:
        return f"{self.case_id!r} passes {self.after} of {self.runs} re-runs, and {self.before} before the change"


def _passes(evaluation: Evaluation, row: CaseRow) -> bool:
    return replace(evaluation, rows=(row,)).cases[0].passed


class AllOf(CombinedPolicy[AcceptancePolicy], ComposablePolicy):
    """Rejects when one rejects; asks for more evidence when one asks and none rejects; accepts when all accept.

    Of several requests for evidence the cheapest comes first, since it may decide before the others are paid.
    """

    __slots__ = ()
    sign = "&"

    def decide(self, evidence: Evidence) -> Answer:
        return _combine_answers(self.policies, evidence, decisive=False)


class AnyOf(CombinedPolicy[AcceptancePolicy], ComposablePolicy):
    """Accepts when one accepts; asks for more evidence when one asks and none accepts; rejects when all reject."""

    __slots__ = ()
    sign = "|"

    def decide(self, evidence: Evidence) -> Answer:
        return _combine_answers(self.policies, evidence, decisive=True)


def _combine_answers(policies: Iterable[AcceptancePolicy], evidence: Evidence, *, decisive: bool) -> Answer:
    """Combine the answers of several policies: one decision of the `decisive` kind is enough.

    Otherwise the cheapest request for more evidence is the answer, or, if there is none, the opposite decision.
    """
    answers = [decide(policy, evidence) for policy in policies]
    deciding = [answer for answer in answers if isinstance(answer, AcceptanceDecision) and answer.accepted == decisive]
    requests = [answer for answer in answers if isinstance(answer, MoreEvidence)]
    if not deciding and requests:
        return min(requests, key=_rank_by_cost)
    reason = "; ".join(dict.fromkeys(answer.reason for answer in deciding or answers if answer.reason))
    return evidence.accept_if(decisive == bool(deciding), reason)


def _rank_by_cost(request: MoreEvidence) -> tuple[bool, bool, int, tuple[str, ...], str]:
    """Order requests: train before validation, some cases before all, few repeats before many."""
    runs = max(1, len(request.cases)) * request.repeats
    return request.on == "validation", not request.cases, runs, request.cases, request.reason


def _format_gain(gain: float, limit: float) -> str:
    """Format a gain with three digits, or as many as it takes to see on which side of the limit it is."""
    digits = next((n for n in range(3, 12) if (round(gain, n) < limit) == (gain < limit)), 12)
    return f"{gain:+.{digits}f}"


def _name_cases(case_ids: Sequence[str], unscored: Collection[str] = ()) -> str:
    names = [f"{each!r} (could not be scored)" if each in unscored else repr(each) for each in case_ids]
    return join_names(names, limit=MAX_NAMED_CASES)


def _describe_unscored(evidence: Evidence) -> str:
    """Name the part of the gain that comes from cases that only one profile could score."""
    lost, won = len(evidence.newly_unscored), len(evidence.newly_scored)
    parts = [f"{lost} no longer scored"] * bool(lost) + [f"{won} scored for the first time"] * bool(won)
    return f" (cases: {', '.join(parts)})" if parts else ""
