"""Rejections: the values that were tried or refused so far, so that optimizers do not repeat them.

Of the last rejected candidate, the failed train cases are known, too: an optimizer sees what failed with its values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.stages.optimizer import Rejection
from promptiter.wording import join_names
from traces.text import cut

MOST_KEPT = 100
"""Maximum number of rejections kept per surface, the latest, because they hold whole texts. Vetoes are always kept."""

MOST_FAILURES, MOST_REASON = 3, 120
"""Maximum number of failed train cases in the reason of a rejection, and of characters that say why one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Train cases that failed before, under a candidate."""

    candidate: Profile
    cases: EvalSet
    evaluation: Evaluation


class Rejections:
    """The rejections since the last acceptance. `count` includes those that are no longer kept.

    `rerun` is that of the last rejected candidate, if it was re-run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.rerun: Rerun | None = None
        self._kept: dict[str, list[Rejection]] = {}

    def for_surface(self, surface_id: str) -> tuple[Rejection, ...]:
        """The rejections of one surface, the latest last."""
        return tuple(self._kept.get(surface_id, ()))

    def add(self, new: Iterable[Rejection]) -> None:
        for rejection in new:
            self.count += 1
            kept = self._kept.setdefault(rejection.surface_id, [])
            kept.append(rejection)
            removable = [place for place, each in enumerate(kept) if each.kind != "vetoed"]
            if len(removable) > MOST_KEPT:
                del kept[removable[0]]

    def add_candidate(self, patches: PatchSet, reason: str, *, rerun: Rerun | None = None) -> None:
        """Add the values of a rejected candidate, with the train cases that failed with it."""
        self.rerun = rerun
        names = sorted(patches.surface_ids)
        failed = "" if rerun is None else _describe_failures(rerun.evaluation)
        together = f" (together with {', '.join(names)})" if len(names) > 1 else ""
        self.add(
            Rejection(
                surface_id=patch.surface_id,
                value=patch.value,
                reason=f"{reason}{together}{failed}",
                kind="tried_together" if together else "tried",
            )
            for patch in patches
        )

    def forget_all_but_vetoes(self) -> None:
        """Forget what was tried on top of another profile; it may be tried again. What a person vetoed may not."""
        vetoed = [each for kept in self._kept.values() for each in kept if each.kind == "vetoed"]
        self.count, self.rerun, self._kept = 0, None, {}
        self.add(vetoed)


def _describe_failures(rerun: Evaluation) -> str:
    found: dict[str, str] = {}
    for row in rerun.rows:
        if not row.passed:
            reasons = (score.reason for score in row.scores if not score.passed and score.reason)
            reason = next(reasons, "") if row.error is None else row.error.message
            found.setdefault(row.case_id, f"{row.case_id}: {cut(reason, MOST_REASON)}" if reason else row.case_id)
    failures = join_names([*found.values()], limit=MOST_FAILURES)
    return f"; train cases that still fail with it: {failures}" if found else ""
