"""Cost and CostMeter: what a run takes, added up by stage until a cap is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.engine.final_test import MOST_HELD
from promptiter.forecast.stage_costs import Stage
from promptiter.llm.budget import Budget, Budgets

Figure: TypeAlias = Literal["calls", "tokens", "usd"]
Caps: TypeAlias = Mapping[Figure, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Calls, tokens, dollars, and seconds on the clock. `unpriced` are the models whose dollars are missing."""

    calls: float = 0.0
    tokens: float = 0.0
    usd: float = 0.0
    seconds: float = 0.0
    unpriced: frozenset[str] = frozenset()

    def plus(self, other: Cost, share: float = 1.0) -> Cost:
        """This cost and a share of another one."""
        return Cost(
            calls=self.calls + share * other.calls,
            tokens=self.tokens + share * other.tokens,
            usd=self.usd + share * other.usd,
            seconds=self.seconds + share * other.seconds,
            unpriced=self.unpriced | other.unpriced,
        )

    def figure(self, name: Figure) -> float:
        return {"calls": self.calls, "tokens": self.tokens, "usd": self.usd}[name]


NO_COST = Cost()


class CostMeter:
    """Adds up costs by stage and by node or metric. Once a cap is reached, the run is cut and nothing more is counted.

    `final_test` is what the final test is expected to take: a budget makes the search leave that, or half of the rest.
    """

    def __init__(self, caps: Caps) -> None:
        self.spent: dict[tuple[Stage, str], Cost] = {}
        self.total = NO_COST
        self.after_round: list[Cost] = []
        self.final_test = NO_COST
        self.is_cut = False
        self._caps = caps
        self._held: Caps = {}

    @property
    def rounds(self) -> int:
        return max(0, len(self.after_round) - 1)

    def close_round(self) -> None:
        """Note what was spent so far: first after the baseline, then after each round."""
        self.after_round.append(self.total)

    def held_back(self, figure: Figure, cap: float) -> float:
        """What a cap holds back for the final test, once the baseline is known."""
        most = MOST_HELD * max(0.0, cap - self.after_round[0].figure(figure))
        return min(self.final_test.figure(figure), int(most) if isinstance(cap, int) else most)

    def hold(self, final_test: Cost) -> None:
        """Hold back what the final test is expected to take."""
        self.final_test = final_test
        self._held = {figure: self.held_back(figure, cap) for figure, cap in self._caps.items()}

    def release(self) -> None:
        """Make what was held back available."""
        self._held, self.is_cut = {}, False

    def add(self, stage: Stage, name: str, cost: Cost) -> None:
        """Count the cost of a node or metric: all of it, or the part that fits into the caps."""
        share = 0.0 if self.is_cut else 1.0
        for figure, cap in self._caps.items():
            left = cap - self._held.get(figure, 0.0) - self.total.figure(figure)
            if wanted := cost.figure(figure):
                share = min(share, max(0.0, left) / wanted)
        self.is_cut = share < 1.0
        if share:
            self.spent[stage, name] = self.spent.get((stage, name), NO_COST).plus(cost, share)
            self.total = self.total.plus(cost, share)


def read_caps(budget: Budget | Budgets | None) -> Caps:
    """The caps of a budget by the figure that each limits."""
    if budget is None:
        return {}
    known: dict[Figure, float | None] = {
        "calls": budget.caps.max_calls,
        "tokens": budget.caps.max_tokens,
        "usd": budget.caps.max_usd,
    }
    return {figure: cap for figure, cap in known.items() if cap is not None}
