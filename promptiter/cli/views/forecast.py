"""The forecast of a run, for people and for machines: stages, nodes, totals, what the budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import json_text, print_rows
from promptiter.forecast.forecast import Expected, Forecast, Range
from promptiter.forecast.stage_costs import STAGES, Stage
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runlog.codec import to_plain
from promptiter.wording import dollars
from traces.model import Json
from traces.text import one_line

NEVER = Range(0, 0, 0)
NOTHING_EXPECTED = Expected(calls=NEVER, tokens=NEVER, usd=NEVER, seconds=NEVER)


def forecast_as_json(forecast: Forecast, configuration: dict[str, Json]) -> str:
    return json_text({"configuration": configuration, "forecast": to_plain(forecast)})


def print_forecast(screen: Console, forecast: Forecast) -> None:
    """Print the figures of a typical run, with those of a short and a long one."""
    screen.print(Text.assemble(("Forecast", "bold"), f"  {one_line(forecast.source)}"))
    screen.print(
        f"  {_range(forecast.rounds, _count)} rounds; figures are for a typical run (short to long run)",
        style="dim",
    )
    _print_table(screen, "stage", [*forecast.stages.items(), ("all", forecast.total)], has_total=True)
    _print_table(screen, "node", forecast.nodes.items())
    screen.print()
    unpriced = ", ".join(forecast.total.unpriced)
    rows = [("Budget", each) for each in forecast.budget] or [("Budget", "no cap")]
    rows += [("Price", f"unknown: {unpriced}")] if unpriced else []
    rows += [("Note", each) for each in forecast.notes]
    print_rows(screen, rows)


def format_comparison(forecast: Forecast, spent: Spending, *, seconds: float) -> str:
    """Calls, dollars and seconds beside their forecast."""
    expected = forecast.total
    figures = [f"{spent.calls:,} calls, expected {_range(expected.calls, _count)}"]
    if expected.usd is not None and (expected.usd.high or spent.cost_usd):
        fact = "unknown cost" if spent.cost_usd is None else dollars(spent.cost_usd)
        figures.append(f"{fact}, expected {_range(expected.usd, dollars)}")
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


def print_comparison(screen: Console, forecast: Forecast, spent: Mapping[Stage, Spending]) -> None:
    """Print what each stage took beside its forecast: calls, and dollars if they are known, otherwise tokens."""
    has_dollars = forecast.total.usd is not None and forecast.total.usd.high > 0
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("stage", no_wrap=True)
    for name in ("calls", "expected", "cost" if has_dollars else "tokens", "expected"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage, actual in _by_stage(forecast, spent):
        wanted = forecast.stages.get(stage, NOTHING_EXPECTED)
        paid = "unknown" if actual.cost_usd is None else dollars(actual.cost_usd)
        table.add_row(
            stage,
            _count(actual.calls),
            _range(wanted.calls, _count),
            *((paid, _cost(wanted)) if has_dollars else (_count(actual.tokens), _range(wanted.tokens, _count))),
        )
    screen.print(table)


def _by_stage(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[tuple[Stage, Spending]]:
    """The stages that were forecast to call a model or did so, in the order of a run."""
    calling = {stage for stage, expected in forecast.stages.items() if expected.calls.high > 0} | spent.keys()
    return [(stage, spent.get(stage, NOTHING)) for stage in STAGES if stage in calling]


def _print_table(screen: Console, kind: str, lines: Iterable[tuple[str, Expected]], *, has_total: bool = False) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(kind, no_wrap=True)
    for name in ("calls", "tokens", "cost", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    lines = list(lines)
    for number, (name, expected) in enumerate(lines):
        table.add_row(
            Text(one_line(name)),
            _range(expected.calls, _count),
            _range(expected.tokens, _count),
            _cost(expected),
            _range(expected.seconds, _time),
            style="bold" if has_total and number == len(lines) - 1 else None,
        )
    screen.print()
    screen.print(table)


def _cost(expected: Expected) -> str:
    if expected.usd is None:
        return "unknown"
    return _range(expected.usd, dollars) + (" + unknown" if expected.unpriced else "")


def _range(figures: Range, show: Callable[[float], str]) -> str:
    """`192 (135 to 311)`, or a single figure if all are the same."""
    low, typical, high = show(figures.low), show(figures.typical), show(figures.high)
    return typical if low == high else f"{typical} ({low} to {high})"


def _count(figure: float) -> str:
    return f"{figure:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"
