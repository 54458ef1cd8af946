"""Goal: what a run is for. A better score, or the same quality for fewer dollars or tokens.

    RunRequest(..., goal=Goal(kind="fewer_tokens", margin=0.05), acceptance=NonInferior(0.05))

With another goal than the score, a candidate is accepted if it is no worse and takes less (see NonInferior). The final
test then shows both, on its own runs: that any loss is smaller than the margin, and that the tokens or dollars are
fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from promptiter.errors import SetupError, SurfaceValueError
from promptiter.evaluation.result import Evaluation, Objective, get_best_value, get_worst_value
from promptiter.evaluation.stats.final_test import Block, FinalTestOutcome, FinalTestResult, decide_for_these_cases
from promptiter.evaluation.stats.gain_interval import UNSEEN_FAILURES
from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.non_inferiority import decide_non_inferiority
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.saving import decide_saving, decide_saving_for_new_cases
from promptiter.numbers import is_number
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json, Usage

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


def decide_for_goal(
    goal: Goal,
    cases: Sequence[PairedScores],
    *,
    blocks: Sequence[Block],
    seed: int,
    amounts: Sequence[PairedScores] | None = None,
    objective: Objective = "mean_score",
    unseen_failures: float = UNSEEN_FAILURES,
) -> FinalTestResult:
    """Decide the final test of this goal for these cases: better, or not worse by the margin or more and taking less.

    `amounts` are the tokens or dollars of the same runs; None if they are unknown.
    """
    if goal.figure is None:
        worst, best = get_worst_value(objective), get_best_value(objective)
        return decide_for_these_cases(
            cases, blocks=blocks, seed=seed, worst=worst, best=best, unseen_failures=unseen_failures
        )
    on_score = decide_non_inferiority(cases, margin=goal.margin, blocks=blocks)
    if amounts is None:
        return replace(on_score, outcome="not_shown", reason=f"{on_score.reason}; {_say_unknown(goal)}")
    return _require_both(on_score, decide_saving(amounts, unit=UNITS[goal.figure], blocks=blocks, seed=seed))


def decide_for_goal_on_new_cases(
    goal: Goal,
    cases: Sequence[PairedScores],
    *,
    alpha: float,
    amounts: Sequence[PairedScores] | None = None,
    objective: Objective = "mean_score",
) -> FinalTestResult:
    """Decide the same for new cases, on cases that taught the search nothing but a few decisions."""
    worst, best = get_worst_value(objective), get_best_value(objective)
    if goal.figure is None:
        return decide_for_new_cases(cases, alpha=alpha, worst=worst, best=best)
    on_score = decide_for_new_cases(cases, alpha=alpha, margin=goal.margin, worst=worst, best=best)
    if amounts is None:
        outcome: FinalTestOutcome = "loss" if on_score.outcome == "loss" else "not_shown"
        return replace(on_score, outcome=outcome, reason=f"{on_score.reason}; {_say_unknown(goal)}")
    return _require_both(on_score, decide_saving_for_new_cases(amounts, unit=UNITS[goal.figure], alpha=alpha))


def _require_both(on_score: FinalTestResult, saving: FinalTestResult) -> FinalTestResult:
    """Join the results for the score and for the saving. Both are tested at alpha, since both must be shown."""
    decided = [each.outcome for each in (on_score, saving) if each.outcome not in ("shown", "open")]
    still_open = [each for each in (on_score, saving) if each.outcome == "open"]
    needed = max((each.needed_repeats for each in still_open), default=0)
    return replace(
        on_score,
        outcome=decided[0] if decided else "open" if still_open else "shown",
        reason=f"{on_score.reason}; {saving.reason}",
        needed_repeats=0 if decided else needed,
        saving=saving,
    )


def _say_unknown(goal: Goal) -> str:
    return f"the {UNITS[goal.figure or 'tokens']} of a run are unknown, so a saving cannot be shown"


def pair_amounts(before: Evaluation, after: Evaluation, figure: Figure) -> tuple[PairedScores, ...] | None:
    """Return the tokens or dollars of each case under both profiles, repeat by repeat; None if one is unknown.

    A repeat that failed under one of the profiles is left out of both: a failed run may have ended early.
    """
    arms = [{(row.case_id, row.repeat): row for row in arm.rows if row.error is None} for arm in (before, after)]
    found = []
    for case_id, group in groupby(sorted(arms[0].keys() & arms[1].keys()), key=itemgetter(0)):
        runs = list(group)
        first, second = ([_read_amount(arm[run].usage, figure) for run in runs] for arm in arms)
        known = [[amount for amount in each if amount is not None] for each in (first, second)]
        if min(map(len, known)) < len(runs):
            return None
        numbers = tuple(repeat for _, repeat in runs)
        found.append(PairedScores(case_id=case_id, before=tuple(known[0]), after=tuple(known[1]), numbers=numbers))
    return tuple(found) or None


def _read_amount(usage: Usage, figure: Figure) -> float | None:
    if figure == "usd":
        return usage.cost_usd
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    return float(usage.tokens)


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
    return tuple(dict.fromkeys(name for name in named if name != current and _accepts(surface, name)))


def _accepts(surface: Surface, model: str) -> bool:
    try:
        surface.check(model)
    except SurfaceValueError:
        return False
    return True
