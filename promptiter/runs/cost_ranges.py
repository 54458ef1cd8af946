"""Cost: calls, tokens, dollars and seconds, each as a range from a short run to a long one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mul
from typing import Literal, TypeAlias

Figure: TypeAlias = Literal["calls", "tokens", "usd"]
"""What a budget can cap."""


@dataclass(frozen=True, slots=True)
class Range:
    """A figure in a short run, a typical run and a long run. Most runs stay between `low` and `high`."""

    low: float
    typical: float
    high: float

    @classmethod
    def exactly(cls, figure: float) -> Range:
        return cls(figure, figure, figure)

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high

    def __add__(self, other: Range) -> Range:
        return self.combine(other, add)

    def __mul__(self, other: Range | float) -> Range:
        return self.combine(other if isinstance(other, Range) else Range.exactly(other), mul)

    def at_most(self, most: float) -> Range:
        return self.map(lambda figure: min(figure, most))

    def at_least(self, least: float) -> Range:
        return self.map(lambda figure: max(figure, least))

    def map(self, function: Callable[[float], float]) -> Range:
        return Range(function(self.low), function(self.typical), function(self.high))

    def combine(self, other: Range, function: Callable[[float, float], float]) -> Range:
        """Apply a function to both lows, both typical figures and both highs."""
        low, typical = function(self.low, other.low), function(self.typical, other.typical)
        return Range(low, typical, function(self.high, other.high))


ZERO = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call, a case run, a stage, a node or a run costs. Seconds are those on the clock.

    `usd` is None if no price is known. If only some prices are known, `usd` is the sum of those, and `unpriced` names
    the models without a price. `uncounted` names the models that do not report their tokens, which are left out.
    """

    calls: Range = ZERO
    tokens: Range = ZERO
    usd: Range | None = ZERO
    seconds: Range = ZERO
    unpriced: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __add__(self, other: Cost) -> Cost:
        unpriced = tuple(sorted({*self.unpriced, *other.unpriced}))
        usd = (self.usd or ZERO) + (other.usd or ZERO)
        return Cost(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            usd=None if unpriced and not usd.high else usd,
            seconds=self.seconds + other.seconds,
            unpriced=unpriced,
            uncounted=tuple(sorted({*self.uncounted, *other.uncounted})),
        )

    def times(self, runs: Range, *, at_once: float = 1.0) -> Cost:
        """The cost of several runs, of which some are done at once."""
        return Cost(
            calls=self.calls * runs,
            tokens=self.tokens * runs,
            usd=None if self.usd is None else self.usd * runs,
            seconds=self.seconds * runs * (1 / at_once),
            unpriced=self.unpriced,
            uncounted=self.uncounted,
        )

    def figure(self, name: Figure) -> Range:
        return {"calls": self.calls, "tokens": self.tokens, "usd": self.usd or ZERO}[name]

    def round(self) -> Cost:
        """Whole calls and tokens, dollars to a millionth, seconds to a hundredth."""
        return Cost(
            calls=_round(self.calls),
            tokens=_round(self.tokens),
            usd=None if self.usd is None else _round(self.usd, 6),
            seconds=_round(self.seconds, 2),
            unpriced=self.unpriced,
            uncounted=self.uncounted,
        )


NO_COST = Cost()


def _round(figures: Range, digits: int = 0) -> Range:
    """Rounded and in order: a budget may cut a long run so early that it takes less than a short one."""
    low, *_, high = sorted((figures.low, figures.typical, figures.high))
    return Range(low, figures.typical, high).map(lambda figure: round(figure, digits))
