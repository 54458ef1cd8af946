"""Constraints on figures other than the objective, and tie-breakers between candidates with equal scores.

    acceptance = AnyGain() & Constraint("tokens", at_most_times=1.1) & Constraint("cost_usd", at_most=0.02)
    acceptance = TieBreak(("tokens", "characters"), min_gain=0.01)

What a figure is, and which of several with one name counts, is in `figures`. `figure_gain` decides by figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

from promptiter.errors import SetupError, nearest
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ROUNDING, ComposablePolicy
from promptiter.policies.combine import iter_policies
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.figures import FIGURES, check_figure_name, compare_figure

_BOUNDS = ("at_most", "at_least", "at_most_times", "at_least_times")


@dataclass(frozen=True, slots=True, repr=False)
class Constraint(ComposablePolicy):
    """Accepts a candidate whose figure is within bounds: absolute ones, or multiples of the accepted profile's figure.

    Combine it with the policy that decides on the gain, using `&`. `latency_s` differs between equal runs, so it needs
    `measured=True`.
    """

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    at_most_times: float | None = None
    at_least_times: float | None = None
    measured: bool = False

    def __post_init__(self) -> None:
        check_figure_name(self.figure, measured=self.measured)
        given = {name: getattr(self, name) for name in _BOUNDS if getattr(self, name) is not None}
        if not given:
            raise SetupError(f"the constraint on {self.figure!r} has no bound; give one of {', '.join(_BOUNDS)}")
        for name, value in given.items():
            if not is_number(value, least=0 if name.endswith("_times") else -math.inf):
                raise SetupError(f"{name} of the constraint on {self.figure!r} is {value!r}; give a number such as 1.1")

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        arguments = [f"{name}={value!r}" for name, value in given.items() if value not in (None, False)]
        return f"Constraint({', '.join([repr(self.figure), *arguments])})"

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        before, after = compare_figure(self.figure, evidence)
        answers = [self._check_bound(bound, before, after) for bound in _BOUNDS if getattr(self, bound) is not None]
        if broken := [text for is_met, text in answers if not is_met]:
            return evidence.reject(f"{self.figure} {'; '.join(broken)}")
        return evidence.accept(f"{self.figure} {'; '.join(text for _, text in answers)}")

    def _check_bound(self, bound: str, before: float | None, after: float | None) -> tuple[bool, str]:
        """Return whether a bound is met, and a text that follows the name of the figure."""
        limit: float = getattr(self, bound)
        side, is_relative = bound.removesuffix("_times").replace("_", " "), bound.endswith("_times")
        text = f"{limit:g}" + " times that of the accepted profile" * is_relative
        if after is None or (is_relative and before is None):
            return False, f"is unknown, so it is not known to be {side} {text}"
        if is_relative and before is not None:
            limit *= before
            text = f"{limit:.4g}, {text} ({before:.4g})"
        over = after - limit if side == "at most" else limit - after
        is_met = over <= ROUNDING * max(1.0, abs(limit))
        return is_met, f"{after:.4g} is {'' if is_met else 'not '}{side} {text}"


@dataclass(frozen=True, slots=True, repr=False)
class TieBreak(ComposablePolicy):
    """Accepts a gain of more than `min_gain`. If the gain or loss is smaller, the first figure that differs decides.

    Fewer tokens, dollars, characters and seconds are better; a metric or a figure of a scorer should be higher. If no
    figure differs, the candidate is rejected.
    """

    by: tuple[str, ...]
    min_gain: float = 0.0
    measured: bool = False

    def __post_init__(self) -> None:
        by: object = self.by
        if not isinstance(by, tuple | list) or not by:
            raise SetupError(f"the tie-breakers are {by!r}; give a tuple of figures, such as ('tokens',)")
        object.__setattr__(self, "by", tuple(by))
        for figure in self.by:
            check_figure_name(figure, measured=self.measured)
        if not is_number(self.min_gain, least=0):
            raise SetupError(f"min_gain is {self.min_gain!r}; give a number that is not negative, such as 0.005")

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None or evidence.gain is None:
            return evidence.reject(evidence.problem or f"there is no gain in {evidence.objective}")
        gain = f"gain {evidence.gain:+.4g}"
        if abs(evidence.gain) > self.min_gain + ROUNDING:
            better = evidence.gain > 0
            reason = f"{gain} is {'above' if better else 'below'} {self.min_gain if better else -self.min_gain:g}"
            return evidence.accept_if(better, reason)
        tied = f"{gain} is within {self.min_gain:g}"
        for figure in self.by:
            before, after = compare_figure(figure, evidence)
            if before is None or after is None or math.isclose(before, after, rel_tol=1e-9, abs_tol=ROUNDING):
                continue
            less_is_better = figure in FIGURES and figure not in evidence.candidate.thresholds
            reason = f"{tied}, and {figure} is {after:.4g}, was {before:.4g}"
            return evidence.accept_if((after < before) == less_is_better, reason)
        return evidence.reject(f"{tied}, and there is no difference in {', '.join(self.by)}")


def list_figures(policy: object) -> list[str]:
    """The figures that a policy names, in order."""
    return [name for part in iter_policies(policy) for name in _list_named(part)]


def decides_by_figures(policy: object) -> bool:
    """Whether a policy decides by raw figures, so that a part of a candidate may help although no score shows it."""
    return any(isinstance(part, Bound | FigureGain) for part in iter_policies(policy))


def check_figures(policy: object, metrics: Collection[str]) -> Iterator[str]:
    """Yield the problems of the figures that a policy names, in a run without a scorer."""
    known = [*metrics, *FIGURES]
    for part in iter_policies(policy):
        for name in _list_named(part):
            if name not in known:
                advice = f"give a metric or one of {', '.join(FIGURES)}{nearest(name, known)}"
                yield f"acceptance {part!r} names {name!r}, which is not a figure; {advice}"


def _list_named(part: object) -> tuple[str, ...]:
    match part:
        case TieBreak(by=figures):
            return figures
        case Constraint(figure=figure) | Bound(figure=figure):
            return (figure,)
        case FigureGain(figure=figure, tie_breakers=others):
            return (figure, *(name for _, name in others))
        case _:
            return ()
