"""EditGuard: finds candidates that change more than the request allows, whichever search makes them.

A search may run a candidate before it proposes it. Then the profile that it was made from is not known yet, so it is
compared with those of the run so far: it exceeds the limits only if it differs too much from each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, Evaluator
from promptiter.evaluation.metrics.metric import leave_unscored
from promptiter.evaluation.result import CaseRow
from promptiter.policies.edit_limits import EXCESS, EditLimits
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import Failure


class EditGuard:
    """Compares candidates with the profiles that they were made from. Without limits it finds nothing."""

    def __init__(self, limits: EditLimits | None, snapshot: StructureSnapshot, *, baseline: Profile) -> None:
        self._limits = limits
        self._snapshot = snapshot
        self._known = {baseline.digest: baseline}
        self._parents: dict[str, tuple[Profile, ...]] = {}

    def note_parents(self, candidate: Profile, parents: Sequence[Profile]) -> None:
        """Remember what a candidate was made from."""
        if self._limits is None:
            return
        self._parents[candidate.digest] = tuple(parents)
        self._known |= {each.digest: each for each in parents}
        if self.find_excess(candidate) is None:
            self._known[candidate.digest] = candidate

    def find_excess(self, candidate: Profile) -> str | None:
        """Say which limit a candidate exceeds, compared with the nearest profile it may be made from; None if none."""
        if self._limits is None or candidate.digest in self._known:
            return None
        first: str | None = None
        for parent in self._parents.get(candidate.digest) or reversed(self._known.values()):
            excess = self._limits.find_excess(parent, candidate, self._snapshot)
            if excess is None:
                return None
            first = first or excess
        return first


def build_skipped_rows(
    excess: str, runs: Sequence[CaseRepeat], eval_set: EvalSet, evaluator: Evaluator
) -> list[CaseRow]:
    """The rows of runs that are skipped, with the limit that their candidate exceeds as the error."""
    failure = Failure(EXCESS, excess)
    scores = tuple(leave_unscored(metric, excess) for metric in evaluator.metrics)
    sets = {case.id: case.eval_set_id for case in eval_set.cases}
    return [
        CaseRow(case_id=case_id, eval_set_id=sets[case_id], repeat=repeat, scores=scores, error=failure)
        for case_id, repeat in runs
    ]
