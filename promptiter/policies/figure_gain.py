"""FigureGain and Bound: decisions by what a scorer measured, in its own units, rather than by the score from 0 to 1.

    acceptance = Bound("violation_count", "<=", 0) & FigureGain("f1", tie_breakers=(("lower", "length_tokens"),))

A candidate that breaks a bound is rejected, whatever else it measures. Otherwise the primary figure decides, and where
it is equal or close, the first tie-breaker that differs. Differences are those of the decimal numbers: 0.75 is better
than 0.7 by exactly 0.05.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

from promptiter.errors import SetupError
from promptiter.evaluation.stats.power import noise_bar
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ComposablePolicy
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.figures import check_figure_name, compare_figure, has_recorded_figure, list_run_figures

Operator: TypeAlias = Literal["<=", "<", ">=", ">", "==", "!="]
Direction: TypeAlias = Literal["maximize", "minimize"]
Side: TypeAlias = Literal["lower", "higher"]

_OPERATORS: Mapping[Operator, Callable[[Decimal, Decimal], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True, repr=False)
class Bound(ComposablePolicy):
    """Accepts a candidate for whose figure this comparison holds: `Bound("runtime_s", "<=", 300)`.

    True and false count as 1 and 0. Combine it with the policy that decides on the gain, using `&`.
    """

    figure: str
    op: Operator
    value: float

    def __post_init__(self) -> None:
        check_figure_name(self.figure)
        if self.op not in _OPERATORS:
            known = ", ".join(_OPERATORS)
            raise SetupError(f"the operator of the bound on {self.figure!r} is {self.op!r}; give one of {known}")
        if not isinstance(self.value, bool) and not is_number(self.value):
            raise SetupError(f"the value of the bound on {self.figure!r} is {self.value!r}; give a number")

    def is_met(self, figure: float | None) -> bool:
        """Whether a figure is within the bound. One that is unknown is not."""
        return figure is not None and _OPERATORS[self.op](to_decimal(figure), to_decimal(self.value))

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        _, figure = read_figures(self.figure, evidence)
        if figure is None:
            return evidence.reject(f"{self.figure} is unknown, so it is not known to be {self.op} {self.value}")
        if self.is_met(figure):
            return evidence.accept("")  # the policy that decides on the gain has the reason
        return evidence.reject(f"{self.figure} is {format_figure(figure)}, which is not {self.op} {self.value}")


@dataclass(frozen=True, slots=True, repr=False)
class FigureGain(ComposablePolicy):
    """Accepts a candidate whose primary figure is better by more than `min_gain`.

    If it differs by `min_gain` or less, the first of the tie-breakers that differs decides: pairs of the better side
    and the figure, `("lower", "length_tokens")`. If none differs, or a figure that is needed is unknown, the candidate
    is rejected. With repeats, a difference within `sigma` times the spread of equal runs counts as none.
    """

    figure: str
    direction: Direction = "maximize"
    min_gain: float = 0.0
    tie_breakers: tuple[tuple[Side, str], ...] = ()
    sigma: float = 0.0

    def __post_init__(self) -> None:
        check_figure_name(self.figure)
        if self.direction not in get_args(Direction):
            raise SetupError(
                f"the direction of {self.figure!r} is {self.direction!r}; give {' or '.join(get_args(Direction))}"
            )
        if not is_number(self.min_gain, least=0):
            raise SetupError(f"min_gain is {self.min_gain!r}; give a number that is not negative, such as 0.005")
        if not is_number(self.sigma, least=0):
            raise SetupError(f"sigma is {self.sigma!r}; give a number that is not negative, such as 1.0")
        object.__setattr__(self, "tie_breakers", tuple(map(_check_tie_breaker, self.tie_breakers)))

    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        defaults = {each.name: each.default for each in fields(self)[1:]}
        arguments = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
        return f"FigureGain({', '.join([repr(self.figure), *arguments])})"

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        before, after = read_figures(self.figure, evidence)
        if before is None or after is None:
            return evidence.reject(f"{self.figure} is unknown")
        gain = to_decimal(after) - to_decimal(before)
        if self.direction == "minimize":
            gain = -gain
        primary = _describe_change(self.figure, before, after)
        noise = self._measure_noise(self.figure, evidence)
        if abs(gain) > to_decimal(max(self.min_gain, noise)):
            verdict = "better" if gain > 0 else "worse"
            return evidence.accept_if(gain > 0, f"{primary}: {verdict} by {_format_difference(gain)}")
        tied = primary
        if gain:
            within = f"at most {self.min_gain:g}" if noise <= self.min_gain else f"no more than the noise, {noise:.3g}"
            tied = f"{primary}: a difference of {within}"
        for side, figure in self.tie_breakers:
            before, after = read_figures(figure, evidence)
            if before is None or after is None:
                return evidence.reject(f"{tied}; {figure} is unknown")
            if abs(after - before) > self._measure_noise(figure, evidence):
                is_better = (after < before) == (side == "lower")
                verdict = "better" if is_better else "worse"
                return evidence.accept_if(is_better, f"{tied}; {_describe_change(figure, before, after)}: {verdict}")
        names = ", ".join(figure for _, figure in self.tie_breakers)
        return evidence.reject(f"{tied}; no difference in {names}" if names else tied)

    def _measure_noise(self, figure: str, evidence: Evidence) -> float:
        """The difference that chance may make, by the spread of equal runs; 0 without repeats."""
        if not self.sigma:
            return 0.0
        before, after = (
            list_run_figures(figure, each) for each in (evidence.common.accepted, evidence.common.candidate)
        )
        return noise_bar(before, after, sigma=self.sigma)


def read_figures(name: str, evidence: Evidence) -> tuple[float | None, float | None]:
    """Return a figure under both profiles. The clock of promptiter is never read: equal runs must decide equally."""
    arms = evidence.common.accepted, evidence.common.candidate
    if name == "latency_s" and name not in evidence.candidate.thresholds and not has_recorded_figure(name, arms):
        return None, None
    return compare_figure(name, evidence)


def to_decimal(figure: float) -> Decimal:
    """The number as a person reads it: 0.1 is one tenth."""
    return Decimal(repr(float(figure)))


def format_figure(figure: float) -> str:
    """`12` rather than `12.0`."""
    return f"{figure:.12g}"


def _format_difference(difference: Decimal) -> str:
    """All digits of a difference that was written so, and 6 of one that was computed."""
    exact = f"{abs(difference).normalize():f}"
    return exact if len(exact) <= 12 else f"{abs(difference):.6g}"


def _describe_change(figure: str, before: float, after: float) -> str:
    if before == after:
        return f"{figure} is {format_figure(after)}, as before"
    return f"{figure} is {format_figure(after)}, was {format_figure(before)}"


def _check_tie_breaker(given: object) -> tuple[Side, str]:
    match given:
        case ("lower", str(figure)) | ["lower", str(figure)] if figure:
            return "lower", figure
        case ("higher", str(figure)) | ["higher", str(figure)] if figure:
            return "higher", figure
        case _:
            raise SetupError(f"a tie-breaker is {given!r}; give the better side and a figure: ('lower', 'tokens')")
