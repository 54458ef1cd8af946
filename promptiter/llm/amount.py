"""What budgets count with: Caps on calls, tokens and dollars, and Amounts of them as exact integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from promptiter.llm.ledger import PARTS, Spending, in_parts

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The most that may be spent; None means no cap."""

    max_calls: int | None = None
    max_tokens: int | None = None
    max_usd: float | None = None

    @staticmethod
    def lowest(caps: Sequence[Caps]) -> Caps:
        """The lowest cap of each kind."""
        return Caps(
            max_calls=_find_lowest(each.max_calls for each in caps),
            max_tokens=_find_lowest(each.max_tokens for each in caps),
            max_usd=_find_lowest(each.max_usd for each in caps),
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """What calls cost, or may cost. Dollars are in parts (see `ledger.PARTS`)."""

    calls: int = 0
    tokens: int = 0
    usd_parts: int = 0

    @staticmethod
    def of(spent: Spending) -> Amount:
        """What a budget is charged: also what calls may have cost that were lost, or whose usage is unknown."""
        return Amount(
            spent.calls + spent.lost_calls,
            spent.tokens + spent.possible_tokens,
            in_parts(spent.cost_usd or 0.0) + in_parts(spent.possible_usd),
        )

    def as_spending(self) -> Spending:
        return Spending(calls=self.calls, input_tokens=self.tokens, cost_usd=self.usd_parts / PARTS)

    def is_within(self, bound: Amount) -> bool:
        return self.tokens <= bound.tokens and self.usd_parts <= bound.usd_parts

    def or_more(self, other: Amount) -> Amount:
        """The larger of each figure."""
        is_less = other.calls <= self.calls and other.tokens <= self.tokens and other.usd_parts <= self.usd_parts
        return self if is_less else Amount(*map(max, self, other))

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.usd_parts + other.usd_parts)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.usd_parts - other.usd_parts)

    def __iter__(self) -> Iterator[int]:
        return iter((self.calls, self.tokens, self.usd_parts))


ZERO = Amount()


def _find_lowest(caps: Iterable[N | None]) -> N | None:
    return min((cap for cap in caps if cap is not None), default=None)
