"""The forecast of a run, for people and for machines: stages, nodes, totals, what the budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import json_text, new_table, print_rows
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.costs import NO_COST, Cost, Figure, Range
from promptiter.forecast.forecast import Forecast
from promptiter.forecast.stage_costs import STAGES, Stage
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runlog.codec import to_plain
from promptiter.wording import dollars
from traces.model import Json
from traces.text import one_line


def forecast_as_json(forecast: Forecast, configuration: dict[str, Json]) -> str:
    return json_text({"configuration": configuration, "forecast": to_plain(forecast)})


def print_forecast(screen: Console, forecast: Forecast) -> None:
    """Print the figures of a typical run, with those of a short and a long one."""
    screen.print(Text.assemble(("Forecast", "bold"), f"  {one_line(forecast.source)}"))
    rounds = f"  {_range(forecast.rounds, _count)} rounds; figures are for a typical run (short to long run)"
    screen.print(rounds, style="dim")
    _print_costs(screen, "stage", [*forecast.stages.items(), ("all", forecast.total)])
    _print_costs(screen, "node", forecast.nodes.items())
    screen.print()
    unpriced = ", ".join(_name_model(each) for each in forecast.total.unpriced if each not in forecast.uncounted)
    rows = [("Budget", each) for each in forecast.budget] or [("Budget", "no cap")]
    rows += [("Price", f"unknown: {unpriced}")] if unpriced else []
    if forecast.uncounted:
        counted = "; a budget counts each such call at the most it may cost" if forecast.budget else ""
        rows.append(("Usage", f"unknown: {', '.join(forecast.uncounted)}{counted}"))
    rows += [("Note", each) for each in forecast.notes]
    print_rows(screen, rows)


def _name_model(name: str) -> str:
    return "models that your own code calls" if name == UNKNOWN_MODEL else name


def describe_needs(forecast: Forecast) -> list[str]:
    """What the whole run was expected to take of each figure that has a cap."""
    return [
        f"the whole run was expected to take {_needed(figure, figures)}" for figure, figures in forecast.needed.items()
    ]


def describe_low_caps(forecast: Forecast, caps: Mapping[Figure, float]) -> list[str]:
    """A warning for each cap that is below what even a short run takes."""
    return [
        f"max_{figure} is {_FIGURES[figure](cap)}, but the whole run is expected to take "
        f"{_needed(figure, forecast.needed[figure])}, so the budget will probably end before anything is shown; "
        f"raise max_{figure}"
        for figure, cap in caps.items()
        if figure in forecast.needed and forecast.needed[figure].low > cap
    ]


def describe_cost(cost: Cost) -> str:
    """`12 calls (9 to 40), 30k tokens, $0.30 ($0.10 to $0.80), 20 s`."""
    if not cost.calls.high:
        return "no model calls"
    paid = "cost unknown" if cost.usd is None else _dollars(cost)
    return f"{_calls(cost)} calls, {_tokens(cost, _thousands)} tokens, {paid}, {_range(cost.seconds, _time)}"


def _needed(figure: Figure, figures: Range) -> str:
    """`312 calls (183 to 661)`, or `$0.30 ($0.10 to $0.80)`."""
    typical, bracket, others = _range(figures, _FIGURES[figure]).partition(" (")
    return (typical if figure == "usd" else f"{typical} {figure}") + bracket + others


def describe_difference(forecast: Forecast, spent: Spending, *, seconds: float) -> str:
    """Calls, dollars and seconds beside their forecast."""
    expected = forecast.total
    figures = [f"{spent.calls:,} calls, expected {_range(expected.calls, _count)}"]
    if expected.usd is not None and (expected.usd.high or spent.cost_usd):
        figures.append(f"{_paid(spent)}, expected {_range(expected.usd, dollars)}")
    figures.append(f"{_time(seconds)}, expected {_range(expected.seconds, _time)}")
    return "; ".join(figures)


def stages_as_json(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[Json]:
    """The stages that were forecast or made a call."""
    return [
        {
            "stage": stage,
            "expected": to_plain(forecast.stages.get(stage)),
            "actual": {"calls": actual.calls, "tokens": actual.tokens, "cost_usd": actual.cost_usd},
        }
        for stage, actual in _by_stage(forecast, spent)
    ]


def print_stages(screen: Console, forecast: Forecast, spent: Mapping[Stage, Spending]) -> None:
    """Print what each stage took beside its forecast: calls, and dollars if they are known, otherwise tokens."""
    has_dollars = forecast.total.usd is not None and forecast.total.usd.high > 0
    table = new_table("stage", ">calls", ">expected", ">cost" if has_dollars else ">tokens", ">expected")
    for stage, actual in _by_stage(forecast, spent):
        cost = forecast.stages.get(stage, NO_COST)
        paid = (_paid(actual), _dollars(cost)) if has_dollars else (_taken(actual), _tokens(cost, _count))
        table.add_row(stage, _count(actual.calls), _calls(cost), *paid)
    screen.print(table)


def _by_stage(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[tuple[Stage, Spending]]:
    """The stages that were forecast to call a model or did so, in the order of a run."""
    return [(stage, spent.get(stage, NOTHING)) for stage in STAGES if stage in (forecast.stages.keys() | spent.keys())]


def _print_costs(screen: Console, kind: str, lines: Iterable[tuple[str, Cost]]) -> None:
    table = new_table(kind, ">calls", ">tokens", ">cost", ">time")
    for name, cost in lines:
        calls, tokens = _calls(cost), _tokens(cost, _thousands)
        style = "bold" if name == "all" else None
        table.add_row(Text(one_line(name)), calls, tokens, _dollars(cost), _range(cost.seconds, _time), style=style)
    screen.print()
    screen.print(table)


def _range(figures: Range, show: Callable[[float], str]) -> str:
    """`192 (135 to 311)`, `1.9 s (0.4 to 15.8 s)`, or a single figure if all are the same."""
    low, typical, high = show(figures.low), show(figures.typical), show(figures.high)
    if low != high and (unit := high.partition(" ")[2]):
        low = low.removesuffix(f" {unit}")
    return typical if low == high else f"{typical} ({low} to {high})"


def _calls(cost: Cost) -> str:
    """The calls, which are unknown if the agent makes all of its own."""
    return "unknown" if cost.uncounted and not cost.calls.high else _range(cost.calls, _count)


def _tokens(cost: Cost, show: Callable[[float], str]) -> str:
    """The tokens, as far as models report them."""
    if not cost.uncounted:
        return _range(cost.tokens, show)
    return f"{_range(cost.tokens, show)} + unknown" if cost.tokens.high else "unknown"


def _taken(spent: Spending) -> str:
    """The tokens that calls took, as far as they were reported."""
    if not spent.uncounted_calls:
        return _count(spent.tokens)
    return f"{_count(spent.tokens)} + unknown" if spent.tokens else "unknown"


def _dollars(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    return _range(cost.usd, dollars) + (" + unknown" if cost.unpriced else "")


def _paid(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "unknown"
    return dollars(spent.cost_usd) + (" + unknown" if spent.unpriced_calls else "")


def _count(figure: float) -> str:
    return f"{figure:,.0f}"


def _thousands(tokens: float) -> str:
    """`64k`, `5.9k` or `640`: short enough for a table of 80 columns."""
    if tokens < 1_000:
        return f"{tokens:,.0f}"
    return f"{tokens / 1_000:,.0f}k" if tokens >= 9_950 else f"{tokens / 1_000:.1f}k"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


_FIGURES: dict[Figure, Callable[[float], str]] = {"calls": _count, "tokens": _count, "usd": dollars}
