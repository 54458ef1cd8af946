"""Goal: what a run is for. A better score, or the same quality for fewer dollars or tokens.

    RunRequest(..., goal=Goal(kind="fewer_tokens", margin=0.05), acceptance=NonInferior(0.05))

With another goal than the score, a candidate is accepted if it is no worse and takes less (see NonInferior). The final
test then shows both, on its own runs: that any loss is smaller than the margin, and that the tokens or dollars are
fewer (`goal_test`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation
from promptiter.numbers import is_number
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json

GoalKind: TypeAlias = Literal["score", "cheaper", "fewer_tokens"]
Figure: TypeAlias = Literal["usd", "tokens"]

UNITS: dict[Figure, str] = {"usd": "dollars", "tokens": "tokens"}

MARGIN = 0.05
"""A loss this small rarely matters, and 30 cases without run noise can exclude it."""

SHORTENABLE_TYPES: frozenset[str] = frozenset(
    ("instruction", "global_instruction", "prompt", "tool", "field", "skill", "examples")
)
"""The types that can lose sentences or examples. A file may be code, where every line counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a run is for. With another goal than the score, the loss of the objective must stay below `margin`.

    `models` are the models that a run for lower cost may use in any node; the default is the choices of each node.
    """

    kind: GoalKind = "score"
    margin: float = MARGIN
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(GoalKind):
            raise SetupError(f"the kind of a goal is {self.kind!r}; give one of {', '.join(get_args(GoalKind))}")
        if not is_number(self.margin) or not 0 < self.margin < 1:
            raise SetupError(f"the margin of a goal is {self.margin!r}; give a number between 0 and 1, such as 0.05")
        if isinstance(self.models, str):
            raise SetupError(f"the models of a goal are {self.models!r}; give a tuple: ({self.models!r},)")
        if self.models and self.kind != "cheaper":
            raise SetupError(f"a goal of kind {self.kind!r} has models; give them to a goal of kind 'cheaper'")

    @property
    def figure(self) -> Figure | None:
        """The figure to lower; None if the score is to rise."""
        if self.kind == "score":
            return None
        return "usd" if self.kind == "cheaper" else "tokens"

    @property
    def surface_types(self) -> frozenset[str]:
        """The types of surfaces that may change if the request names no targets."""
        if self.kind == "cheaper":
            return frozenset(("model",))
        return SHORTENABLE_TYPES if self.kind == "fewer_tokens" else TEXT_TYPES


SCORE = Goal()


def check_scores(goal: Goal, found: Evaluation) -> None:
    """Raise if a score is not between 0 and 1, as a margin needs. This is known once the baseline has run."""
    if goal.kind == "score":
        return
    scores = (score for row in found.rows for score in row.scores if score.value is not None)
    for score in scores:
        if score.value is not None and not 0 <= score.value <= 1:
            raise SetupError(
                f"metric {score.metric!r} gives {score.value:g}; the goal {goal.kind!r} needs scores between 0 and 1"
            )


def list_other_models(goal: Goal, surface: Surface, current: Json) -> tuple[str, ...]:
    """Return the models that a goal allows instead of the current one, in the order they were named."""
    named = goal.models or tuple(str(choice) for choice in surface.limits.choices)
    return tuple(dict.fromkeys(name for name in named if name != current and surface.allows(name)))
