"""BlameReport: what BlameFinder found in one evaluation. PatchProposer reads it, and so does the next pass."""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.search.step_examples import EvaluatedRuns
from promptiter.stages.contracts import AggregateResult, SurfaceGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReport:
    """The evaluated runs of a profile, the signals with enough support for a patch, and all gradients by surface.

    `round` is the one that it was made in; a later round may use it.
    """

    round: int
    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    runs: EvaluatedRuns
    signals: tuple[AggregateResult, ...] = ()
    gradients: dict[str, tuple[SurfaceGradient, ...]]

    @property
    def largest_share(self) -> float:
        """The support of the best supported signal, as a share of the cases."""
        return max((signal.support for signal in self.signals), default=0.0) / max(1, len(self.evaluation.cases))
