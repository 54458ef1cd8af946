"""Acceptance: whether a candidate becomes the accepted profile, decided on two evaluations of the same cases.

    acceptance = AnyGain() & NoRegression()

A policy is one method, `decide`, which answers in words: accepted or not and why, or which further repeats it wants to
see first. Policies compose with `&` and `|`. No policy accepts what failed too often to be judged: see `decide`.

`AnyGain`, the default, keeps leniently: what a run may claim is tested once, at its end. Policies that weigh the noise
of each candidate are in `paired` and `sigma`, bounds on tokens and dollars and what parts equals in `figures`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.combine import Combined, as_call, is_number, parts_of, written
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence

NAMED = 10
"""So many cases are named in a reason; the others are counted."""

NOTHING = 1e-12
"""A gain up to this is rounding."""

MOST_RERUNS = 5
"""So often a protected case that fails at first is run again."""

_MAJORITY = MOST_RERUNS // 2 + 1


class AcceptancePolicy(Protocol):
    """Decides on one candidate. Called after its validation, and again after each further block of repeats it asked
    for.

    It must not block, and the same evidence must get the same answer.
    """

    def decide(self, evidence: Evidence) -> Answer:
        """A decision with its reason, or a wish for more repeats."""


@runtime_checkable
class OpensOnTrain(AcceptancePolicy, Protocol):
    """A policy that compares both profiles on the train cases first; then it is asked before validation is paid."""

    @property
    def opening(self) -> MoreEvidence:
        """What it wants to see before anything else."""


def opening_of(policy: AcceptancePolicy) -> MoreEvidence | None:
    """What a policy wants to see first: repeats of train cases, or, with None, the candidate's validation."""
    wishes = [part.opening for part in parts_of(policy) if isinstance(part, OpensOnTrain)]
    return min(wishes, key=_cost, default=None)


def decide(policy: AcceptancePolicy, evidence: Evidence) -> Answer:
    """What a policy says, unless the evidence has a problem: then the candidate is rejected, whatever the policy.

    A policy that does not open on train is not asked before the candidate was validated.
    """
    if evidence.problem is not None:
        return evidence.reject(evidence.problem)
    if not evidence.has_validation and not isinstance(policy, OpensOnTrain | Combined):
        return MoreEvidence(reason="the candidate is not validated yet")
    answer = policy.decide(evidence)
    if not isinstance(answer, Answer):
        raise SetupError(f"{written(policy)} answered {answer!r}; return an AcceptanceDecision or MoreEvidence")
    return answer


class Policy:
    """Gives an acceptance policy `&` and `|`, and a repr that reads like the code that made it."""

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
        return as_call(self)


@dataclass(frozen=True, slots=True, repr=False)
class AnyGain(Policy):
    """Accepts a candidate that gains anything at all on the repeats that both profiles ran.

    That is lenient: of candidates that change nothing but noise it takes nearly every other one. It is meant for a
    search that goes on from what it kept, and lets a test at the end say what is real.
    """

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        gain = f"gain {_told(evidence.gain, NOTHING if evidence.gain > 0 else 0.0)}"
        if evidence.gain > NOTHING:
            return evidence.accept(f"{gain}{_unscored(evidence)}")
        return evidence.reject(f"{gain}: {'none' if evidence.gain >= -NOTHING else 'worse'}{_unscored(evidence)}")


@dataclass(frozen=True, slots=True, repr=False)
class MinGain(Policy):
    """Accepts a candidate whose gain reaches `min_gain`."""

    min_gain: float = 0.005

    def __post_init__(self) -> None:
        if not is_number(self.min_gain, least=0):
            raise SetupError(f"min_gain is {self.min_gain!r}; give a number that is not negative, such as 0.005")

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        gain = _told(evidence.gain, self.min_gain)
        if evidence.gain < self.min_gain:
            return evidence.reject(f"gain {gain} is below {self.min_gain:g}{_unscored(evidence)}")
        return evidence.accept(f"gain {gain} reaches {self.min_gain:g}{_unscored(evidence)}")


@dataclass(frozen=True, slots=True, repr=False)
class NoRegression(Policy):
    """Accepts a candidate under which every case that passed still passes."""

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        if evidence.new_fails:
            return evidence.reject(f"passed before and no longer: {_named(evidence.new_fails, evidence.lost)}")
        return evidence.accept("every case that passed still passes")


@dataclass(frozen=True, slots=True, repr=False)
class Protected(Policy):
    """Accepts a candidate under which the protected cases hold: those that passed still pass.

    One failure may be chance, so a case that passed and fails at a look is run again under both profiles, up to five
    times after the first look, until one side has the majority. The candidate is rejected if it fails the case more
    often than not while the accepted profile passes it more often than not. If the accepted profile does not, its first
    pass was luck: the case does not tell the two apart, and a candidate is not to blame for what was broken before it.
    A run that could not be scored does not pass, under either profile.

    Without case ids of its own it takes those of the run. A protected case that was not run does not hold.
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
            return evidence.reject(f"protected, but not run: {_named(sorted(absent))}")
        failing = protected.intersection((*evidence.first(evidence.opening).new_fails, *evidence.new_fails))
        votes = [_Vote.of(evidence, case_id) for case_id in sorted(failing)]
        if broken := [vote for vote in votes if vote.is_broken]:
            return evidence.reject(f"protected, and no longer passing: {_listed(map(str, broken))}")
        if undecided := [vote for vote in votes if not vote.is_settled]:
            cases = tuple(vote.case_id for vote in undecided)
            told = f"protected, and no longer passing at first: {_named(cases)}"
            return MoreEvidence(cases=cases, repeats=max(vote.wanted for vote in undecided), reason=told)
        told = f"protected cases hold ({len(protected)})" if protected else "no case is protected"
        return evidence.accept("; ".join([told, *map(str, votes)]))


@dataclass(frozen=True, slots=True)
class _Vote:
    """How often a case passes in its re-runs, the repeats after the first look, under both profiles."""

    case_id: str
    runs: int
    before: int
    after: int

    @staticmethod
    def of(evidence: Evidence, case_id: str) -> _Vote:
        before, after = (
            {row.repeat: _passes(each, row) for row in each.rows if row.case_id == case_id}
            for each in (evidence.baseline, evidence.candidate)
        )
        again = sorted(repeat for repeat in before.keys() & after.keys() if repeat >= evidence.opening)[:MOST_RERUNS]
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
    def wanted(self) -> int:
        return (_MAJORITY if self.runs < _MAJORITY else MOST_RERUNS) - self.runs

    def __str__(self) -> str:
        return f"{self.case_id!r} passes {self.after} of {self.runs} re-runs, and {self.before} before the change"


def _passes(evaluation: Evaluation, row: CaseRow) -> bool:
    return replace(evaluation, rows=(row,)).cases[0].passed


class AllOf(Combined[AcceptancePolicy], Policy):
    """Rejects when one rejects; asks for more evidence when one asks and none rejects; accepts when all accept.

    Of several wishes the cheapest comes first: what it shows may settle the matter before the others are paid.
    """

    __slots__ = ()
    sign = "&"

    def decide(self, evidence: Evidence) -> Answer:
        return _settled(self.policies, evidence, by=False)


class AnyOf(Combined[AcceptancePolicy], Policy):
    """Accepts when one accepts; asks for more evidence when one asks and none accepts; rejects when all reject."""

    __slots__ = ()
    sign = "|"

    def decide(self, evidence: Evidence) -> Answer:
        return _settled(self.policies, evidence, by=True)


def _settled(policies: Iterable[AcceptancePolicy], evidence: Evidence, *, by: bool) -> Answer:
    """The answer of several policies. One decision `by` settles it; else the cheapest wish for more evidence does."""
    answers = [decide(policy, evidence) for policy in policies]
    settling = [answer for answer in answers if isinstance(answer, AcceptanceDecision) and answer.accepted == by]
    asked = [answer for answer in answers if isinstance(answer, MoreEvidence)]
    if not settling and asked:
        return min(asked, key=_cost)
    reason = "; ".join(dict.fromkeys(answer.reason for answer in settling or answers if answer.reason))
    return evidence.accept(reason) if by == bool(settling) else evidence.reject(reason)


def _cost(wish: MoreEvidence) -> tuple[bool, bool, int, tuple[str, ...], str]:
    """What orders wishes: train before validation, some cases before all, few repeats before many."""
    return wish.on == "validation", not wish.cases, max(1, len(wish.cases)) * wish.repeats, wish.cases, wish.reason


def _told(gain: float, limit: float) -> str:
    """A gain with three digits, or as many as it takes to see on which side of the limit it is."""
    digits = next((n for n in range(3, 12) if (round(gain, n) < limit) == (gain < limit)), 12)
    return f"{gain:+.{digits}f}"


def _named(case_ids: Sequence[str], unscored: Collection[str] = ()) -> str:
    return _listed(f"{each!r} (could not be scored)" if each in unscored else repr(each) for each in case_ids)


def _listed(told: Iterable[str]) -> str:
    named = list(told)
    more = len(named) - NAMED
    return ", ".join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _unscored(evidence: Evidence) -> str:
    """What the gain owes to cases that only one profile could score."""
    lost, mended = len(evidence.lost), len(evidence.mended)
    told = [f"{lost} no longer scored"] * bool(lost) + [f"{mended} scored for the first time"] * bool(mended)
    return f" (cases: {', '.join(told)})" if told else ""
