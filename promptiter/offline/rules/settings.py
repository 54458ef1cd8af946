"""New values for parameters and models, one step at a time. `ExampleWriter` selects few-shot examples from runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from promptiter.llm.prices import Price
from promptiter.stages.optimizer import OptimizeRequest
from promptiter.structure import Limits, Surface
from traces.model import Json

STEPS = 8
"""Number of steps across the range of a bounded number."""

LOWER_FIRST = ("temperature", "top_p", "penalty", "threshold")


def iterate_values(request: OptimizeRequest) -> Iterator[tuple[Json, str]]:
    """The values to try, in order, each with a reason."""
    surface = request.surface
    if surface.type == "model" and surface.value in request.prices:
        return _iterate_models(surface, request.prices)
    if surface.limits.choices:
        return _iterate_choices(surface)
    if surface.type == "parameter":
        return _iterate_numbers(surface)
    return iter(())


def _iterate_models(surface: Surface, prices: Mapping[str, Price]) -> Iterator[tuple[Json, str]]:
    """The models that cost more, the cheapest first, then the others: what fails needs a better model, if any."""
    current = _sum_price(prices[surface.value])
    costs = {model: _sum_price(price) for model, price in prices.items() if model != surface.value}
    for model in sorted(costs, key=lambda each: (costs[each] <= current, abs(costs[each] - current), each)):
        more = f"{costs[model] / current:.2g} times" if current else "more than"
        yield model, f"it costs {more} what {surface.value!r} costs"
    for choice, reason in _iterate_choices(surface):
        if choice not in costs:
            yield choice, reason


def _sum_price(price: Price) -> float:
    return price.input_usd_per_million + price.output_usd_per_million


def _iterate_choices(surface: Surface) -> Iterator[tuple[Json, str]]:
    """The choices after the current one, then those before it."""
    choices = list(surface.limits.choices)
    place = choices.index(surface.value) + 1 if surface.value in choices else 0
    for choice in (*choices[place:], *choices[:place]):
        if choice != surface.value:
            yield choice, f"the next choice after {surface.value!r}"


def _iterate_numbers(surface: Surface) -> Iterator[tuple[Json, str]]:
    """One step in the likelier direction, one in the other, then two, and so on, within the limits."""
    value, limits = surface.value, surface.limits
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    is_lower_first = any(word in surface.part for word in LOWER_FIRST)
    signs = (-1, 1) if is_lower_first else (1, -1)
    seen: set[float] = {value}
    for count in range(1, STEPS + 1):
        for sign in signs:
            number = _clamp(_move(value, sign * count, limits), limits)
            if number not in seen:
                seen.add(number)
                yield number, f"a step {'up' if number > value else 'down'} from {value}"


def _move(value: float, steps: int, limits: Limits) -> float:
    if limits.scale == "log" and limits.minimum and limits.maximum and value > 0:
        return float(value * (limits.maximum / limits.minimum) ** (steps / STEPS))
    return value + steps * _compute_step(value, limits)


def _compute_step(value: float, limits: Limits) -> float:
    if limits.minimum is not None and limits.maximum is not None:
        step = (limits.maximum - limits.minimum) / STEPS
    else:
        step = abs(value) / 2 or 1.0
    return max(step, 1.0) if limits.kind == "integer" else step


def _clamp(number: float, limits: Limits) -> float:
    if limits.minimum is not None:
        number = max(number, limits.minimum)
    if limits.maximum is not None:
        number = min(number, limits.maximum)
    return int(number) if limits.kind == "integer" else round(number, 6)
