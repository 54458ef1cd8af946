"""Lineage: the candidates from the initial profile to the accepted one, and the gradients that their patches name.

A journal may hold ten thousand rounds: one pass notes which candidate came from which, then only the rounds that matter
are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from promptiter.backprop.record import get_passes
from promptiter.evaluation.result import CaseRow, Evaluation, merge_evaluations
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult
from promptiter.stages.contracts import SurfaceGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChange:
    """A candidate on the way to the accepted profile, its round, and the profile that it was compared with.

    `compared` are the rows of that profile that the decision rests on, as far as the record names them.
    """

    round: RoundResult
    candidate: CandidateResult
    compared: Evaluation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGradient:
    """A gradient of the record, its round, and the digest of the trace that it was found in, if that is known."""

    gradient: SurfaceGradient
    round: int
    trace_digest: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a candidate is in the record, and the place of its parent in the list of places."""

    round: int
    candidate: int
    parent: int | None


class Lineage:
    """Reads the lineage of the accepted profile of a run."""

    def __init__(self, result: RunResult) -> None:
        self._result = result
        self._places: list[_Place] = []
        self._accepted: int | None = None
        self._evaluations: dict[int, int] = {}
        self._blamed: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        for position, each in enumerate(result.rounds):
            self._index_round(position, each)
            self._add_candidates(position, each, last)

    def changes(self) -> Iterator[AcceptedChange]:
        """The candidates from the first to the accepted one."""
        outside = {each.number: each for each in self._result.evaluations}
        before: dict[int | None, Evaluation] = {}
        for place in self._trace_back():
            each = self._result.rounds[place.round]
            candidate = each.candidates[place.candidate]
            own = {one.number: one for one in each.all_evaluations}
            known = outside | before | own
            seen = () if candidate.evidence is None else sorted(candidate.evidence.accepted)
            compared = merge_evaluations(known[number] for number in seen if number in known)
            yield AcceptedChange(round=each, candidate=candidate, compared=compared)
            before = own

    def find_gradients(self, ids: Iterable[str]) -> dict[str, FoundGradient]:
        """The gradients with these ids; those that this run did not record are left out."""
        wanted = set(ids)
        positions = {position for each in wanted for position in self._blamed.get(_get_run(each), ())}
        found = {}
        for position in sorted(positions):
            each = self._result.rounds[position]
            gradients = [gradient for one in get_passes(each) for gradient in one.gradients if gradient.id in wanted]
            rows = {_get_run(gradient.id): self._list_rows(gradient, each) for gradient in gradients}
            for gradient in gradients:
                row = rows[_get_run(gradient.id)].get((gradient.case_id, gradient.repeat))
                digests = () if row is None else row.trace_digests[gradient.turn : gradient.turn + 1]
                found[gradient.id] = FoundGradient(gradient=gradient, round=each.round, trace_digest="".join(digests))
        return found

    def _list_rows(self, gradient: SurfaceGradient, each: RoundResult) -> dict[tuple[str, int], CaseRow]:
        """The rows of the evaluation that a gradient of a round was found in, by case and repeat."""
        name = _get_run(gradient.id)
        number = int(name) if name.isdecimal() else None
        evaluations = each.all_evaluations
        if number is not None and all(one.number != number for one in evaluations) and number in self._evaluations:
            evaluations = self._result.rounds[self._evaluations[number]].all_evaluations
        found = [one for one in evaluations if one.number == number] or [
            one for one in evaluations if one.phase in ("train", "rerun")
        ]
        return {(row.case_id, row.repeat): row for one in found for row in one.rows}

    def _index_round(self, position: int, each: RoundResult) -> None:
        """Note which evaluations and which gradients are in a round."""
        self._evaluations |= {one.number: position for one in each.all_evaluations if one.number is not None}
        for name in {_get_run(gradient.id) for one in get_passes(each) for gradient in one.gradients}:
            self._blamed.setdefault(name, []).append(position)

    def _add_candidates(self, position: int, each: RoundResult, last: dict[str, int]) -> None:
        """Add the places of a round's candidates. `last` has the place of each profile so far."""
        for number, candidate in enumerate(each.candidates):
            parent = last.get(candidate.parents[0]) if candidate.parents else self._accepted
            last[candidate.profile.digest] = len(self._places)
            self._places.append(_Place(round=position, candidate=number, parent=parent))
        if each.decision is not None and each.decision.accepted and each.candidate is not None:
            self._accepted = last[each.candidate.profile.digest]

    def _trace_back(self) -> list[_Place]:
        """The places from the first candidate to the accepted one."""
        found, number = list[_Place](), self._accepted
        while number is not None:
            found.append(self._places[number])
            number = self._places[number].parent
        return found[::-1]


def _get_run(gradient_id: str) -> str:
    """The first part of a gradient's id: the number of the evaluation that it was found in."""
    return gradient_id.partition("/")[0]
