"""The pool of a search such as GEPA: its candidates with their parents, and on how many cases each of them is best."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from promptiter.backprop.iteration_record import Iteration, IterationKind, get_iteration, score_cases
from promptiter.runlog.results import RoundResult, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCandidate:
    """A candidate that its search kept, by its number in the pool. 0 is the initial profile, and has no parents.

    `score` is the mean on the validation cases; on `best_on` of them no other candidate scores higher. The search
    selects parents from the frontier. `is_best` is the one that was accepted last, or the initial profile.
    """

    number: int
    digest: str
    round: int = 0
    kind: IterationKind = "reflective"
    parents: tuple[int, ...] = ()
    components: tuple[str, ...] = ()
    score: float
    best_on: int = 0
    is_on_frontier: bool = False
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """The candidates of a pool in their order, and the number of validation cases. Other searches have none."""

    candidates: tuple[PoolCandidate, ...] = ()
    cases: int = 0

    def find(self, digest: str) -> PoolCandidate | None:
        """The candidate with this profile; of several the last."""
        return next((each for each in reversed(self.candidates) if each.digest == digest), None)

    def choose(self, most: int) -> tuple[PoolCandidate, ...]:
        """At most this many candidates, with all their ancestors: the best, then the frontier, then the others."""
        if len(self.candidates) <= most:
            return self.candidates
        by_number = {each.number: each for each in self.candidates}
        ranked = sorted(self.candidates, key=lambda each: (not each.is_best, not each.is_on_frontier, -each.score))
        chosen: set[int] = set()
        for each in ranked:
            family = _trace_back(each.number, by_number) | chosen
            if len(family) <= most:
                chosen = family
        return tuple(each for each in self.candidates if each.number in chosen)


class CandidatePool:
    """Collects the pool of a run, round by round."""

    def __init__(self, result: RunResult) -> None:
        self._result = result
        self._kept: list[tuple[int, Iteration]] = []
        self._best_on: dict[str, tuple[float, set[int]]] = {}
        self._front: Collection[int] = (0,)
        self._best = 0
        self._has_iterations = False

    def add(self, each: RoundResult) -> None:
        iteration = get_iteration(each)
        self._has_iterations = self._has_iterations or iteration is not None
        if iteration is None or iteration.pool_number is None:
            return
        self._kept.append((each.round, iteration))
        self._count(iteration.pool_number, iteration.validation_scores)
        self._front = iteration.front
        if each.decision is not None and each.decision.accepted:
            self._best = iteration.pool_number

    def summarize(self) -> PoolSummary:
        """The pool so far; empty if the search has none."""
        baseline = self._result.baseline
        if not self._has_iterations or baseline is None:
            return PoolSummary()
        scores = score_cases(baseline, self._result.objective)
        self._count(0, scores)
        digest = self._result.initial_profile.digest
        first = Iteration(
            number=0, candidate=digest, pool_number=0, validation_score=sum(scores.values()) / len(scores)
        )
        return PoolSummary(
            candidates=tuple(self._describe(*each) for each in ((0, first), *self._kept)), cases=len(scores)
        )

    def _count(self, number: int, scores: Mapping[str, float]) -> None:
        for case_id, score in scores.items():
            best, numbers = self._best_on.get(case_id, (score, set()))
            if score >= best:
                self._best_on[case_id] = score, {number} | (numbers if score == best else set())

    def _describe(self, number_of_round: int, iteration: Iteration) -> PoolCandidate:
        number = iteration.pool_number or 0
        return PoolCandidate(
            number=number,
            digest=iteration.candidate or "",
            round=number_of_round,
            kind=iteration.kind,
            parents=iteration.parents,
            components=iteration.components,
            score=iteration.validation_score or 0.0,
            best_on=sum(number in numbers for _, numbers in self._best_on.values()),
            is_on_frontier=number in self._front,
            is_best=number == self._best,
        )


def _trace_back(number: int, candidates: Mapping[int, PoolCandidate]) -> set[int]:
    """A candidate and all that it was made from."""
    found, waiting = set[int](), [number]
    while waiting:
        each = waiting.pop()
        if each not in found and each in candidates:
            found.add(each)
            waiting += candidates[each].parents
    return found


def describe_parents(parents: Sequence[int]) -> str:
    """`#0`, or `#1 + #2` of a merge."""
    return " + ".join(f"#{number}" for number in parents)
