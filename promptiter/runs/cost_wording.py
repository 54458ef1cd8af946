"""The wording of costs: what was spent, and what was expected, in texts and in the cells of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runs.cost_ranges import NO_COST, Cost, Figure, Range
from promptiter.runs.forecast_file import Forecast
from promptiter.runs.stage_costs import STAGES, Stage
from promptiter.runs.summary import CostSummary
from promptiter.wording import (
    count_model_calls,
    count_unknown_costs,
    describe_tokens,
    dollars,
    join_names,
    plural,
)


def cost_line(costs: CostSummary) -> str:
    """`$0.0312, 1,085 model calls, 48.0 s`: cost, model calls, other calls if there were any, and time."""
    models = count_model_calls(costs.models.calls, cached=costs.models.cache_hits)
    parts = [_describe_price(costs), models, *_count_others(costs)]
    return ", ".join((*parts, f"{costs.duration_s:.1f} s"))


def spending_line(costs: CostSummary) -> str:
    """`72 model calls, 12 cached, 5,200 tokens, cost $0.0312`."""
    parts = [plural(costs.models.calls, "model call"), f"{costs.models.cache_hits:,} cached", *_count_others(costs)]
    return ", ".join((*parts, _describe_tokens(costs.models), f"cost {_describe_price(costs)}"))


def describe_uncertain_costs(costs: CostSummary) -> list[str]:
    """One line each for calls without an answer, calls whose usage is unknown, and answers that are too long."""
    models, others = costs.models, costs.tools.lost_calls + costs.functions.lost_calls
    lines = []
    uncertain = [f"{models.lost_calls:,} without an answer"] if models.lost_calls else []
    uncertain += [f"{models.uncounted_calls:,} of unknown usage"] if models.uncounted_calls else []
    if uncertain:
        usd = f", {dollars(models.possible_usd)}" if models.possible_usd else ""
        most = f"they may have taken up to {models.possible_tokens:,} tokens{usd}"
        lines.append(f"model calls: {' and '.join(uncertain)}; {most}")
    if others:
        lines.append(f"{plural(others, 'other call')} in flight when the run was killed, and made again")
    if models.overlong_answers:
        answers = plural(models.overlong_answers, "answer")
        lines.append(f"{answers} longer than max_tokens allows, by {models.excess_tokens:,} tokens")
    return lines


def describe_unknown_prices(models: Sequence[str]) -> list[str]:
    """One line that says how to set the prices of these models; none without one."""
    if not models:
        return []
    name = models[0] if len(models) == 1 else "NAME"
    return [f"price unknown: {join_names(models, limit=3)}; set `models.{name}.price`"]


def _count_others(costs: CostSummary) -> list[str]:
    """The calls that are not of models, if there were any."""
    counts = {"tool call": costs.tools.calls, "function call": costs.functions.calls}
    return [plural(count, name) for name, count in counts.items() if count]


def _describe_price(costs: CostSummary) -> str:
    return f"{price(costs.models)}{' (offline model)' if costs.is_simulated else ''}"


def describe_usage(spent: Spending) -> str:
    """`5,200 tokens, $0.0312`, `5,200 tokens, cost unknown`, or that both are unknown."""
    if spent.cost_usd is not None:
        return f"{_describe_tokens(spent)}, {price(spent)}"
    is_known = spent.uncounted_calls < max(1, spent.calls)
    return f"{_describe_tokens(spent)}, cost unknown" if is_known else "tokens and cost unknown"


def _describe_tokens(spent: Spending) -> str:
    return describe_tokens(spent.tokens, calls=spent.calls, uncounted=spent.uncounted_calls)


def price(spent: Spending) -> str:
    """The cost, as far as it is known."""
    if spent.cost_usd is None:
        return "unknown"
    unknown = count_unknown_costs(unpriced=spent.unpriced_calls, uncounted=spent.uncounted_calls)
    return f"{dollars(spent.cost_usd)}{unknown}"


def describe_difference(forecast: Forecast, spent: Spending, *, seconds: float) -> str:
    """Calls, dollars and seconds beside their forecast."""
    expected = forecast.total
    figures = [f"{spent.calls:,} calls, expected {format_range(expected.calls, format_count)}"]
    if expected.usd is not None and (expected.usd.high or spent.cost_usd):
        figures.append(f"{format_paid(spent)}, expected {format_range(expected.usd, dollars)}")
    figures.append(f"{format_time(seconds)}, expected {format_range(expected.seconds, format_time)}")
    return "; ".join(figures)


def tabulate_stages(
    forecast: Forecast, spent: Mapping[Stage, Spending]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A header, and a row for each stage: calls, and dollars if known, otherwise tokens, each beside its forecast."""
    has_dollars = forecast.total.usd is not None and forecast.total.usd.high > 0
    rows: list[tuple[str, ...]] = []
    for stage, actual in list_stages(forecast, spent):
        cost = forecast.stages.get(stage, NO_COST)
        taken = format_paid(actual) if has_dollars else format_taken(actual)
        expected = format_cost(cost) if has_dollars else format_tokens(cost, format_count)
        rows.append((stage, format_count(actual.calls), format_calls(cost), taken, expected))
    return ("stage", "calls", "expected", "cost" if has_dollars else "tokens", "expected"), rows


def list_stages(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[tuple[Stage, Spending]]:
    """The stages that were forecast to call a model or did so, in the order of a run."""
    return [(stage, spent.get(stage, NOTHING)) for stage in STAGES if stage in (forecast.stages.keys() | spent.keys())]


def format_range(figures: Range, show: Callable[[float], str]) -> str:
    """`192 (135 to 311)`, `1.9 s (0.4 to 15.8 s)`, or a single figure if all are the same."""
    low, typical, high = show(figures.low), show(figures.typical), show(figures.high)
    if low != high and (unit := high.partition(" ")[2]):
        low = low.removesuffix(f" {unit}")
    return typical if low == high else f"{typical} ({low} to {high})"


def format_calls(cost: Cost) -> str:
    """The calls, which are unknown if the agent makes all of its own."""
    return "unknown" if cost.uncounted and not cost.calls.high else format_range(cost.calls, format_count)


def format_tokens(cost: Cost, show: Callable[[float], str]) -> str:
    """The tokens, as far as models report them."""
    if not cost.uncounted:
        return format_range(cost.tokens, show)
    return f"{format_range(cost.tokens, show)} + unknown" if cost.tokens.high else "unknown"


def format_taken(spent: Spending) -> str:
    """The tokens that calls took, as far as they were reported."""
    if not spent.uncounted_calls:
        return format_count(spent.tokens)
    return f"{format_count(spent.tokens)} + unknown" if spent.tokens else "unknown"


def format_cost(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    return format_range(cost.usd, dollars) + (" + unknown" if cost.unpriced else "")


def format_paid(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "unknown"
    return dollars(spent.cost_usd) + (" + unknown" if spent.unpriced_calls else "")


def format_count(figure: float) -> str:
    return f"{figure:,.0f}"


def format_thousands(tokens: float) -> str:
    """`64k`, `5.9k` or `640`: short enough for a table of 80 columns."""
    if tokens < 1_000:
        return f"{tokens:,.0f}"
    return f"{tokens / 1_000:,.0f}k" if tokens >= 9_950 else f"{tokens / 1_000:.1f}k"


def format_time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


FIGURES: dict[Figure, Callable[[float], str]] = {"calls": format_count, "tokens": format_count, "usd": dollars}
