"""Prices of models: the user's own first, then those on litellm's list. An unknown price is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from promptiter.numbers import is_number
from traces import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens."""

    input_usd_per_million: float
    output_usd_per_million: float
    cached_usd_per_million: float | None = None

    def cost_usd(self, usage: Usage) -> float | None:
        """The cost of a call; None if its tokens are unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached = usage.cached_input_tokens or 0
        cached_price = self.cached_usd_per_million
        if cached_price is None:
            cached_price = self.input_usd_per_million
        return (
            (usage.input_tokens - cached) * self.input_usd_per_million
            + cached * cached_price
            + usage.output_tokens * self.output_usd_per_million
        ) / 1e6

    def bound_usd(self, tokens: int) -> float:
        """The most that this many tokens can cost."""
        return tokens * max(self.input_usd_per_million, self.output_usd_per_million) / 1e6


@runtime_checkable
class PricedModel(Protocol):
    """A model that knows its own price."""

    @property
    def price(self) -> Price: ...


class Prices:
    """Prices by model name: the user's own, then litellm's for what litellm serves."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        self._known: dict[str, Price | None] = dict(own or {})

    def of(self, model: str, *, is_listed: bool = True) -> Price | None:
        """The price of a model, or None. `is_listed` is false for models that litellm does not serve."""
        if model not in self._known:
            self._known[model] = _find_listed(model) if is_listed else None
        return self._known[model]


def check_usage(usage: Usage) -> Usage:
    """The usage without figures that cannot be right: negative ones, and more cached tokens than the input has."""
    if _is_plausible(usage):
        return usage
    given = {name: figure for name in Usage.__slots__ if (figure := getattr(usage, name)) is not None}
    known = {name: figure for name, figure in given.items() if is_number(figure, least=0)}
    if known.get("cached_input_tokens", 0) > known.get("input_tokens", 0):
        del known["cached_input_tokens"]
    return usage if len(known) == len(given) else Usage(**known)


def _is_plausible(usage: Usage) -> bool:
    """Whether both counts of tokens are known and can be right, and no more than them is known, as for most calls."""
    return (
        type(usage.input_tokens) is int
        and type(usage.output_tokens) is int
        and usage.input_tokens >= 0
        and usage.output_tokens >= 0
        and usage.cached_input_tokens is None
        and usage.cost_usd is None
    )


def add_cost(usage: Usage, price: Price | None) -> Usage:
    """Add the cost to a usage, unless the model reported it."""
    return replace(usage, cost_usd=price.cost_usd(usage)) if price and usage.cost_usd is None else usage


def _find_listed(model: str) -> Price | None:
    from promptiter.llm.litellm import price_per_token_usd

    found = price_per_token_usd(model)
    if found is None:
        return None
    return Price(input_usd_per_million=found[0] * 1e6, output_usd_per_million=found[1] * 1e6)
