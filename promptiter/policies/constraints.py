"""Constraints on figures other than the objective, and tie-breakers between candidates with equal scores.

    acceptance = AnyGain() & Constraint("tokens", at_most_times=1.1) & Constraint("cost_usd", at_most=0.02)
    acceptance = TieBreak(("tokens", "characters"), min_gain=0.01)

A figure is `tokens` or `cost_usd` of a case run by its recorded usage, `characters` of the texts that may change,
`latency_s` by the clock, or the mean of a metric, which wins if it has the same name. Figures of case runs are means on
validation over the runs without an error. An unknown figure is never 0: it meets no bound and breaks no tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

from promptiter.errors import SetupError, nearest
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ROUNDING, ComposablePolicy
from promptiter.policies.combine import iter_policies
from promptiter.policies.evidence import AcceptanceDecision, Evidence

FIGURES = ("tokens", "cost_usd", "characters", "latency_s")
"""Lower is better for these; for a metric, higher is."""

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
        _check_figure(self.figure, measured=self.measured)
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

    Fewer tokens, dollars, characters and seconds are better; a metric should be higher. If no figure differs, the
    candidate is rejected.
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
            _check_figure(figure, measured=self.measured)
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


def compare_figure(name: str, evidence: Evidence) -> tuple[float | None, float | None]:
    """Return a figure under the accepted profile and under the candidate, None where it is unknown."""
    arms = evidence.common.accepted, evidence.common.candidate
    if name in evidence.candidate.thresholds:
        means = [[case.means[name] for case in each.cases] for each in arms]
        worst = min([0.0, *(mean for each in means for mean in each if mean is not None)])
        before, after = (_mean([worst if mean is None else mean for mean in each]) for each in means)
        return before, after
    if name == "characters":
        return evidence.characters or (None, None)
    return _average_runs(name, arms[0]), _average_runs(name, arms[1])


def check_figures(policy: object, metrics: Collection[str]) -> Iterator[str]:
    """Yield the problems of the figures that a policy names."""
    known = [*metrics, *FIGURES]
    for part in iter_policies(policy):
        named = part.by if isinstance(part, TieBreak) else (part.figure,) if isinstance(part, Constraint) else ()
        for name in named:
            if name not in known:
                advice = f"give a metric or one of {', '.join(FIGURES)}{nearest(name, known)}"
                yield f"acceptance {part!r} names {name!r}, which is not a figure; {advice}"


def _average_runs(name: str, evaluation: Evaluation) -> float | None:
    values = [_measure_run(name, row) for row in evaluation.rows if row.error is None]
    if name == "latency_s":
        values = [value for value in values if value is not None]  # cached answers take no time
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) else None


def _measure_run(name: str, row: CaseRow) -> float | None:
    match name:
        case "tokens":
            parts = (row.usage.input_tokens, row.usage.output_tokens)
            return None if parts == (None, None) else float(row.usage.tokens)
        case "cost_usd":
            return row.usage.cost_usd
        case "latency_s":
            return row.measured.duration_s if row.origin == "executed" else None
        case _:
            return None


def _mean(values: Collection[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _check_figure(name: object, *, measured: bool) -> None:
    if not isinstance(name, str) or not name:
        raise SetupError(f"the figure is {name!r}; give a metric or one of {', '.join(FIGURES)}")
    if name == "latency_s" and not measured:
        raise SetupError(
            "latency_s is measured by the clock, so two equal runs may decide differently; "
            "pass measured=True if you want that, or bound tokens instead"
        )
