"""Found: what one pass found out about a profile, for the pass that follows and for those who write patches."""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.search.step_examples import Runs
from promptiter.stages.contracts import AggregateResult, SurfaceGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one pass found out about a profile: its runs, and the signals that deserve a patch, with their gradients."""

    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    runs: Runs
    signals: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]

    @property
    def largest_share(self) -> float:
        """The support of the best supported signal, as a share of the cases."""
        return max((signal.support for signal in self.signals), default=0.0) / max(1, len(self.evaluation.cases))
