"""Acceptance: whether a candidate becomes the accepted profile, decided on two evaluations of the same cases.

    acceptance = MinGain(0.005) & NoRegression()

A policy is one method, `decide`, which answers in words: accepted or not and why, or which further draws it wants to
see first. Policies compose with `&` and `|`. No policy accepts what failed too often to be judged: see `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from promptiter.engine.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence
from promptiter.engine.policies import Combined, as_call, is_number, written
from promptiter.errors import SetupError

NAMED = 10
"""So many cases are named in a reason; the others are counted."""


class AcceptancePolicy(Protocol):
    """Decides on one candidate. Called after its validation, and again after each further block of draws it asked for.

    It must not block, and the same evidence must get the same answer.
    """

    def decide(self, evidence: Evidence) -> Answer:
        """A decision with its reason, or a wish for more draws."""


def decide(policy: AcceptancePolicy, evidence: Evidence) -> Answer:
    """What a policy says, unless the evidence has a problem: then the candidate is rejected, whatever the policy."""
    if evidence.problem is not None:
        return evidence.reject(evidence.problem)
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

    Without case ids of its own it takes those of the run. A protected case that was not run does not hold.
    """

    case_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.case_ids, str):
            raise SetupError(f"the protected cases are {self.case_ids!r}; give a tuple: ({self.case_ids!r},)")
        object.__setattr__(self, "case_ids", tuple(sorted(set(self.case_ids))))

    def __repr__(self) -> str:
        return f"Protected({self.case_ids or ''})"

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        protected = set(self.case_ids or evidence.protected)
        if absent := protected - {case.case_id for case in evidence.candidate.cases}:
            return evidence.reject(f"protected, but not run: {_named(sorted(absent))}")
        if broken := protected.intersection(evidence.new_fails):
            return evidence.reject(f"protected, and no longer passing: {_named(sorted(broken), evidence.lost)}")
        return evidence.accept(f"protected cases hold ({len(protected)})" if protected else "no case is protected")


class AllOf(Combined[AcceptancePolicy], Policy):
    """Rejects when one rejects; asks for more evidence when one asks and none rejects; accepts when all accept."""

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
    """The answer of several policies. One decision `by` settles it; else whoever asks for more evidence gets it."""
    answers = [decide(policy, evidence) for policy in policies]
    settling = [answer for answer in answers if isinstance(answer, AcceptanceDecision) and answer.accepted == by]
    asked = [answer for answer in answers if isinstance(answer, MoreEvidence)]
    if settling or not asked:
        accepted = by if settling else not by
        return AcceptanceDecision(accepted=accepted, delta=evidence.gain, reason=_joined(settling or answers))
    cases = {case_id for each in asked for case_id in each.cases} if all(each.cases for each in asked) else set()
    return MoreEvidence(cases=tuple(sorted(cases)), draws=max(each.draws for each in asked), reason=_joined(asked))


def _joined(answers: Iterable[Answer]) -> str:
    return "; ".join(dict.fromkeys(answer.reason for answer in answers if answer.reason))


def _told(gain: float, limit: float) -> str:
    """A gain with three digits, or as many as it takes to see on which side of the limit it is."""
    digits = next((n for n in range(3, 12) if (round(gain, n) < limit) == (gain < limit)), 12)
    return f"{gain:+.{digits}f}"


def _named(case_ids: Sequence[str], unscored: Collection[str] = ()) -> str:
    told = [f"{case_id!r} (could not be scored)" if case_id in unscored else repr(case_id) for case_id in case_ids]
    more = len(told) - NAMED
    return ", ".join(told[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _unscored(evidence: Evidence) -> str:
    """What the gain owes to cases that only one profile could score."""
    lost, mended = len(evidence.lost), len(evidence.mended)
    told = [f"{lost} no longer scored"] * bool(lost) + [f"{mended} scored for the first time"] * bool(mended)
    return f" (cases: {', '.join(told)})" if told else ""
