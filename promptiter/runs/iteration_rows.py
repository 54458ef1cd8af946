"""The iterations of a search such as GEPA as rows of a table, for the command line and the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from promptiter.backprop.iteration_record import Iteration
from promptiter.backprop.record import StagesMeasured
from promptiter.runs.candidate_pool import PoolSummary, describe_parents
from promptiter.runs.round_summary import CandidateSummary
from promptiter.runs.summary import RunSummary
from promptiter.wording import describe_tokens, format_score, plural

IterationOutcome: TypeAlias = Literal["best", "kept", "rejected", "no candidate", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRow:
    """An iteration in words. `minibatch` are the mean scores of the parents and of the candidate on the mini-batch.

    A candidate that became the best was accepted; one that was `kept` is in the pool. `number` is its number there.
    """

    round: int
    kind: Literal["reflective", "merge", "none"]
    parents: str
    components: tuple[str, ...]
    minibatch: str
    validation: float | None
    outcome: IterationOutcome
    number: str
    reason: str
    reflection: str


def list_iterations(summary: RunSummary) -> Iterator[IterationRow]:
    """The rows of all rounds. One that ended early has what is known of it."""
    for each in summary.rounds:
        candidate = next(reversed(each.candidates), None)
        iteration = each.iteration or _guess_iteration(each.round, candidate, summary.pool)
        yield IterationRow(
            round=each.round,
            kind=iteration.kind if candidate is not None else "none",
            parents=describe_parents(iteration.parents),
            components=iteration.components,
            minibatch=_describe_minibatch(iteration),
            validation=iteration.validation_score,
            outcome=_name_outcome(candidate, iteration),
            number="" if iteration.pool_number is None else f"#{iteration.pool_number}",
            reason=each.skipped if candidate is None else candidate.reason,
            reflection=_describe_reflection(each.reflection),
        )


def _guess_iteration(number: int, candidate: CandidateSummary | None, pool: PoolSummary) -> Iteration:
    """What the candidate of a round that ended early says about its iteration."""
    if candidate is None:
        return Iteration(number=number)
    parents = [found.number for each in candidate.parents if (found := pool.find(each)) is not None]
    kind: Literal["reflective", "merge"] = "merge" if len(candidate.parents) > 1 else "reflective"
    return Iteration(number=number, kind=kind, parents=tuple(parents), components=candidate.patched)


def _name_outcome(candidate: CandidateSummary | None, iteration: Iteration) -> IterationOutcome:
    if candidate is None:
        return "no candidate"
    if candidate.accepted is None:
        return "undecided"
    if candidate.accepted:
        return "best"
    return "rejected" if iteration.pool_number is None else "kept"


def _describe_minibatch(iteration: Iteration) -> str:
    """`0.333 → 0.667`; a merge has two parents, and what was skipped has no candidate."""
    parents = " and ".join(format_score(fmean(scores)) for scores in iteration.parent_scores if scores)
    if not iteration.candidate_scores:
        return parents
    return f"{parents} → {format_score(fmean(iteration.candidate_scores))}"


def _describe_reflection(measured: StagesMeasured) -> str:
    if not measured.calls:
        return ""
    tokens = describe_tokens(
        measured.input_tokens + measured.output_tokens, calls=measured.calls, uncounted=measured.uncounted_calls
    )
    return f"{plural(measured.calls, 'call')}, {tokens}"
