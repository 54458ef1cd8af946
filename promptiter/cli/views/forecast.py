"""The forecast of a run, for people and for machines: stages, nodes, totals, what the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import json_text, new_table, print_rows
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.llm.ledger import Spending
from promptiter.runlog.codec import to_plain
from promptiter.runs.cost_ranges import Cost, Figure, Range
from promptiter.runs.cost_wording import (
    FIGURES,
    format_calls,
    format_cost,
    format_count,
    format_range,
    format_thousands,
    format_time,
    format_tokens,
    list_stages,
    tabulate_stages,
)
from promptiter.runs.forecast_file import Forecast
from promptiter.runs.stage_costs import Stage
from traces.model import Json
from traces.text import one_line


def forecast_as_json(forecast: Forecast, configuration: dict[str, Json]) -> str:
    return json_text({"configuration": configuration, "forecast": to_plain(forecast)})


def print_forecast(screen: Console, forecast: Forecast) -> None:
    """Print the figures of a typical run, with those of a short and a long one."""
    screen.print(Text.assemble(("Forecast", "bold"), f"  {one_line(forecast.source)}"))
    rounds = format_range(forecast.rounds, format_count)
    screen.print(f"  {rounds} rounds; figures are for a typical run (short to long run)", style="dim")
    _print_costs(screen, "stage", [*forecast.stages.items(), ("all", forecast.total)])
    _print_costs(screen, "node", forecast.nodes.items())
    screen.print()
    unpriced = [each for each in forecast.total.unpriced if each not in forecast.uncounted]
    rows = [("Budget", each) for each in forecast.budget] or [("Budget", "no cap")]
    if unpriced:
        advice = "" if unpriced == [UNKNOWN_MODEL] else "; set `models.NAME.price`"
        rows.append(("Price", f"unknown: {', '.join(map(_name_model, unpriced))}{advice}"))
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
        f"max_{figure} is {FIGURES[figure](cap)}, but the whole run is expected to take "
        f"{_needed(figure, forecast.needed[figure])}, so the budget will probably end before anything is shown; "
        f"raise max_{figure}"
        for figure, cap in caps.items()
        if figure in forecast.needed and forecast.needed[figure].low > cap
    ]


def describe_cost(cost: Cost) -> str:
    """`12 calls (9 to 40), 30k tokens, $0.30 ($0.10 to $0.80), 20 s`."""
    if not cost.calls.high:
        return "no model calls"
    paid = "cost unknown" if cost.usd is None else format_cost(cost)
    tokens, time = format_tokens(cost, format_thousands), format_range(cost.seconds, format_time)
    return f"{format_calls(cost)} calls, {tokens} tokens, {paid}, {time}"


def _needed(figure: Figure, figures: Range) -> str:
    """`312 calls (183 to 661)`, or `$0.30 ($0.10 to $0.80)`."""
    typical, bracket, others = format_range(figures, FIGURES[figure]).partition(" (")
    return (typical if figure == "usd" else f"{typical} {figure}") + bracket + others


def stages_as_json(forecast: Forecast, spent: Mapping[Stage, Spending]) -> list[Json]:
    """The stages that were forecast or made a call."""
    return [
        {
            "stage": stage,
            "expected": to_plain(forecast.stages.get(stage)),
            "actual": {"calls": actual.calls, "tokens": actual.tokens, "cost_usd": actual.cost_usd},
        }
        for stage, actual in list_stages(forecast, spent)
    ]


def print_stages(screen: Console, forecast: Forecast, spent: Mapping[Stage, Spending]) -> None:
    """Print what each stage took beside its forecast: calls, and dollars if they are known, otherwise tokens."""
    header, rows = tabulate_stages(forecast, spent)
    first, *others = header
    table = new_table(first, *(f">{name}" for name in others))
    for row in rows:
        table.add_row(*row)
    screen.print(table)


def _print_costs(screen: Console, kind: str, lines: Iterable[tuple[str, Cost]]) -> None:
    table = new_table(kind, ">calls", ">tokens", ">cost", ">time")
    for name, cost in lines:
        calls, tokens = format_calls(cost), format_tokens(cost, format_thousands)
        style = "bold" if name == "all" else None
        table.add_row(
            Text(one_line(name)), calls, tokens, format_cost(cost), format_range(cost.seconds, format_time), style=style
        )
    screen.print()
    screen.print(table)
