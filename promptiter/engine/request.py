"""RunRequest: what to optimize, on which cases, under which rules. Plain frozen data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from promptiter.evaluation.data.case import EvalSet
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goals import SCORE, Goal

if TYPE_CHECKING:
    from promptiter.agents.runner import Runner
    from promptiter.evaluation.evaluator import EvaluationOptions
    from promptiter.evaluation.result import Objective
    from promptiter.evaluation.scorer import Scorer, ScorerFunction
    from promptiter.policies.edit_limits import EditLimits
    from promptiter.policies.stopping import StopPolicy
    from promptiter.profile import Profile
    from promptiter.stages.losses import LossHint, LossPlacement

EvalSets: TypeAlias = EvalSet | Sequence[EvalSet]

SETS = ("train", "validation", "cases", "test")
"""The fields of a request that hold eval sets."""


DEFAULT_ROUNDS = 4
"""The most rounds of a run whose request sets no limit, unless its search ends by itself."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to optimize, on which cases, under which rules.

    The search learns from the failures of the `train` cases and accepts candidates on the `validation` cases. A run
    with few cases may give them once, as `cases`, to be used for both: its verdict is then about these cases only. The
    search never uses the `test` cases: they show whether a gain holds for new cases. A run without cases has a
    `scorer`: a function that scores a profile as a whole (see Scorer).

    `targets` are the surfaces that may change; None means every text surface, or those that the goal can change.
    `teacher` writes expected answers that cases lack, and `judge` replaces the judges of metrics: each is an agent, a
    function from message to answer, or the name of a model. `acceptance` decides which candidates the search keeps,
    and `final_test` whether they are better than the initial profile; with None they are adopted untested, with the
    verdict `no_evidence`. `alpha` is the false-positive rate of the final test. `protected` cases must still pass,
    whatever else `acceptance` says.

    `max_rounds` and `stop` both end the search. By default a run has four rounds, and ends earlier at a perfect
    validation or after three rounds without an accepted candidate; a search that ends by itself, such as coordinate
    descent, is stopped by a perfect validation only. `max_metric_calls` is a hard cap on the cases that the run
    evaluates, from the baseline to the final test, for which two per case are reserved; repeats of a case count once.

    A candidate that changes more than `edit_limits` allow is rejected before anything runs, in every search.

    Another `goal` than the score needs NonInferior as acceptance and a search for that goal, which ends when nothing is
    left to try. The default `seed` is the evaluator's.
    """

    train: EvalSets | None = None
    validation: EvalSets | None = None
    cases: EvalSets | None = None
    scorer: Scorer | ScorerFunction | None = None
    test: EvalSets | None = None
    initial_profile: Profile | None = None
    teacher: Runner | str | None = None
    judge: Runner | str | None = None
    evaluation: EvaluationOptions | None = None
    acceptance: AcceptancePolicy = field(default_factory=AnyGain)
    final_test: FinalTest | None = field(default_factory=FinalTest)
    stop: StopPolicy | None = None
    max_rounds: int | None = None
    max_metric_calls: int | None = None
    targets: Sequence[str] | None = None
    objective: Objective = "mean_score"
    alpha: float = 0.05
    goal: Goal = SCORE
    loss_placements: tuple[LossPlacement, ...] = ()
    hints: tuple[LossHint, ...] = ()
    protected: frozenset[str] = frozenset()
    edit_limits: EditLimits | None = None
    seed: int | None = None
    run_id: str = ""

    @property
    def round_limit(self) -> int:
        """The most rounds of the run."""
        return DEFAULT_ROUNDS if self.max_rounds is None else self.max_rounds
