"""What a run is expected to take, for people and for machines: stages, nodes, totals, what the budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import json_text, print_rows
from promptiter.engine.forecast import Band, Expected, Forecast
from promptiter.engine.till import STAGES, Stage
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runlog.codec import to_plain
from promptiter.wording import dollars
from traces.model import Json
from traces.text import one_line

NEVER = Band(0, 0, 0)
NOTHING_EXPECTED = Expected(calls=NEVER, tokens=NEVER, usd=NEVER, seconds=NEVER)


def forecast_as_json(forecast: Forecast, configuration: dict[str, Json]) -> str:
    return json_text({"configuration": configuration, "forecast": to_plain(forecast)})


def print_forecast(screen: Console, forecast: Forecast) -> None:
    """The middle of each figure, with what nine runs in ten stay within."""
    screen.print(Text.assemble(("Forecast", "bold"), f"  {one_line(forecast.source)}"))
    screen.print(
        f"  {_band(forecast.rounds, _count)} rounds; each figure is the middle (p50), with p5 to p95", style="dim"
    )
    stages = [(each.stage, each.expected) for each in forecast.stages]
    _print_table(screen, "stage", [*stages, ("all", forecast.total)], has_total=True)
    _print_table(screen, "node", [(each.node_id, each.expected) for each in forecast.nodes])
    screen.print()
    unpriced = ", ".join(forecast.total.unpriced)
    rows = [("Budget", each) for each in forecast.budget] or [("Budget", "no cap")]
    rows += [("Price", f"unknown: {unpriced}")] if unpriced else []
    rows += [("Not known", each) for each in forecast.notes]
    print_rows(screen, rows)


def compared(forecast: Forecast, spent: Spending, *, seconds: float) -> str:
    """What was expected beside what calls of models took: calls, dollars, seconds."""
    expected = forecast.total
    told = [f"{spent.calls:,} calls, expected {_band(expected.calls, _count)}"]
    if expected.usd is not None and (expected.usd.p95 or spent.cost_usd):
        fact = "unknown cost" if spent.cost_usd is None else dollars(spent.cost_usd)
        told.append(f"{fact}, expected {_band(expected.usd, dollars)}")
    told.append(f"{_time(seconds)}, expected {_band(expected.seconds, _time)}")
    return "; ".join(told)


def stages_as_json(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[Json]:
    """Each stage that was expected or took something."""
    expected = {each.stage: each.expected for each in forecast.stages}
    return [
        {
            "stage": stage,
            "expected": to_plain(expected.get(stage)),
            "actual": {"calls": actual.calls, "tokens": actual.tokens, "cost_usd": actual.cost_usd},
        }
        for stage, actual in _by_stage(forecast, spent)
    ]


def print_compared(screen: Console, forecast: Forecast, spent: Mapping[Stage, Spending]) -> None:
    """What each stage took, beside what was expected of it: calls, and dollars where they are known, else tokens."""
    expected = {each.stage: each.expected for each in forecast.stages}
    has_dollars = forecast.total.usd is not None and forecast.total.usd.p95 > 0
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("stage", no_wrap=True)
    for name in ("calls", "expected", "cost" if has_dollars else "tokens", "expected"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage, actual in _by_stage(forecast, spent):
        wanted = expected.get(stage, NOTHING_EXPECTED)
        paid = "unknown" if actual.cost_usd is None else dollars(actual.cost_usd)
        table.add_row(
            stage,
            _count(actual.calls),
            _band(wanted.calls, _count),
            *((paid, _cost(wanted)) if has_dollars else (_count(actual.tokens), _band(wanted.tokens, _count))),
        )
    screen.print(table)


def _by_stage(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[tuple[Stage, Spending]]:
    """All stages in their order; those that ask no model and should not are left out."""
    asking = {each.stage for each in forecast.stages if each.expected.calls.p95 > 0} | spent.keys()
    return [(stage, spent.get(stage, NOTHING)) for stage in STAGES if stage in asking]


def _print_table(screen: Console, kind: str, lines: Iterable[tuple[str, Expected]], *, has_total: bool = False) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(kind, no_wrap=True)
    for name in ("calls", "tokens", "cost", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    lines = list(lines)
    for number, (name, expected) in enumerate(lines):
        table.add_row(
            Text(one_line(name)),
            _band(expected.calls, _count),
            _band(expected.tokens, _count),
            _cost(expected),
            _band(expected.seconds, _time),
            style="bold" if has_total and number == len(lines) - 1 else None,
        )
    screen.print()
    screen.print(table)


def _cost(expected: Expected) -> str:
    if expected.usd is None:
        return "unknown"
    return _band(expected.usd, dollars) + (" + unknown" if expected.unpriced else "")


def _band(band: Band, told: Callable[[float], str]) -> str:
    """`192 (135 to 311)`; one figure where all are the same."""
    low, middle, high = told(band.p5), told(band.p50), told(band.p95)
    return middle if low == high else f"{middle} ({low} to {high})"


def _count(figure: float) -> str:
    return f"{figure:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"
